"""A launch configuration in 64 bits: how many blocks, of how many threads.

    bits  0-23  grid x - 1        bits 52-55  log2(block x)
    bits 24-39  grid y - 1        bits 56-59  log2(block y)
    bits 40-51  grid z - 1        bits 60-63  log2(block z)

Lengths of a block are powers of two, and a block has at most 1024 threads: what every vendor's hardware can launch.
Zero is one block of one thread.
"""

from __future__ import annotations

from typing import NamedTuple

from accelctl.errors import AccelError

MOST_GRID = (1 << 24, 1 << 16, 1 << 12)
MOST_THREADS = 1024
_SHIFTS = (0, 24, 40)


class LaunchError(AccelError):
    """A launch that can never run."""

    default_kind = "launch_config"


class Launch(NamedTuple):
    """Blocks and threads, x first."""

    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)

    def encode(self) -> int:
        """The 64 bits. LaunchError for what does not fit."""
        word = 0
        for axis, length, most, shift in zip("xyz", self.grid, MOST_GRID, _SHIFTS, strict=True):
            if not 1 <= length <= most:
                raise LaunchError(f"grid {axis} of {length} blocks: 1 to {most} are possible")
            word |= length - 1 << shift
        threads = self.block[0] * self.block[1] * self.block[2]
        if min(self.block) < 1 or threads > MOST_THREADS or any(length & length - 1 for length in self.block):
            raise LaunchError(f"a block of {self.block} threads: powers of two, at most {MOST_THREADS} together")
        for length, shift in zip(self.block, (52, 56, 60), strict=True):
            word |= length.bit_length() - 1 << shift
        return word


def decode(word: int) -> Launch:
    """The launch that 64 bits say; LaunchError for a block that no ``encode`` made."""
    x, y, z = (word >> shift & most - 1 for shift, most in zip(_SHIFTS, MOST_GRID, strict=True))
    logs = [word >> shift & 15 for shift in (52, 56, 60)]
    if word >> 64 or sum(logs) > MOST_THREADS.bit_length() - 1:
        raise LaunchError(f"launch_config {word:#x} says a block of more than {MOST_THREADS} threads")
    return Launch((x + 1, y + 1, z + 1), (1 << logs[0], 1 << logs[1], 1 << logs[2]))
