"""The portable runtime (docs/semantics.md): devices, memory, streams, events and launches with one set of rules, as a
shim over a chip's Memory and Ops contracts."""

from accelctl.abi.runtime.arguments import Arg
from accelctl.abi.runtime.launching import ECHO, Kernel, Operand
from accelctl.abi.runtime.pointer import Pointer
from accelctl.abi.runtime.runtime import FLAGS, Runtime
from accelctl.abi.runtime.stream import Event, Stream

__all__ = ["ECHO", "FLAGS", "Arg", "Event", "Kernel", "Operand", "Pointer", "Runtime", "Stream"]
