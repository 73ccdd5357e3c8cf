# accelctl: `make run` looks at this machine and tries the simulated chip, `make test` checks everything. `make help` lists the rest.
# PYTHON: interpreter for .venv (3.10 or newer). NO_APT=1: `make test` installs no system packages.

PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help run test quick lint format generate bench pyz clean
.DEFAULT_GOAL := help

help:
	@echo "make run       install into .venv, look at this machine, and bring up the simulated chip"
	@echo "make test      everything: system packages (root only; NO_APT=1: none), kernels, lint, all tests"
	@echo "make quick     tests that need nothing but Python, on one interpreter"
	@echo "make lint      ruff and mypy --strict"
	@echo "make format    ruff format"
	@echo "make generate  completions/ and docs/man/ from the command tree"
	@echo "make bench     start-up and scan times, as ratios measured in pairs"
	@echo "make pyz       dist/accelctl.pyz: one file for machines without a network"
	@echo "make clean     remove what the targets above made"

# Exit status 1 means findings: they are what the report is for, and no failure of make.
run: .venv/.installed
	@$(BIN)/accelctl probe || [ $$? -eq 1 ]
	@echo
	@$(BIN)/accelctl bringup --device sim:0 --level 1

test: .venv/.dev
	@$(BIN)/python -m tools.test

quick: .venv/.dev
	@$(BIN)/python -m tools.test --quick

lint: .venv/.dev
	@$(BIN)/python -m tools.test --lint

format: .venv/.dev
	@$(BIN)/ruff format accelctl tools tests
	@$(BIN)/ruff check --fix accelctl tools tests

generate: .venv/.dev
	@$(BIN)/python -m tools.generate

bench: .venv/.dev
	@$(BIN)/python -m tests.perf.bench

pyz: .venv/.dev
	@$(BIN)/python -m tools.pyz

clean:
	rm -rf .venv .venv-3.* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find accelctl tools tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian ships venv without ensurepip unless python3-venv is installed; its own message is ten lines long.
.venv/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	  || { echo "accelctl needs Python 3.10 or newer; $(PYTHON) is not. Type: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv module is incomplete here. Type: apt install python3-venv"; exit 1; }
	@echo "making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/.installed: .venv/.python pyproject.toml
	@echo "installing accelctl into .venv"
	@$(BIN)/python -m pip install --quiet -e '.[umd]'
	@touch $@

.venv/.dev: .venv/.python pyproject.toml
	@echo "installing accelctl and what its tests need into .venv"
	@$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@ .venv/.installed
