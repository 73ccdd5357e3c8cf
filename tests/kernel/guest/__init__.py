"""Tests that run as root inside a booted kernel, never on the host (see `conftest.py`)."""
