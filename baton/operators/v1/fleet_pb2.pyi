from baton.worker.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ("interval_ms", "include_steps")
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STEPS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    include_steps: bool
    def __init__(self, interval_ms: _Optional[int] = ..., include_steps: bool = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("router_id", "uptime_s", "queue", "workers", "counters", "starting", "steps")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    STARTING_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    uptime_s: float
    queue: QueueStatus
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    counters: Counters
    starting: _containers.RepeatedCompositeFieldContainer[StartingWorker]
    steps: _containers.RepeatedCompositeFieldContainer[WorkerStep]
    def __init__(self, router_id: _Optional[str] = ..., uptime_s: _Optional[float] = ..., queue: _Optional[_Union[QueueStatus, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., starting: _Optional[_Iterable[_Union[StartingWorker, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[WorkerStep, _Mapping]]] = ...) -> None: ...

class WorkerStep(_message.Message):
    __slots__ = ("worker_id", "step", "reported_at_s", "step_seconds", "num_decodes", "num_chunks", "chunk_tokens", "sequences")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REPORTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODES_FIELD_NUMBER: _ClassVar[int]
    NUM_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    step: int
    reported_at_s: float
    step_seconds: float
    num_decodes: int
    num_chunks: int
    chunk_tokens: int
    sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worker_id: _Optional[str] = ..., step: _Optional[int] = ..., reported_at_s: _Optional[float] = ..., step_seconds: _Optional[float] = ..., num_decodes: _Optional[int] = ..., num_chunks: _Optional[int] = ..., chunk_tokens: _Optional[int] = ..., sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class QueueStatus(_message.Message):
    __slots__ = ("waiting", "waiting_tokens", "capacity", "running_sessions", "redis_reachable", "waiting_interactive", "waiting_standard", "waiting_batch")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    REDIS_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    WAITING_INTERACTIVE_FIELD_NUMBER: _ClassVar[int]
    WAITING_STANDARD_FIELD_NUMBER: _ClassVar[int]
    WAITING_BATCH_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    waiting_tokens: int
    capacity: int
    running_sessions: int
    redis_reachable: bool
    waiting_interactive: int
    waiting_standard: int
    waiting_batch: int
    def __init__(self, waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., capacity: _Optional[int] = ..., running_sessions: _Optional[int] = ..., redis_reachable: bool = ..., waiting_interactive: _Optional[int] = ..., waiting_standard: _Optional[int] = ..., waiting_batch: _Optional[int] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker_id", "incarnation", "address", "role", "connected", "load", "num_blocks", "leased_blocks", "step_seconds", "cost_model", "dtype", "native_ops", "disk_blocks", "loadable_adapters", "loaded_adapters", "host_blocks")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEASED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COST_MODEL_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NATIVE_OPS_FIELD_NUMBER: _ClassVar[int]
    DISK_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LOADABLE_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    LOADED_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    address: str
    role: _worker_pb2.WorkerRole
    connected: bool
    load: _worker_pb2.WorkerLoad
    num_blocks: int
    leased_blocks: int
    step_seconds: float
    cost_model: _worker_pb2.CostModel
    dtype: str
    native_ops: bool
    disk_blocks: int
    loadable_adapters: int
    loaded_adapters: _containers.RepeatedScalarFieldContainer[str]
    host_blocks: int
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ..., role: _Optional[_Union[_worker_pb2.WorkerRole, str]] = ..., connected: bool = ..., load: _Optional[_Union[_worker_pb2.WorkerLoad, _Mapping]] = ..., num_blocks: _Optional[int] = ..., leased_blocks: _Optional[int] = ..., step_seconds: _Optional[float] = ..., cost_model: _Optional[_Union[_worker_pb2.CostModel, _Mapping]] = ..., dtype: _Optional[str] = ..., native_ops: bool = ..., disk_blocks: _Optional[int] = ..., loadable_adapters: _Optional[int] = ..., loaded_adapters: _Optional[_Iterable[str]] = ..., host_blocks: _Optional[int] = ...) -> None: ...

class StartingWorker(_message.Message):
    __slots__ = ("worker_id", "role", "phase", "done", "total", "silent_s")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    role: _worker_pb2.WorkerRole
    phase: str
    done: int
    total: int
    silent_s: float
    def __init__(self, worker_id: _Optional[str] = ..., role: _Optional[_Union[_worker_pb2.WorkerRole, str]] = ..., phase: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., silent_s: _Optional[float] = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("accepted", "refused", "finished", "failed", "cancelled", "relayed_tokens", "retried_attempts", "ttft_promises_kept", "ttft_promises_broken", "handed_over")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    RELAYED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETRIED_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TTFT_PROMISES_KEPT_FIELD_NUMBER: _ClassVar[int]
    TTFT_PROMISES_BROKEN_FIELD_NUMBER: _ClassVar[int]
    HANDED_OVER_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    refused: int
    finished: int
    failed: int
    cancelled: int
    relayed_tokens: int
    retried_attempts: int
    ttft_promises_kept: int
    ttft_promises_broken: int
    handed_over: int
    def __init__(self, accepted: _Optional[int] = ..., refused: _Optional[int] = ..., finished: _Optional[int] = ..., failed: _Optional[int] = ..., cancelled: _Optional[int] = ..., relayed_tokens: _Optional[int] = ..., retried_attempts: _Optional[int] = ..., ttft_promises_kept: _Optional[int] = ..., ttft_promises_broken: _Optional[int] = ..., handed_over: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("model_name", "architecture", "fingerprint", "block_size", "max_context_tokens", "placement", "version", "deterministic")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    architecture: str
    fingerprint: str
    block_size: int
    max_context_tokens: int
    placement: str
    version: str
    deterministic: bool
    def __init__(self, model_name: _Optional[str] = ..., architecture: _Optional[str] = ..., fingerprint: _Optional[str] = ..., block_size: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., placement: _Optional[str] = ..., version: _Optional[str] = ..., deterministic: bool = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("draining",)
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    draining: bool
    def __init__(self, draining: bool = ...) -> None: ...
