"""Tests by need: each folder's name says what it needs. A package, so that `python -m tests.kernel.rig` works."""
