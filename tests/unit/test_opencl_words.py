"""What OpenCL's drivers say, on one line of ours."""

from __future__ import annotations

import pytest

from accelctl.backends.opencl.platform import said

BUILD = """clBuildProgram failed: BUILD_PROGRAM_FAILURE - clBuildProgram failed: BUILD_PROGRAM_FAILURE

Build on <pyopencl.Device 'pthread-AMD EPYC' on 'Portable Computing Language' at 0x55d0>:

error: unknown target CPU 'generic'
Device pthread-AMD EPYC failed to build the program
(options: -DT=float -I /x/pyopencl/cl)
(source saved as /tmp/tmpx.cl)"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (BUILD, "error: unknown target CPU 'generic'"),
        ("clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES", "clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES"),
        ("a\n\n b  c\nd\ne", "a b c d"),
        ("x:1: error: a\nx:1: error: a\nx:2: error: b\n", "x:1: error: a; x:2: error: b"),
        ("\n".join(f"error: {n}" for n in range(9)), "error: 0; error: 1; error: 2; 6 more"),
        ("", ""),
    ],
)
def test_an_error_of_a_driver_is_one_line(text: str, line: str) -> None:
    assert said(RuntimeError(text)) == line
