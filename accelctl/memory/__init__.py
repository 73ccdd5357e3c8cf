"""Book-keeping for device memory: who holds which address, block and reference.

Pure: nothing here opens, maps or asks anything. A chip tells these books what its driver did; `stress` compares them
with the kernel's own. A single book cannot do that: what libdrm's amdgpu tests lose from their list of address holes no
kernel counter shows, and tinygrad's NVIDIA interface never gives an address back at all.

One book belongs to one worker: none of them locks.
"""


class CallerError(ValueError):
    """The caller broke the rules of a book: freed what it does not hold, asked for no bytes, mixed two chips.

    A defect of accelctl or of the program under test, never of the device; the book is unchanged.
    """


def in_bytes(count: int) -> str:
    """A size as people write it, exact: "16 MiB" or "4097 bytes"; units are powers of 1024."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count} bytes"
