"""Processes that a test starts and talks to, and what the test's own process has open."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.helpers import ROOT, environment


def open_files() -> set[str]:
    """What this process has open, as /proc says it."""
    links = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            links.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:  # the listing's own
            continue
    return {link for link in links if "/proc/" not in link}


def child(source: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that can import accelctl and talks on its standard streams."""
    return subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        env=environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    """The next line of a child."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
