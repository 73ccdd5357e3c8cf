"""A stand-in for NVIDIA's RM and UVM of one release, at the offsets of ../shared/uapi: see tests/tablekernel.py.

The table has the structures of 595; what older ones had elsewhere stands here by hand (version_differences and notes of
the table). RM refuses every other size, UVM copies its own and looks at nothing else.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from tests.tablekernel import PAGE, Arg, Node, TableKernel, peek, poke, refuse, table

CONTROL, GPU, UVM = "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"
UUID = bytes(range(1, 17))
MINOR = 3  # of /dev/null, which stands for the node
HUGE = 2 << 20
Release = tuple[int, ...]


def at(by_release: dict[str, int | None], release: Release) -> int | None:
    """A key is the first release that has the value, valid until the next key."""
    found = None
    for since, value in by_release.items():
        if parse(since) <= release:
            found = value
    return found


def parse(text: str) -> Release:
    """ "550.40.07" as numbers."""
    return tuple(int(word) for word in text.split("."))


def layouts(shared: Path, release: Release) -> dict[str, Any]:
    """The structures of a release."""
    structs: dict[str, Any] = json.loads(json.dumps(table(shared, "nvidia")["structs"]))

    def change(name: str, size: int, moved: dict[str, int], gone: str = "") -> None:
        fields = [field for field in structs[name]["fields"] if field["name"] != gone]
        for field in fields:
            field["offset"] = moved.get(field["name"], field["offset"])
        structs[name] = {"sizeof": size, "fields": fields}

    if release < (535,):
        change("NVOS21_PARAMETERS", 32, {"status": 24}, "paramsSize")
        change("NVOS64_PARAMETERS", 40, {"flags": 32, "status": 36}, "paramsSize")
    if release < (545,):
        change("NV_MEMORY_ALLOCATION_PARAMS", 120, {}, "numaNode")
    if release < (550, 40, 53):
        tail = {"gpuAttributesCount": 1176, "rmCtrlFd": 1184, "hClient": 1188, "hMemory": 1192, "rmStatus": 1196}
        change("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", 1200, tail)
    if release < (560,):
        change("NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_PARAMS", 776, {}, "driverBranch")
    if release < (580,):
        change("NV_VASPACE_ALLOCATION_PARAMETERS", 48, {}, "pasid")
    if release < (590,):
        change("UVM_FREE_PARAMS", 24, {"rmStatus": 16})
        structs["UVM_FREE_PARAMS"]["fields"].append({"name": "length", "offset": 8, "size": 8, "type": "NvU64"})
    return structs


class Nvidia(TableKernel):
    """``says``: the release it tells, by default its own. ``status``: call -> status that it ends with, undone."""

    def __init__(self, shared: Path, release: str = "595.45.04", says: str = "") -> None:
        super().__init__(shared, {CONTROL: "nvidia", GPU: "nvidia", UVM: "nvidia"})
        self.release, self.says = parse(release), says or release
        self.structs = layouts(shared, self.release)
        self.status: dict[str, int] = {}
        self.tree: dict[int, dict[str, int]] = {}
        self.linear: dict[int, int] = {}
        self.external: dict[int, list[int]] = {}
        self.registered: list[str] = []
        self.params: dict[int, Arg] = {}

    def left(self) -> int:
        return len(self.tree) + len(self.linear) + len(self.external) + self.maps + len(self.registered)

    def find(self, node: Node, number: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
        known = table(self.shared, "nvidia")
        if node.path == UVM:
            for name, entry in known["uvm"].items():
                if entry["value"] == number:
                    return name, self.structs, entry
        for name, entry in known["ioctls"].items():
            if int(entry["cmd"], 16) == number & 0xFF and number >> 8 & 0xFF == ord("F"):
                return name, self.structs, self._of_size(name, entry, number >> 16 & 0x3FFF)
        raise AssertionError(f"{node.path}: nobody knows {number:#x}")

    def _of_size(self, name: str, entry: dict[str, Any], size: int) -> dict[str, Any]:
        if entry.get("array"):
            return entry
        for row in (entry, entry.get("alternative", entry)):
            wanted = self.structs[row["struct"]]["sizeof"] if row["struct"] in self.structs else row["sizeof"]
            if size == wanted:
                return {**entry, **row}
        raise refuse(errno.EINVAL)

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        node = self.files[fd]
        name, structs, entry = self.find(node, number)
        assert isinstance(argument, bytearray)
        if node.path == UVM:
            assert len(argument) >= 16384
        self._door(name, bytes(argument))
        arg, where = Arg(structs, entry["struct"], argument), entry.get("status_field")
        wrong = self.status.get(name, 0)
        found = wrong or getattr(self, name.lower())(node, arg) or 0
        if where:
            arg[where] = found
        return 0

    def close(self, fd: int) -> None:
        """The last file of a client or of an address space ends it."""
        path = self.files[fd].path
        super().close(fd)
        if path not in {node.path for node in self.files.values()}:
            self.external, self.registered = ({}, []) if path == UVM else (self.external, self.registered)
            for handle in list(self.tree) if path == CONTROL else ():
                self._subtree(handle)

    # -- RM --

    def nv_esc_register_fd(self, node: Node, arg: Arg) -> None:
        assert (node.path, self.files[arg["ctl_fd"]].path) == (GPU, CONTROL)

    def nv_esc_card_info(self, node: Node, arg: Arg) -> None:
        assert node.path == CONTROL
        arg["valid"], arg["gpu_id"], arg["minor_number"] = 1, 0x100, MINOR

    def nv_esc_rm_alloc(self, node: Node, arg: Arg) -> int:
        assert node.path == CONTROL
        kind, parent = arg["hClass"], arg["hObjectParent"]
        if kind != 0x41 and parent not in self.tree:
            return 0x57
        structs = {
            0x41: "",
            0x80: "NV0080_ALLOC_PARAMETERS",
            0x2080: "NV2080_ALLOC_PARAMETERS",
            0x90F1: "NV_VASPACE_ALLOCATION_PARAMETERS",
            0x40: "NV_MEMORY_ALLOCATION_PARAMS",
            0x3E: "NV_MEMORY_ALLOCATION_PARAMS",
        }
        params: Arg | None = None
        if structs[kind]:
            size = self.structs[structs[kind]]["sizeof"]
            assert self.release < (535,) or arg["paramsSize"] == size
            params = Arg(self.structs, structs[kind], bytearray(peek(arg["pAllocParms"], size)))
        handle = next(n for n in range(0xCAF00000, 0xCAF00000 + 9999) if n not in self.tree)
        if kind in (0x40, 0x3E):
            assert params is not None
            huge = params["attr"] >> 23 & 3 == 3
            assert params["size"] % (HUGE if huge else PAGE) == 0 < params["size"] == params["limit"] + 1
            assert (params["attr"] >> 25 & 3, params["type"]) == ((0, 0) if kind == 0x40 else (1, 13))
        self.tree[handle] = {
            "parent": parent,
            "class": kind,
            "size": params["size"] if kind in (0x40, 0x3E) and params else 0,
        }
        if params is not None:
            self.params[handle] = params
        arg["hObjectNew"] = handle
        return 0

    def nv_esc_rm_alloc_memory(self, node: Node, arg: Arg) -> int:
        assert (node.path, arg["params.hClass"], arg["fd"]) == (GPU, 0x71, -1)
        handle = arg["params.hObjectNew"]
        if handle in self.tree or arg["params.pMemory"] % PAGE or (arg["params.limit"] + 1) % PAGE:
            return 0x1F
        poke(arg["params.pMemory"], b"seen")
        self.tree[handle] = {"parent": arg["params.hObjectParent"], "class": 0x71, "size": arg["params.limit"] + 1}
        return 0

    def nv_esc_rm_free(self, node: Node, arg: Arg) -> int:
        if arg["hObjectOld"] not in self.tree:
            return 0x57
        self._subtree(arg["hObjectOld"])
        return 0

    def _subtree(self, handle: int) -> None:
        for below in [h for h, entry in self.tree.items() if entry["parent"] == handle]:
            self._subtree(below)
        self.tree.pop(handle, None)
        self.linear.pop(handle, None)

    def nv_esc_rm_control(self, node: Node, arg: Arg) -> int:
        assert node.path == CONTROL
        names = {
            0x13E: "NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_PARAMS",
            0x205: "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS",
            0x2080014A: "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS",
            0x20801301: "NV2080_CTRL_FB_GET_INFO_PARAMS",
        }
        layout = self.structs[names[arg["cmd"]]]
        if arg["paramsSize"] != layout["sizeof"]:
            return 0x3A
        params = Arg(self.structs, names[arg["cmd"]], bytearray(peek(arg["params"], layout["sizeof"])))
        if arg["cmd"] == 0x13E:
            params.put("driverVersionBuffer", self.says.encode())
        elif arg["cmd"] == 0x205:
            assert params["gpuId"] == 0x100
            params["deviceInstance"], params["subDeviceInstance"] = 5, 1
        elif arg["cmd"] == 0x2080014A:
            assert (params["flags"], params["length"]) == (2, 16)
            params.put("data", UUID)
        else:
            entry = bytearray(peek(params["fbInfoList"], 8))
            used = sum(one["size"] for one in self.tree.values() if one["class"] == 0x40)
            total = {22: (1 << 30) - used, 29: 1 << 28}[entry[0]]
            poke(params["fbInfoList"], bytes(entry[:4]) + (total >> 10).to_bytes(4, "little"))
        poke(arg["params"], bytes(params.buffer))
        return 0

    def nv_esc_rm_map_memory(self, node: Node, arg: Arg) -> int:
        thing, where = self.tree[arg["params.hMemory"]], self.files[arg["fd"]]
        assert node.path == CONTROL
        assert where.path == (CONTROL if thing["class"] == 0x3E else GPU)
        assert where.extra is None, "a file has room for one mapping"
        assert arg["params.length"] == thing["size"]
        linear = 0x7F0000000000 + (arg["params.hMemory"] << 12)
        where.extra, self.linear[arg["params.hMemory"]] = thing["size"], linear
        arg["params.pLinearAddress"] = linear
        return 0

    def mapped(self, node: Node, size: int, offset: int) -> None:
        if offset or node.extra != size:
            raise refuse(errno.EINVAL)

    def nv_esc_rm_unmap_memory(self, node: Node, arg: Arg) -> int:
        if self.linear.get(arg["hMemory"]) != arg["pLinearAddress"]:
            return 0x1F
        del self.linear[arg["hMemory"]]
        return 0

    # -- UVM --

    def uvm_initialize(self, node: Node, arg: Arg) -> None:
        node.extra = "initialized"

    def uvm_mm_initialize(self, node: Node, arg: Arg) -> int:
        assert self.release >= (535,)
        return 0 if self.files[arg["uvmFd"]].extra else 0x16

    def uvm_register_gpu(self, node: Node, arg: Arg) -> int:
        assert (arg.raw("gpu_uuid.uuid"), arg["rmCtrlFd"]) == (UUID, -1)
        self.registered.append("gpu")
        return 0 if node.extra else 0x16

    def uvm_register_gpu_vaspace(self, node: Node, arg: Arg) -> int:
        assert self.tree[arg["hVaSpace"]]["class"] == 0x90F1
        assert self.files[arg["rmCtrlFd"]].path == CONTROL
        self.registered.append("vaspace")
        return 0

    def uvm_unregister_gpu_vaspace(self, node: Node, arg: Arg) -> int:
        assert self.registered.pop() == "vaspace"
        return 0

    def uvm_unregister_gpu(self, node: Node, arg: Arg) -> int:
        assert self.registered.pop() == "gpu"
        return 0

    def uvm_create_external_range(self, node: Node, arg: Arg) -> int:
        base, length = arg["base"], arg["length"]
        if not base or base % PAGE or length % PAGE or not length:
            return 0x1E
        if any(b < base + length and base < b + n for b, (n, _) in self.external.items()):
            return 0x68
        self.external[base] = [length, 0]
        return 0

    def uvm_map_external_allocation(self, node: Node, arg: Arg) -> int:
        entry, thing = self.external.get(arg["base"]), self.tree.get(arg["hMemory"])
        if entry is None or thing is None or arg["gpuAttributesCount"] != 1:
            return 0x1F
        assert arg.raw("perGpuAttributes")[:20] == UUID + b"\1\0\0\0"
        assert entry[0] == thing["size"] == arg["length"]
        if thing["size"] >= HUGE and thing["class"] == 0x40 and arg["base"] % HUGE:
            return 0x1E
        entry[1] = arg["hMemory"]
        return 0

    def uvm_unmap_external(self, node: Node, arg: Arg) -> int:
        entry = self.external.get(arg["base"])
        if entry is None or not entry[1] or entry[0] != arg["length"]:
            return 0x57
        entry[1] = 0
        return 0

    def uvm_free(self, node: Node, arg: Arg) -> int:
        entry = self.external.get(arg["base"])
        if entry is None:
            return 0x57
        if self.release < (590,) and arg["length"] != entry[0]:
            return 0x1F
        del self.external[arg["base"]]
        return 0
