from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNKNOWN: _ClassVar[DataType]
    FP32: _ClassVar[DataType]
    FP16: _ClassVar[DataType]
    BF16: _ClassVar[DataType]
    INT8: _ClassVar[DataType]
    INT32: _ClassVar[DataType]
    UINT8: _ClassVar[DataType]

class OpType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OP_TYPE_UNKNOWN: _ClassVar[OpType]
    MATMUL: _ClassVar[OpType]
    CONV2D: _ClassVar[OpType]
    LAYERNORM: _ClassVar[OpType]
    RELU: _ClassVar[OpType]
    ADD: _ClassVar[OpType]
    SOFTMAX: _ClassVar[OpType]
    RMSNORM: _ClassVar[OpType]
    ROPE: _ClassVar[OpType]
    SILU_AND_MUL: _ClassVar[OpType]
    ATTENTION_PREFILL: _ClassVar[OpType]
    ATTENTION_DECODE: _ClassVar[OpType]
    GROUPED_GEMM: _ClassVar[OpType]
    TOPK_SOFTMAX: _ClassVar[OpType]
    MOE_ALIGN: _ClassVar[OpType]
    COPY: _ClassVar[OpType]
DATA_TYPE_UNKNOWN: DataType
FP32: DataType
FP16: DataType
BF16: DataType
INT8: DataType
INT32: DataType
UINT8: DataType
OP_TYPE_UNKNOWN: OpType
MATMUL: OpType
CONV2D: OpType
LAYERNORM: OpType
RELU: OpType
ADD: OpType
SOFTMAX: OpType
RMSNORM: OpType
ROPE: OpType
SILU_AND_MUL: OpType
ATTENTION_PREFILL: OpType
ATTENTION_DECODE: OpType
GROUPED_GEMM: OpType
TOPK_SOFTMAX: OpType
MOE_ALIGN: OpType
COPY: OpType

class Status(_message.Message):
    __slots__ = ("code", "message", "field", "kind", "hint")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    field: str
    kind: str
    hint: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., kind: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class TensorDesc(_message.Message):
    __slots__ = ("tensor_id", "shape", "data_type", "byte_size", "device_addr", "strides")
    TENSOR_ID_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    BYTE_SIZE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ADDR_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    tensor_id: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    data_type: DataType
    byte_size: int
    device_addr: int
    strides: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tensor_id: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ..., data_type: _Optional[_Union[DataType, str]] = ..., byte_size: _Optional[int] = ..., device_addr: _Optional[int] = ..., strides: _Optional[_Iterable[int]] = ...) -> None: ...

class OpRequest(_message.Message):
    __slots__ = ("session_id", "request_id", "op_type", "inputs", "outputs", "attrs", "submit")
    class AttrsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ATTRS_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    request_id: int
    op_type: OpType
    inputs: _containers.RepeatedCompositeFieldContainer[TensorDesc]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorDesc]
    attrs: _containers.ScalarMap[str, str]
    submit: bool
    def __init__(self, session_id: _Optional[int] = ..., request_id: _Optional[int] = ..., op_type: _Optional[_Union[OpType, str]] = ..., inputs: _Optional[_Iterable[_Union[TensorDesc, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorDesc, _Mapping]]] = ..., attrs: _Optional[_Mapping[str, str]] = ..., submit: bool = ...) -> None: ...

class HardwareInstruction(_message.Message):
    __slots__ = ("kernel_id", "instruction_blob", "launch_config", "param_addrs")
    KERNEL_ID_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_BLOB_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_CONFIG_FIELD_NUMBER: _ClassVar[int]
    PARAM_ADDRS_FIELD_NUMBER: _ClassVar[int]
    kernel_id: int
    instruction_blob: bytes
    launch_config: int
    param_addrs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kernel_id: _Optional[int] = ..., instruction_blob: _Optional[bytes] = ..., launch_config: _Optional[int] = ..., param_addrs: _Optional[_Iterable[int]] = ...) -> None: ...

