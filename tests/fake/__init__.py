"""The fake driver; :mod:`tests.fake.machine` says how to use it."""

from tests.fake.machine import FakeError, FakeMachine

__all__ = ["FakeError", "FakeMachine"]
