"""NVIDIA's resource manager (RM) and unified memory (UVM): calls whose structures changed with releases.

RM answers 0 for "dispatched": the verdict is the status field (``status``, ``params_status``). It wants the exact size
of the running release, and a wrong one is EINVAL. UVM's numbers say no size: the kernel copies its own, so every call
gets :data:`UVM_BUFFER_BYTES` (see :func:`uvm_buffer`), and its verdict is ``rmStatus``.

:func:`calls` gives the layouts of one release. Sources: open-gpu-kernel-modules 525.147.05 to 595.45.04; what changed
inside the 550 series did so between 550.40.07 and 550.40.53.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from accelctl.errors import AbiError
from accelctl.hal.uapi._struct import Ioctl, Struct, iowr, plain

Release = tuple[int, ...]

FIRST_MAJOR, LAST_MAJOR = 525, 595
UVM_BUFFER_BYTES = 16384  # the largest structure in use is 9264 bytes

# Classes of objects (RM_ALLOC's hClass).
NV01_ROOT_CLIENT = 0x41
NV01_DEVICE_0 = 0x80
NV20_SUBDEVICE_0 = 0x2080
FERMI_VASPACE_A = 0x90F1
NV1_MEMORY_SYSTEM = 0x3E
NV1_MEMORY_USER = 0x40
NV01_MEMORY_SYSTEM_OS_DESCRIPTOR = 0x71
# Values of bit fields in what objects are made from (the fields' places: see the chip's memory.py).
NV_DEVICE_ALLOCATION_VAMODE_MULTIPLE_VASPACES = 2
NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED = 8
NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING = 64
NVOS02_FLAGS_PHYSICALITY_NONCONTIGUOUS = 1
NVOS02_FLAGS_COHERENCY_CACHED = 1
NVOS02_FLAGS_MAPPING_NO_MAP = 1
NVOS32_TYPE_IMAGE = 0
NVOS32_TYPE_NOTIFIER = 13
NVOS32_ALLOC_FLAGS_IGNORE_BANK_PLACEMENT = 1
NVOS32_ALLOC_FLAGS_ALIGNMENT_FORCE = 256
NVOS32_ALLOC_FLAGS_MEMORY_HANDLE_PROVIDED = 16384
NVOS32_ALLOC_FLAGS_MAP_NOT_REQUIRED = 32768
NVOS32_ALLOC_FLAGS_PERSISTENT_VIDMEM = 65536
NVOS32_ATTR_PHYSICALITY_ALLOW_NONCONTIGUOUS = 3
NVOS32_ATTR_PAGE_SIZE_4KB = 1
NVOS32_ATTR_PAGE_SIZE_HUGE = 3
NVOS32_ATTR_LOCATION_PCI = 1
NVOS32_ATTR2_ZBC_PREFER_NO_ZBC = 1
NVOS32_ATTR2_GPU_CACHEABLE_YES = 1
NVOS32_ATTR2_GPU_CACHEABLE_NO = 2
NVOS32_ATTR2_PAGE_SIZE_HUGE_2MB = 1
NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY = 2
UvmGpuMappingTypeReadWriteAtomic = 1
# Controls (RM_CONTROL's cmd) and what they are asked.
NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2 = 0x13E
NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS = 0x201
NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2 = 0x205
NV2080_CTRL_CMD_GPU_GET_GID_INFO = 0x2080014A
NV2080_CTRL_CMD_FB_GET_INFO = 0x20801301
NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE = 9  # KiB
NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE = 22  # KiB
NV2080_CTRL_FB_INFO_INDEX_BAR1_AVAIL_SIZE = 29  # KiB
# Status codes.
NV_OK = 0x0
NV_ERR_GPU_IS_LOST = 0xF
NV_ERR_INSUFFICIENT_RESOURCES = 0x1A
NV_ERR_INVALID_ARGUMENT = 0x1F
NV_ERR_INVALID_PARAM_STRUCT = 0x3A
NV_ERR_NO_MEMORY = 0x51
NV_ERR_NOT_SUPPORTED = 0x56
NV_ERR_OBJECT_NOT_FOUND = 0x57
NV_ERR_TIMEOUT = 0x65
NV_WARN_NOTHING_TO_DO = 0x10006

# Parameters that RM_ALLOC and RM_CONTROL point to, the same in all releases.
NV0080_ALLOC_PARAMETERS = Struct(
    "NV0080_ALLOC_PARAMETERS",
    "IIIII4xQQQI4x",
    "deviceId hClientShare hTargetClient hTargetDevice flags vaSpaceSize vaStartInternal vaLimitInternal vaMode",
)
NV2080_ALLOC_PARAMETERS = Struct("NV2080_ALLOC_PARAMETERS", "I", "subDeviceId")
GPU_GET_ATTACHED_IDS = Struct("NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS", "32I", "gpuIds")
GPU_GET_ID_INFO_V2 = Struct(
    "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS",
    "IIIIIIIi",
    "gpuId gpuFlags deviceInstance subDeviceInstance sliStatus boardId gpuInstance numaId",
)
GPU_GET_GID_INFO = Struct("NV2080_CTRL_GPU_GET_GID_INFO_PARAMS", "III256s", "index flags length data")
FB_GET_INFO = Struct("NV2080_CTRL_FB_GET_INFO_PARAMS", "I4xQ", "fbInfoListSize fbInfoList")
FB_INFO = Struct("NV2080_CTRL_FB_INFO", "II", "index data")
GPU_MAPPING_ATTRIBUTES = Struct(
    "UvmGpuMappingAttributes",
    "16sIIIII",
    "gpuUuid.uuid gpuMappingType gpuCachingType gpuFormatType gpuElementBits gpuCompressionType",
)
"""One element of ``perGpuAttributes``."""

_VASPACE = "index flags vaSize vaStartInternal vaLimitInternal bigPageSize vaBase"
_MEMORY = (
    "owner type flags width height pitch attr attr2 format comprCovg zcullCovg "
    "rangeLo rangeHi size alignment offset limit address ctagOffset hVASpace internalflags tag"
)
_VERSION = "driverVersionBuffer versionBuffer titleBuffer changelistNumber officialChangelistNumber"
_VERSION_560 = _VERSION.replace("titleBuffer", "driverBranch titleBuffer")
_RM_ALLOC = "hRoot hObjectParent hObjectNew hClass pAllocParms"
_MAP_DMA = "hClient hDevice hDma hMemory offset length flags"
_UNMAP_DMA = "hClient hDevice hDma hMemory flags dmaOffset"
_EXTERNAL = "base length offset perGpuAttributes gpuAttributesCount rmCtrlFd hClient hMemory rmStatus"

VERSIONED: dict[str, tuple[tuple[Release, Struct], ...]] = {
    # The same 32 bytes, so the number never told: the status moved.
    "NVOS21_PARAMETERS": (
        ((FIRST_MAJOR,), Struct("NVOS21_PARAMETERS", "IIIIQI4x", f"{_RM_ALLOC} status")),
        ((535,), Struct("NVOS21_PARAMETERS", "IIIIQII", f"{_RM_ALLOC} paramsSize status")),
    ),
    "NVOS64_PARAMETERS": (
        ((FIRST_MAJOR,), Struct("NVOS64_PARAMETERS", "IIIIQQII", f"{_RM_ALLOC} pRightsRequested flags status")),
        (
            (535,),
            Struct("NVOS64_PARAMETERS", "IIIIQQIII4x", f"{_RM_ALLOC} pRightsRequested paramsSize flags status"),
        ),
    ),
    "NVOS46_PARAMETERS": (
        ((FIRST_MAJOR,), Struct("NVOS46_PARAMETERS", "IIIIQQI4xQI4x", f"{_MAP_DMA} dmaOffset status")),
        ((580,), Struct("NVOS46_PARAMETERS", "IIIIQQIII4xQI4x", f"{_MAP_DMA} flags2 kindOverride dmaOffset status")),
    ),
    "NVOS47_PARAMETERS": (
        ((FIRST_MAJOR,), Struct("NVOS47_PARAMETERS", "IIIII4xQI4x", f"{_UNMAP_DMA} status")),
        ((550,), Struct("NVOS47_PARAMETERS", "IIIII4xQQI4x", f"{_UNMAP_DMA} size status")),
    ),
    "NV_VASPACE_ALLOCATION_PARAMETERS": (
        ((FIRST_MAJOR,), Struct("NV_VASPACE_ALLOCATION_PARAMETERS", "IIQQQI4xQ", _VASPACE)),
        ((580,), Struct("NV_VASPACE_ALLOCATION_PARAMETERS", "IIQQQI4xQI4x", f"{_VASPACE} pasid")),
    ),
    "NV_MEMORY_ALLOCATION_PARAMS": (
        ((FIRST_MAJOR,), Struct("NV_MEMORY_ALLOCATION_PARAMS", "IIIIIiIIIII4xQQQQQQQIIII", _MEMORY)),
        ((545,), Struct("NV_MEMORY_ALLOCATION_PARAMS", "IIIIIiIIIII4xQQQQQQQIIIIi4x", f"{_MEMORY} numaNode")),
    ),
    "NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_PARAMS": (
        ((FIRST_MAJOR,), Struct("NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_PARAMS", "256s256s256sII", _VERSION)),
        ((560,), Struct("NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_PARAMS", "256s256s256s256sII", _VERSION_560)),
    ),
    "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS": (
        ((FIRST_MAJOR,), Struct("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "QQQ1152sQiIII", _EXTERNAL)),
        ((550, 40, 53), Struct("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "QQQ9216sQiIII", _EXTERNAL)),
    ),
    "UVM_FREE_PARAMS": (
        ((FIRST_MAJOR,), Struct("UVM_FREE_PARAMS", "QQI4x", "base length rmStatus")),
        ((590,), Struct("UVM_FREE_PARAMS", "QI4x", "base rmStatus")),
    ),
}
"""Structures that changed: (first release, layout), oldest first."""


class Calls(NamedTuple):
    """The calls of one release. ``mm_initialize`` is None before 535, which has no such call."""

    release: Release
    register_fd: Ioctl
    check_version: Ioctl
    card_info: Ioctl
    rm_alloc: Ioctl
    rm_alloc_short: Ioctl
    rm_alloc_memory: Ioctl
    rm_free: Ioctl
    rm_control: Ioctl
    rm_dup_object: Ioctl
    rm_map_memory: Ioctl
    rm_unmap_memory: Ioctl
    rm_map_memory_dma: Ioctl
    rm_unmap_memory_dma: Ioctl
    uvm_initialize: Ioctl
    uvm_deinitialize: Ioctl
    uvm_mm_initialize: Ioctl | None
    uvm_register_gpu: Ioctl
    uvm_unregister_gpu: Ioctl
    uvm_register_gpu_vaspace: Ioctl
    uvm_unregister_gpu_vaspace: Ioctl
    uvm_create_external_range: Ioctl
    uvm_map_external_allocation: Ioctl
    uvm_unmap_external: Ioctl
    uvm_free: Ioctl

    def struct(self, name: str) -> Struct:
        """The layout of a structure of :data:`VERSIONED` in this release."""
        return layout(name, self.release)


REGISTER_FD = iowr("NV_ESC_REGISTER_FD", "F", 0xC9, Struct("nv_ioctl_register_fd_t", "i", "ctl_fd"))
CHECK_VERSION = iowr(
    "NV_ESC_CHECK_VERSION_STR", "F", 0xD2, Struct("nv_ioctl_rm_api_version_t", "II64s", "cmd reply versionString")
)
# One card; for n of them the size in the number is n times as large.
CARD_INFO = iowr(
    "NV_ESC_CARD_INFO",
    "F",
    0xC8,
    Struct(
        "nv_ioctl_card_info_t",
        "B3xIBBB1xHHIH2xQQQQI10s2x",
        "valid pci_info.domain pci_info.bus pci_info.slot pci_info.function pci_info.vendor_id pci_info.device_id "
        "gpu_id interrupt_line reg_address reg_size fb_address fb_size minor_number dev_name",
    ),
)
RM_ALLOC_MEMORY = iowr(
    "NV_ESC_RM_ALLOC_MEMORY",
    "F",
    0x27,
    Struct(
        "nv_ioctl_nvos02_parameters_with_fd",
        "IIIII4xQQI4xi4x",
        "params.hRoot params.hObjectParent params.hObjectNew params.hClass params.flags params.pMemory params.limit "
        "params.status fd",
    ),
)
RM_FREE = iowr(
    "NV_ESC_RM_FREE", "F", 0x29, Struct("NVOS00_PARAMETERS", "IIII", "hRoot hObjectParent hObjectOld status")
)
RM_CONTROL = iowr(
    "NV_ESC_RM_CONTROL",
    "F",
    0x2A,
    Struct("NVOS54_PARAMETERS", "IIIIQII", "hClient hObject cmd flags params paramsSize status"),
)
RM_DUP_OBJECT = iowr(
    "NV_ESC_RM_DUP_OBJECT",
    "F",
    0x34,
    Struct("NVOS55_PARAMETERS", "IIIIIII", "hClient hParent hObject hClientSrc hObjectSrc flags status"),
)
RM_MAP_MEMORY = iowr(
    "NV_ESC_RM_MAP_MEMORY",
    "F",
    0x4E,
    Struct(
        "nv_ioctl_nvos33_parameters_with_fd",
        "III4xQQQIIi4x",
        "params.hClient params.hDevice params.hMemory params.offset params.length params.pLinearAddress "
        "params.status params.flags fd",
    ),
)
# pLinearAddress is what RM_MAP_MEMORY returned, not where the mapping lies in this process.
RM_UNMAP_MEMORY = iowr(
    "NV_ESC_RM_UNMAP_MEMORY",
    "F",
    0x4F,
    Struct("NVOS34_PARAMETERS", "III4xQII", "hClient hDevice hMemory pLinearAddress status flags"),
)
UVM_INITIALIZE = plain("UVM_INITIALIZE", 0x30000001, Struct("UVM_INITIALIZE_PARAMS", "QI4x", "flags rmStatus"))
# Answers 0 and does nothing else: the address space goes with the file.
UVM_DEINITIALIZE = plain("UVM_DEINITIALIZE", 0x30000002)
UVM_MM_INITIALIZE = plain("UVM_MM_INITIALIZE", 75, Struct("UVM_MM_INITIALIZE_PARAMS", "iI", "uvmFd rmStatus"))
UVM_REGISTER_GPU = plain(
    "UVM_REGISTER_GPU",
    37,
    Struct(
        "UVM_REGISTER_GPU_PARAMS",
        "16sB3xiiIII",
        "gpu_uuid.uuid numaEnabled numaNodeId rmCtrlFd hClient hSmcPartRef rmStatus",
    ),
)
UVM_UNREGISTER_GPU = plain(
    "UVM_UNREGISTER_GPU", 38, Struct("UVM_UNREGISTER_GPU_PARAMS", "16sI", "gpu_uuid.uuid rmStatus")
)
UVM_REGISTER_GPU_VASPACE = plain(
    "UVM_REGISTER_GPU_VASPACE",
    25,
    Struct("UVM_REGISTER_GPU_VASPACE_PARAMS", "16siIII", "gpuUuid.uuid rmCtrlFd hClient hVaSpace rmStatus"),
)
UVM_UNREGISTER_GPU_VASPACE = plain(
    "UVM_UNREGISTER_GPU_VASPACE", 26, Struct("UVM_UNREGISTER_GPU_VASPACE_PARAMS", "16sI", "gpuUuid.uuid rmStatus")
)
UVM_CREATE_EXTERNAL_RANGE = plain(
    "UVM_CREATE_EXTERNAL_RANGE", 73, Struct("UVM_CREATE_EXTERNAL_RANGE_PARAMS", "QQI4x", "base length rmStatus")
)
UVM_UNMAP_EXTERNAL = plain(
    "UVM_UNMAP_EXTERNAL", 66, Struct("UVM_UNMAP_EXTERNAL_PARAMS", "QQ16sI4x", "base length gpuUuid.uuid rmStatus")
)


_ERRORS = """
BROKEN_FB BUFFER_TOO_SMALL BUSY_RETRY CALLBACK_NOT_SCHEDULED CARD_NOT_PRESENT CYCLE_DETECTED DMA_IN_USE
DMA_MEM_NOT_LOCKED DMA_MEM_NOT_UNLOCKED DUAL_LINK_INUSE ECC_ERROR FIFO_BAD_ACCESS FREQ_NOT_SUPPORTED
GPU_DMA_NOT_INITIALIZED GPU_IS_LOST GPU_IN_FULLCHIP_RESET GPU_NOT_FULL_POWER GPU_UUID_NOT_FOUND HOT_SWITCH I2C_ERROR
I2C_SPEED_TOO_HIGH ILLEGAL_ACTION IN_USE INFLATE_COMPRESSED_DATA_FAILED INSERT_DUPLICATE_NAME INSUFFICIENT_RESOURCES
INSUFFICIENT_PERMISSIONS INSUFFICIENT_POWER INVALID_ACCESS_TYPE INVALID_ADDRESS INVALID_ARGUMENT INVALID_BASE
INVALID_CHANNEL INVALID_CLASS INVALID_CLIENT INVALID_COMMAND INVALID_DATA INVALID_DEVICE INVALID_DMA_SPECIFIER
INVALID_EVENT INVALID_FLAGS INVALID_FUNCTION INVALID_HEAP INVALID_INDEX INVALID_IRQ_LEVEL INVALID_LIMIT
INVALID_LOCK_STATE INVALID_METHOD INVALID_OBJECT INVALID_OBJECT_BUFFER INVALID_OBJECT_HANDLE INVALID_OBJECT_NEW
INVALID_OBJECT_OLD INVALID_OBJECT_PARENT INVALID_OFFSET INVALID_OPERATION INVALID_OWNER INVALID_PARAM_STRUCT
INVALID_PARAMETER INVALID_PATH INVALID_POINTER INVALID_REGISTRY_KEY INVALID_REQUEST INVALID_STATE
INVALID_STRING_LENGTH INVALID_READ INVALID_WRITE INVALID_XLATE IRQ_NOT_FIRING IRQ_EDGE_TRIGGERED
MEMORY_TRAINING_FAILED MISMATCHED_SLAVE MISMATCHED_TARGET MISSING_TABLE_ENTRY MODULE_LOAD_FAILED MORE_DATA_AVAILABLE
MORE_PROCESSING_REQUIRED MULTIPLE_MEMORY_TYPES NO_FREE_FIFOS NO_INTR_PENDING NO_MEMORY NO_SUCH_DOMAIN NO_VALID_PATH
NOT_COMPATIBLE NOT_READY NOT_SUPPORTED OBJECT_NOT_FOUND OBJECT_TYPE_MISMATCH OPERATING_SYSTEM OTHER_DEVICE_FOUND
OUT_OF_RANGE OVERLAPPING_UVM_COMMIT PAGE_TABLE_NOT_AVAIL PID_NOT_FOUND PROTECTION_FAULT RC_ERROR REJECTED_VBIOS
RESET_REQUIRED STATE_IN_USE SIGNAL_PENDING TIMEOUT TIMEOUT_RETRY TOO_MANY_PRIMARIES UVM_ADDRESS_IN_USE
MAX_SESSION_LIMIT_REACHED LIB_RM_VERSION_MISMATCH PRIV_SEC_VIOLATION GPU_IN_DEBUG_MODE FEATURE_NOT_ENABLED
RESOURCE_LOST PMU_NOT_READY FLCN_ERROR FATAL_ERROR MEMORY_ERROR INVALID_LICENSE NVLINK_INIT_ERROR
NVLINK_MINION_ERROR NVLINK_CLOCK_ERROR NVLINK_TRAINING_ERROR NVLINK_CONFIGURATION_ERROR RISCV_ERROR
FABRIC_MANAGER_NOT_PRESENT ALREADY_SIGNALLED QUEUE_TASK_SLOT_NOT_AVAILABLE KEY_ROTATION_IN_PROGRESS
TEST_ONLY_CODE_NOT_ENABLED SECURE_BOOT_FAILED INSUFFICIENT_ZBC_ENTRY NVLINK_FABRIC_NOT_READY NVLINK_FABRIC_FAILURE
GPU_MEMORY_ONLINING_FAILURE REDUCTION_MANAGER_NOT_AVAILABLE THRESHOLD_CROSSED RESOURCE_RETIREMENT_ERROR
FABRIC_STATE_OUT_OF_SYNC BUFFER_FULL BUFFER_EMPTY MC_FLA_OFFSET_TABLE_FULL OPERATION_ABORTED DMA_XFER_FAILED
"""
"""NV_ERR_*, counted from 1."""
_WARNINGS = """
HOT_SWITCH INCORRECT_PERFMON_DATA MISMATCHED_SLAVE MISMATCHED_TARGET MORE_PROCESSING_REQUIRED NOTHING_TO_DO
NULL_OBJECT OUT_OF_RANGE THRESHOLD_CROSSED
"""
"""NV_WARN_*, counted from 0x10001."""


def status_name(status: int) -> str:
    """NV_ERR_NO_MEMORY for 0x51; the number itself for one that 595 does not know."""
    if status in (NV_OK, 0xFFFF):
        return "NV_ERR_GENERIC" if status else "NV_OK"
    prefix, names = ("NV_WARN_", _WARNINGS.split()) if status >> 16 == 1 else ("NV_ERR_", _ERRORS.split())
    place = status & 0xFFFF
    if status >> 17 or not 1 <= place <= len(names):
        return f"NV_STATUS {status:#x}"
    return prefix + names[place - 1]


def parse_release(text: str) -> Release:
    """ "550.40.07" -> (550, 40, 7). Raises AbiError for text that is no release."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6}){0,3}", text, re.ASCII):
        raise AbiError(f"not a release of the NVIDIA driver: {text[:40]!r}")
    return tuple(int(part) for part in text.split("."))