class OpResponse(_message.Message):
    __slots__ = ("status", "instructions", "translate_latency_us", "request_id", "outputs", "fence", "cache_hit", "stage_ns")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    TRANSLATE_LATENCY_US_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_FIELD_NUMBER: _ClassVar[int]
    STAGE_NS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    instructions: _containers.RepeatedCompositeFieldContainer[HardwareInstruction]
    translate_latency_us: int
    request_id: int
    outputs: _containers.RepeatedCompositeFieldContainer[TensorDesc]
    fence: int
    cache_hit: bool
    stage_ns: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., instructions: _Optional[_Iterable[_Union[HardwareInstruction, _Mapping]]] = ..., translate_latency_us: _Optional[int] = ..., request_id: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[TensorDesc, _Mapping]]] = ..., fence: _Optional[int] = ..., cache_hit: bool = ..., stage_ns: _Optional[_Iterable[int]] = ...) -> None: ...

class BatchOpRequest(_message.Message):
    __slots__ = ("session_id", "ops")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    ops: _containers.RepeatedCompositeFieldContainer[OpRequest]
    def __init__(self, session_id: _Optional[int] = ..., ops: _Optional[_Iterable[_Union[OpRequest, _Mapping]]] = ...) -> None: ...

class BatchOpResponse(_message.Message):
    __slots__ = ("status", "responses")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    responses: _containers.RepeatedCompositeFieldContainer[OpResponse]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., responses: _Optional[_Iterable[_Union[OpResponse, _Mapping]]] = ...) -> None: ...

class HandshakeRequest(_message.Message):
    __slots__ = ("abi", "client")
    ABI_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    abi: int
    client: str
    def __init__(self, abi: _Optional[int] = ..., client: _Optional[str] = ...) -> None: ...

class HandshakeResponse(_message.Message):
    __slots__ = ("abi", "version", "features", "device", "simulated", "start_id", "message_limit", "ops", "keepalive_ms")
    ABI_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_MS_FIELD_NUMBER: _ClassVar[int]
    abi: int
    version: str
    features: _containers.RepeatedScalarFieldContainer[str]
    device: str
    simulated: bool
    start_id: int
    message_limit: int
    ops: _containers.RepeatedScalarFieldContainer[OpType]
    keepalive_ms: int
    def __init__(self, abi: _Optional[int] = ..., version: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., device: _Optional[str] = ..., simulated: bool = ..., start_id: _Optional[int] = ..., message_limit: _Optional[int] = ..., ops: _Optional[_Iterable[_Union[OpType, str]]] = ..., keepalive_ms: _Optional[int] = ...) -> None: ...

class CreateSessionRequest(_message.Message):
    __slots__ = ("client", "keepalive_ms", "queue_depth")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    client: str
    keepalive_ms: int
    queue_depth: int
    def __init__(self, client: _Optional[str] = ..., keepalive_ms: _Optional[int] = ..., queue_depth: _Optional[int] = ...) -> None: ...

class CreateSessionResponse(_message.Message):
    __slots__ = ("status", "session_id", "keepalive_ms", "queue_depth")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    status: Status
    session_id: int
    keepalive_ms: int
    queue_depth: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., session_id: _Optional[int] = ..., keepalive_ms: _Optional[int] = ..., queue_depth: _Optional[int] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    def __init__(self, session_id: _Optional[int] = ...) -> None: ...

class DestroySessionResponse(_message.Message):
    __slots__ = ("status", "freed_bytes", "freed_tensors")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREED_TENSORS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    freed_bytes: int
    freed_tensors: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., freed_bytes: _Optional[int] = ..., freed_tensors: _Optional[int] = ...) -> None: ...

class KeepAliveResponse(_message.Message):
    __slots__ = ("status", "remaining_ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    remaining_ms: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., remaining_ms: _Optional[int] = ...) -> None: ...

class AllocTensorRequest(_message.Message):
    __slots__ = ("session_id", "tensor")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    tensor: TensorDesc
    def __init__(self, session_id: _Optional[int] = ..., tensor: _Optional[_Union[TensorDesc, _Mapping]] = ...) -> None: ...

class AllocTensorResponse(_message.Message):
    __slots__ = ("status", "tensor")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    status: Status
    tensor: TensorDesc
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., tensor: _Optional[_Union[TensorDesc, _Mapping]] = ...) -> None: ...

