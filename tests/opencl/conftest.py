"""Whether the OpenCL here compiles at all, found out once: PyPI's PoCL does not on a CPU newer than itself."""

from __future__ import annotations

import pytest

from tools.system import POCL

pyopencl = pytest.importorskip("pyopencl", reason="needs the extra opencl: pip install '.[opencl]'")


@pytest.fixture(scope="session", autouse=True)
def _it_compiles() -> None:
    """On the first device, which the tests use."""
    platforms = pyopencl.get_platforms()
    devices = [device for platform in platforms for device in platform.get_devices()]
    if not devices:
        pytest.skip("no OpenCL device")
    try:
        pyopencl.Program(pyopencl.Context(devices[:1]), "__kernel void nothing() {}").build()
    except pyopencl.RuntimeError as error:
        said = " ".join(str(error).split())[-160:]
        pytest.skip(f"{devices[0].name} compiles nothing here, apt-get install {POCL} may help: {said}")