def layout(name: str, release: Release) -> Struct:
    """The layout of a structure of :data:`VERSIONED` in a release. Raises AbiError outside 525 to 595."""
    if not (release and FIRST_MAJOR <= release[0] <= LAST_MAJOR):
        shown = ".".join(str(part) for part in release)
        raise AbiError(
            f"NVIDIA driver {shown}: structures are known for {FIRST_MAJOR} to {LAST_MAJOR}; a wrong size is refused"
        )
    return next(found for since, found in reversed(VERSIONED[name]) if release >= since)


def calls(release: Release) -> Calls:
    """All calls, as the kernel module of this release expects them. Raises AbiError outside 525 to 595."""
    return Calls(
        release=release,
        register_fd=REGISTER_FD,
        check_version=CHECK_VERSION,
        card_info=CARD_INFO,
        rm_alloc=iowr("NV_ESC_RM_ALLOC", "F", 0x2B, layout("NVOS64_PARAMETERS", release)),
        rm_alloc_short=iowr("NV_ESC_RM_ALLOC", "F", 0x2B, layout("NVOS21_PARAMETERS", release)),
        rm_alloc_memory=RM_ALLOC_MEMORY,
        rm_free=RM_FREE,
        rm_control=RM_CONTROL,
        rm_dup_object=RM_DUP_OBJECT,
        rm_map_memory=RM_MAP_MEMORY,
        rm_unmap_memory=RM_UNMAP_MEMORY,
        rm_map_memory_dma=iowr("NV_ESC_RM_MAP_MEMORY_DMA", "F", 0x57, layout("NVOS46_PARAMETERS", release)),
        rm_unmap_memory_dma=iowr("NV_ESC_RM_UNMAP_MEMORY_DMA", "F", 0x58, layout("NVOS47_PARAMETERS", release)),
        uvm_initialize=UVM_INITIALIZE,
        uvm_deinitialize=UVM_DEINITIALIZE,
        uvm_mm_initialize=UVM_MM_INITIALIZE if release >= (535,) else None,
        uvm_register_gpu=UVM_REGISTER_GPU,
        uvm_unregister_gpu=UVM_UNREGISTER_GPU,
        uvm_register_gpu_vaspace=UVM_REGISTER_GPU_VASPACE,
        uvm_unregister_gpu_vaspace=UVM_UNREGISTER_GPU_VASPACE,
        uvm_create_external_range=UVM_CREATE_EXTERNAL_RANGE,
        uvm_map_external_allocation=plain(
            "UVM_MAP_EXTERNAL_ALLOCATION", 33, layout("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", release)
        ),
        uvm_unmap_external=UVM_UNMAP_EXTERNAL,
        uvm_free=plain("UVM_FREE", 34, layout("UVM_FREE_PARAMS", release)),
    )


def uvm_buffer(packed: bytearray, fill: int = 0) -> bytearray:
    """``packed`` at the start of a buffer that no UVM call outgrows, the rest filled with ``fill``.

    With a ``fill`` that is no status the caller sees how far the kernel wrote. Raises ValueError for a structure that
    is larger than the buffer.
    """
    if len(packed) > UVM_BUFFER_BYTES:
        raise ValueError(f"{len(packed)} bytes, the buffer has {UVM_BUFFER_BYTES}")
    return packed + bytes([fill]) * (UVM_BUFFER_BYTES - len(packed))