class FreeTensorRequest(_message.Message):
    __slots__ = ("session_id", "tensor_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TENSOR_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    tensor_id: int
    def __init__(self, session_id: _Optional[int] = ..., tensor_id: _Optional[int] = ...) -> None: ...

class FreeTensorResponse(_message.Message):
    __slots__ = ("status", "freed_bytes")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    freed_bytes: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., freed_bytes: _Optional[int] = ...) -> None: ...

class TensorChunk(_message.Message):
    __slots__ = ("session_id", "tensor_id", "offset", "data", "crc32c", "last")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TENSOR_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    tensor_id: int
    offset: int
    data: bytes
    crc32c: int
    last: bool
    def __init__(self, session_id: _Optional[int] = ..., tensor_id: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., crc32c: _Optional[int] = ..., last: bool = ...) -> None: ...

class StreamAck(_message.Message):
    __slots__ = ("status", "bytes", "chunks")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    bytes: int
    chunks: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., bytes: _Optional[int] = ..., chunks: _Optional[int] = ...) -> None: ...

class ReadTensorRequest(_message.Message):
    __slots__ = ("session_id", "tensor_id", "offset", "length", "chunk_bytes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TENSOR_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    tensor_id: int
    offset: int
    length: int
    chunk_bytes: int
    def __init__(self, session_id: _Optional[int] = ..., tensor_id: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., chunk_bytes: _Optional[int] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("session_id", "instructions", "ops")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    instructions: _containers.RepeatedCompositeFieldContainer[HardwareInstruction]
    ops: _containers.RepeatedCompositeFieldContainer[OpRequest]
    def __init__(self, session_id: _Optional[int] = ..., instructions: _Optional[_Iterable[_Union[HardwareInstruction, _Mapping]]] = ..., ops: _Optional[_Iterable[_Union[OpRequest, _Mapping]]] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("status", "fence", "fences", "responses")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    fence: int
    fences: _containers.RepeatedScalarFieldContainer[int]
    responses: _containers.RepeatedCompositeFieldContainer[OpResponse]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., fence: _Optional[int] = ..., fences: _Optional[_Iterable[int]] = ..., responses: _Optional[_Iterable[_Union[OpResponse, _Mapping]]] = ...) -> None: ...

class WaitRequest(_message.Message):
    __slots__ = ("session_id", "fence", "timeout_us")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    fence: int
    timeout_us: int
    def __init__(self, session_id: _Optional[int] = ..., fence: _Optional[int] = ..., timeout_us: _Optional[int] = ...) -> None: ...

class WaitResponse(_message.Message):
    __slots__ = ("status", "passed", "passed_fence")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    PASSED_FENCE_FIELD_NUMBER: _ClassVar[int]
    status: Status
    passed: bool
    passed_fence: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., passed: bool = ..., passed_fence: _Optional[int] = ...) -> None: ...

class DataChannelRequest(_message.Message):
    __slots__ = ("session_id", "chunk_bytes", "slots")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    chunk_bytes: int
    slots: int
    def __init__(self, session_id: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., slots: _Optional[int] = ...) -> None: ...

class DataChannelResponse(_message.Message):
    __slots__ = ("status", "socket", "token", "chunk_bytes", "slots")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    socket: str
    token: bytes
    chunk_bytes: int
    slots: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., socket: _Optional[str] = ..., token: _Optional[bytes] = ..., chunk_bytes: _Optional[int] = ..., slots: _Optional[int] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("session_id", "name", "ops")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    name: str
    ops: _containers.RepeatedCompositeFieldContainer[OpRequest]
    def __init__(self, session_id: _Optional[int] = ..., name: _Optional[str] = ..., ops: _Optional[_Iterable[_Union[OpRequest, _Mapping]]] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("status", "list_id", "responses", "instructions", "recorded", "cache_hit")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LIST_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_FIELD_NUMBER: _ClassVar[int]
    status: Status
    list_id: int
    responses: _containers.RepeatedCompositeFieldContainer[OpResponse]
    instructions: int
    recorded: bool
    cache_hit: bool
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., list_id: _Optional[int] = ..., responses: _Optional[_Iterable[_Union[OpResponse, _Mapping]]] = ..., instructions: _Optional[int] = ..., recorded: bool = ..., cache_hit: bool = ...) -> None: ...

class ReplayRequest(_message.Message):
    __slots__ = ("session_id", "list_id", "retranslate")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LIST_ID_FIELD_NUMBER: _ClassVar[int]
    RETRANSLATE_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    list_id: int
    retranslate: bool
    def __init__(self, session_id: _Optional[int] = ..., list_id: _Optional[int] = ..., retranslate: bool = ...) -> None: ...

class ReplayResponse(_message.Message):
    __slots__ = ("status", "fence", "retranslated")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    RETRANSLATED_FIELD_NUMBER: _ClassVar[int]
    status: Status
    fence: int
    retranslated: str
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., fence: _Optional[int] = ..., retranslated: _Optional[str] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("session_id", "list_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LIST_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    list_id: int
    def __init__(self, session_id: _Optional[int] = ..., list_id: _Optional[int] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class TelemetryRequest(_message.Message):
    __slots__ = ("period_ms", "count")
    PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    period_ms: int
    count: int
    def __init__(self, period_ms: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class PoolLevel(_message.Message):
    __slots__ = ("in_use_bytes", "cached_bytes", "asked_bytes", "high_water_bytes", "hits", "misses", "fragmentation")
    IN_USE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ASKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATER_BYTES_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTATION_FIELD_NUMBER: _ClassVar[int]
    in_use_bytes: int
    cached_bytes: int
    asked_bytes: int
    high_water_bytes: int
    hits: int
    misses: int
    fragmentation: float
    def __init__(self, in_use_bytes: _Optional[int] = ..., cached_bytes: _Optional[int] = ..., asked_bytes: _Optional[int] = ..., high_water_bytes: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., fragmentation: _Optional[float] = ...) -> None: ...

class SpaceRange(_message.Message):
    __slots__ = ("start", "bytes", "reserved")
    START_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    start: int
    bytes: int
    reserved: bool
    def __init__(self, start: _Optional[int] = ..., bytes: _Optional[int] = ..., reserved: bool = ...) -> None: ...

class SpaceLevel(_message.Message):
    __slots__ = ("base", "size_bytes", "reserved_bytes", "mapped_bytes", "free_bytes", "largest_hole_bytes", "ranges")
    BASE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_HOLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    base: int
    size_bytes: int
    reserved_bytes: int
    mapped_bytes: int
    free_bytes: int
    largest_hole_bytes: int
    ranges: _containers.RepeatedCompositeFieldContainer[SpaceRange]
    def __init__(self, base: _Optional[int] = ..., size_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., mapped_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., largest_hole_bytes: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[SpaceRange, _Mapping]]] = ...) -> None: ...

class SizeClass(_message.Message):
    __slots__ = ("bytes", "allocations", "frees")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    FREES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    allocations: int
    frees: int
    def __init__(self, bytes: _Optional[int] = ..., allocations: _Optional[int] = ..., frees: _Optional[int] = ...) -> None: ...

class OpCount(_message.Message):
    __slots__ = ("op", "translated", "cache_hits", "launches", "errors", "allocations", "frees")
    OP_FIELD_NUMBER: _ClassVar[int]
    TRANSLATED_FIELD_NUMBER: _ClassVar[int]
    CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    LAUNCHES_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    FREES_FIELD_NUMBER: _ClassVar[int]
    op: str
    translated: int
    cache_hits: int
    launches: int
    errors: int
    allocations: int
    frees: int
    def __init__(self, op: _Optional[str] = ..., translated: _Optional[int] = ..., cache_hits: _Optional[int] = ..., launches: _Optional[int] = ..., errors: _Optional[int] = ..., allocations: _Optional[int] = ..., frees: _Optional[int] = ...) -> None: ...

class ListLevel(_message.Message):
    __slots__ = ("lists", "bytes", "pinned", "hits", "replays", "ended")
    class EndedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    LISTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    REPLAYS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    lists: int
    bytes: int
    pinned: int
    hits: int
    replays: int
    ended: _containers.ScalarMap[str, int]
    def __init__(self, lists: _Optional[int] = ..., bytes: _Optional[int] = ..., pinned: _Optional[int] = ..., hits: _Optional[int] = ..., replays: _Optional[int] = ..., ended: _Optional[_Mapping[str, int]] = ...) -> None: ...

class SessionLevel(_message.Message):
    __slots__ = ("session_id", "client", "age_ms", "tensors", "pool", "queue_depth", "in_flight", "queue_state", "cached_translations", "submitted_fence", "passed_fence", "spaces", "flown_ns", "busy_ns", "stalled_ns", "ops", "size_classes", "lists")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_STATE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TRANSLATIONS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FENCE_FIELD_NUMBER: _ClassVar[int]
    PASSED_FENCE_FIELD_NUMBER: _ClassVar[int]
    SPACES_FIELD_NUMBER: _ClassVar[int]
    FLOWN_NS_FIELD_NUMBER: _ClassVar[int]
    BUSY_NS_FIELD_NUMBER: _ClassVar[int]
    STALLED_NS_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    SIZE_CLASSES_FIELD_NUMBER: _ClassVar[int]
    LISTS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    client: str
    age_ms: int
    tensors: int
    pool: PoolLevel
    queue_depth: int
    in_flight: int
    queue_state: str
    cached_translations: int
    submitted_fence: int
    passed_fence: int
    spaces: _containers.RepeatedCompositeFieldContainer[SpaceLevel]
    flown_ns: int
    busy_ns: int
    stalled_ns: int
    ops: _containers.RepeatedCompositeFieldContainer[OpCount]
    size_classes: _containers.RepeatedCompositeFieldContainer[SizeClass]
    lists: ListLevel
    def __init__(self, session_id: _Optional[int] = ..., client: _Optional[str] = ..., age_ms: _Optional[int] = ..., tensors: _Optional[int] = ..., pool: _Optional[_Union[PoolLevel, _Mapping]] = ..., queue_depth: _Optional[int] = ..., in_flight: _Optional[int] = ..., queue_state: _Optional[str] = ..., cached_translations: _Optional[int] = ..., submitted_fence: _Optional[int] = ..., passed_fence: _Optional[int] = ..., spaces: _Optional[_Iterable[_Union[SpaceLevel, _Mapping]]] = ..., flown_ns: _Optional[int] = ..., busy_ns: _Optional[int] = ..., stalled_ns: _Optional[int] = ..., ops: _Optional[_Iterable[_Union[OpCount, _Mapping]]] = ..., size_classes: _Optional[_Iterable[_Union[SizeClass, _Mapping]]] = ..., lists: _Optional[_Union[ListLevel, _Mapping]] = ...) -> None: ...

class TelemetrySample(_message.Message):
    __slots__ = ("taken_ns", "uptime_ms", "sessions", "ops", "size_classes", "sessions_created", "sessions_expired", "held_bytes", "limit_bytes", "lists")
    TAKEN_NS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    SIZE_CLASSES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_CREATED_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LISTS_FIELD_NUMBER: _ClassVar[int]
    taken_ns: int
    uptime_ms: int
    sessions: _containers.RepeatedCompositeFieldContainer[SessionLevel]
    ops: _containers.RepeatedCompositeFieldContainer[OpCount]
    size_classes: _containers.RepeatedCompositeFieldContainer[SizeClass]
    sessions_created: int
    sessions_expired: int
    held_bytes: int
    limit_bytes: int
    lists: ListLevel
    def __init__(self, taken_ns: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., sessions: _Optional[_Iterable[_Union[SessionLevel, _Mapping]]] = ..., ops: _Optional[_Iterable[_Union[OpCount, _Mapping]]] = ..., size_classes: _Optional[_Iterable[_Union[SizeClass, _Mapping]]] = ..., sessions_created: _Optional[int] = ..., sessions_expired: _Optional[int] = ..., held_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., lists: _Optional[_Union[ListLevel, _Mapping]] = ...) -> None: ...
