"""The ABI's number and history, and what a manifest may say."""

from __future__ import annotations

from typing import Any

import pytest

from accelctl import __version__
from accelctl.abi import version
from accelctl.abi.manifest import Manifest
from accelctl.errors import AbiError
from accelctl.exits import ExitCode


def test_the_history_is_whole() -> None:
    assert list(version.HISTORY) == list(range(1, version.ABI + 1))
    releases = [tuple(map(int, change.release.split("."))) for change in version.HISTORY.values()]
    assert releases == sorted(releases)
    assert releases[-1] <= tuple(int(word) for word in __version__.split(".")[:3])
    assert version.OLDEST in version.HISTORY
    assert version.CONTRACTS.keys() <= version.FEATURES.keys()
    assert set(version.CONTRACTS.values()) <= version.HISTORY.keys()


def test_what_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [version.accepts(abi) for abi in (0, 1, 2, 3)] == [False, True, True, False]
    monkeypatch.setattr(version, "ABI", 4)
    monkeypatch.setattr(version, "OLDEST", 3)
    assert [abi for abi in range(7) if version.accepts(abi)] == [3, 4]


def make(**changes: Any) -> Manifest:
    return Manifest(**{"name": "zork", "title": "Zork", **changes})


def test_defaults() -> None:
    one = make()
    assert (one.abi, one.implied, one.features, one.tier) == (version.ABI, True, frozenset({"memory"}), "unproven")
    same = make(abi=version.ABI)
    assert (same.implied, same == one) == (False, True)
    assert make(abi=1) != one
    with pytest.raises(AttributeError):
        one.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Manifest("zork", "Zork")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"name": "Zork"}, "manifest of 'Zork': a name is lower-case letters, digits and underscores"),
        ({"name": "zork\n"}, "manifest of 'zork\\n': a name is lower-case letters, digits and underscores"),
        ({"name": 3}, "manifest of '3': name must be a str, not 3"),
        ({"title": " "}, "manifest of 'zork': title is empty"),
        ({"title": "a\nb"}, "manifest of 'zork': title is not one printable line"),
        ({"abi": True}, "manifest of 'zork': abi must be a int, not True"),
        ({"abi": -1}, "manifest of 'zork': abi -1 is no version"),
        ({"features": {"memory"}}, "manifest of 'zork': features must be a frozenset[str], not {'memory'}"),
        ({"features": frozenset({1})}, "manifest of 'zork': features must hold strings"),
        ({"features": frozenset({"b", "a"})}, "manifest of 'zork': unknown feature 'a', 'b'"),
        ({"features": frozenset({"user_va"})}, "manifest of 'zork': feature user_va needs address_space 'user'"),
        ({"drivers": "zork"}, "manifest of 'zork': drivers must be a tuple[str, ...], not 'zork'"),
        ({"drivers": ("zo rk",)}, "manifest of 'zork': no name of a driver: 'zo rk'"),
        ({"p2p": 1}, "manifest of 'zork': p2p must be a bool, not 1"),
        ({"tier": "best"}, "manifest of 'zork': tier 'best' is not one of proven, unproven, table, simulated"),
        ({"address_space": "mine"}, "manifest of 'zork': address_space 'mine' is not one of none, kernel, user"),
        ({"proven": ""}, "manifest of 'zork': proven is empty"),
        ({"tier": "proven"}, "manifest of 'zork': tier 'proven' needs a `proven` that says where"),
        ({"proven": "hardware"}, "manifest of 'zork': proven 'hardware', but tier 'unproven'"),
    ],
)
def test_what_is_no_manifest_is_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(AbiError) as caught:
        make(**changes)
    assert caught.value.message == line
    assert caught.value.exit_code == ExitCode.ABI


def test_what_chips_in_the_tree_say() -> None:
    one = make(tier="proven", proven="kernel guest 6.12", drivers=("virtio_gpu", "panfrost", "i915"), by_name_only=True)
    assert one.by_name_only
    assert make(address_space="user", features=frozenset({"memory", "user_va"})).address_space == "user"
    assert make(tier="simulated", proven="everywhere").tier == "simulated"
