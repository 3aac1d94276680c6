from baton.v1 import generation_pb2 as _generation_pb2
from baton.worker.v1 import attempt_pb2 as _attempt_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReceiveKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECEIVE_KIND_UNSPECIFIED: _ClassVar[ReceiveKind]
    RECEIVE_KIND_PROMPT: _ClassVar[ReceiveKind]
    RECEIVE_KIND_AHEAD: _ClassVar[ReceiveKind]
    RECEIVE_KIND_STOPPED: _ClassVar[ReceiveKind]

class WorkerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_ROLE_UNSPECIFIED: _ClassVar[WorkerRole]
    WORKER_ROLE_PREFILL: _ClassVar[WorkerRole]
    WORKER_ROLE_DECODE: _ClassVar[WorkerRole]

class FailureReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_REASON_UNSPECIFIED: _ClassVar[FailureReason]
    FAILURE_REASON_REFUSED: _ClassVar[FailureReason]
    FAILURE_REASON_NO_BLOCKS: _ClassVar[FailureReason]
    FAILURE_REASON_HANDOFF: _ClassVar[FailureReason]
    FAILURE_REASON_INTERNAL: _ClassVar[FailureReason]
    FAILURE_REASON_DRAINING: _ClassVar[FailureReason]
    FAILURE_REASON_SUPERSEDED: _ClassVar[FailureReason]
    FAILURE_REASON_OUTPUT: _ClassVar[FailureReason]
    FAILURE_REASON_FENCED: _ClassVar[FailureReason]
RECEIVE_KIND_UNSPECIFIED: ReceiveKind
RECEIVE_KIND_PROMPT: ReceiveKind
RECEIVE_KIND_AHEAD: ReceiveKind
RECEIVE_KIND_STOPPED: ReceiveKind
WORKER_ROLE_UNSPECIFIED: WorkerRole
WORKER_ROLE_PREFILL: WorkerRole
WORKER_ROLE_DECODE: WorkerRole
FAILURE_REASON_UNSPECIFIED: FailureReason
FAILURE_REASON_REFUSED: FailureReason
FAILURE_REASON_NO_BLOCKS: FailureReason
FAILURE_REASON_HANDOFF: FailureReason
FAILURE_REASON_INTERNAL: FailureReason
FAILURE_REASON_DRAINING: FailureReason
FAILURE_REASON_SUPERSEDED: FailureReason
FAILURE_REASON_OUTPUT: FailureReason
FAILURE_REASON_FENCED: FailureReason

class WorkRequest(_message.Message):
    __slots__ = ("hello", "prefill", "receive", "decode", "cancel", "drain", "lend", "hand_over", "number")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    LEND_FIELD_NUMBER: _ClassVar[int]
    HAND_OVER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    prefill: Prefill
    receive: Receive
    decode: Decode
    cancel: Cancel
    drain: Drain
    lend: Lend
    hand_over: HandOver
    number: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., prefill: _Optional[_Union[Prefill, _Mapping]] = ..., receive: _Optional[_Union[Receive, _Mapping]] = ..., decode: _Optional[_Union[Decode, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., lend: _Optional[_Union[Lend, _Mapping]] = ..., hand_over: _Optional[_Union[HandOver, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("router_id",)
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    def __init__(self, router_id: _Optional[str] = ...) -> None: ...

class SequenceSpec(_message.Message):
    __slots__ = ("handle", "fence", "prompt_token_ids", "output_token_ids", "choices", "sampling", "stop", "cache_salt", "tpot_ms", "itl_ms", "bad_words", "grammar", "adapter", "prefix_source", "session_age_seconds", "reasoning_opens", "reasoning_closes", "traceparent")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    ITL_MS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PREFIX_SOURCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASONING_OPENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_CLOSES_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    fence: _attempt_pb2.Fence
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedScalarFieldContainer[int]
    sampling: _generation_pb2.SamplingParams
    stop: _generation_pb2.StopRules
    cache_salt: bytes
    tpot_ms: int
    itl_ms: int
    bad_words: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    grammar: str
    adapter: str
    prefix_source: PrefixSource
    session_age_seconds: float
    reasoning_opens: _containers.RepeatedScalarFieldContainer[str]
    reasoning_closes: _containers.RepeatedScalarFieldContainer[str]
    traceparent: str
    def __init__(self, handle: _Optional[int] = ..., fence: _Optional[_Union[_attempt_pb2.Fence, _Mapping]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., output_token_ids: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_generation_pb2.SamplingParams, _Mapping]] = ..., stop: _Optional[_Union[_generation_pb2.StopRules, _Mapping]] = ..., cache_salt: _Optional[bytes] = ..., tpot_ms: _Optional[int] = ..., itl_ms: _Optional[int] = ..., bad_words: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., grammar: _Optional[str] = ..., adapter: _Optional[str] = ..., prefix_source: _Optional[_Union[PrefixSource, _Mapping]] = ..., session_age_seconds: _Optional[float] = ..., reasoning_opens: _Optional[_Iterable[str]] = ..., reasoning_closes: _Optional[_Iterable[str]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class PrefixSource(_message.Message):
    __slots__ = ("address", "incarnation", "num_blocks")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    address: str
    incarnation: str
    num_blocks: int
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[str] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Prefill(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: SequenceSpec
    def __init__(self, sequence: _Optional[_Union[SequenceSpec, _Mapping]] = ...) -> None: ...

class Receive(_message.Message):
    __slots__ = ("sequence", "source_address", "kind")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    sequence: SequenceSpec
    source_address: str
    kind: ReceiveKind
    def __init__(self, sequence: _Optional[_Union[SequenceSpec, _Mapping]] = ..., source_address: _Optional[str] = ..., kind: _Optional[_Union[ReceiveKind, str]] = ...) -> None: ...

class Decode(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: SequenceSpec
    def __init__(self, sequence: _Optional[_Union[SequenceSpec, _Mapping]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("handles",)
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handles: _Optional[_Iterable[int]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Part(_message.Message):
    __slots__ = ("handle", "fence", "session_age_seconds")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    fence: _attempt_pb2.Fence
    session_age_seconds: float
    def __init__(self, handle: _Optional[int] = ..., fence: _Optional[_Union[_attempt_pb2.Fence, _Mapping]] = ..., session_age_seconds: _Optional[float] = ...) -> None: ...

class Lend(_message.Message):
    __slots__ = ("handle", "part", "num_blocks")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    part: Part
    num_blocks: int
    def __init__(self, handle: _Optional[int] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class HandOver(_message.Message):
    __slots__ = ("handle", "parts")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, handle: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class WorkResponse(_message.Message):
    __slots__ = ("welcome", "step", "heartbeat", "number", "taken")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    step: StepReport
    heartbeat: Heartbeat
    number: int
    taken: int
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., step: _Optional[_Union[StepReport, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., number: _Optional[int] = ..., taken: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("worker_id", "incarnation", "role", "model_name", "fingerprint", "block_size", "num_blocks", "max_num_seqs", "token_budget", "cost_model", "load", "stream", "probe_key", "dtype", "native_ops", "adapters", "num_stages")
    class AdaptersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    COST_MODEL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PROBE_KEY_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NATIVE_OPS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    NUM_STAGES_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    role: WorkerRole
    model_name: str
    fingerprint: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    token_budget: int
    cost_model: CostModel
    load: WorkerLoad
    stream: int
    probe_key: bytes
    dtype: str
    native_ops: bool
    adapters: _containers.ScalarMap[str, str]
    num_stages: int
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., role: _Optional[_Union[WorkerRole, str]] = ..., model_name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., token_budget: _Optional[int] = ..., cost_model: _Optional[_Union[CostModel, _Mapping]] = ..., load: _Optional[_Union[WorkerLoad, _Mapping]] = ..., stream: _Optional[int] = ..., probe_key: _Optional[bytes] = ..., dtype: _Optional[str] = ..., native_ops: bool = ..., adapters: _Optional[_Mapping[str, str]] = ..., num_stages: _Optional[int] = ...) -> None: ...

class CostModel(_message.Message):
    __slots__ = ("coefficients", "knee_tokens", "ratio_q10", "ratio_q50", "ratio_q95", "is_trusted", "chunk_floor_s", "chunk_band")
    COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    KNEE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RATIO_Q10_FIELD_NUMBER: _ClassVar[int]
    RATIO_Q50_FIELD_NUMBER: _ClassVar[int]
    RATIO_Q95_FIELD_NUMBER: _ClassVar[int]
    IS_TRUSTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FLOOR_S_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BAND_FIELD_NUMBER: _ClassVar[int]
    coefficients: _containers.RepeatedScalarFieldContainer[float]
    knee_tokens: float
    ratio_q10: float
    ratio_q50: float
    ratio_q95: float
    is_trusted: bool
    chunk_floor_s: float
    chunk_band: Band
    def __init__(self, coefficients: _Optional[_Iterable[float]] = ..., knee_tokens: _Optional[float] = ..., ratio_q10: _Optional[float] = ..., ratio_q50: _Optional[float] = ..., ratio_q95: _Optional[float] = ..., is_trusted: bool = ..., chunk_floor_s: _Optional[float] = ..., chunk_band: _Optional[_Union[Band, _Mapping]] = ...) -> None: ...

class Band(_message.Message):
    __slots__ = ("q10", "q50", "q95")
    Q10_FIELD_NUMBER: _ClassVar[int]
    Q50_FIELD_NUMBER: _ClassVar[int]
    Q95_FIELD_NUMBER: _ClassVar[int]
    q10: float
    q50: float
    q95: float
    def __init__(self, q10: _Optional[float] = ..., q50: _Optional[float] = ..., q95: _Optional[float] = ...) -> None: ...

class StepShape(_message.Message):
    __slots__ = ("num_tokens", "num_seqs", "decode_context", "chunk_attention", "chunk_context", "num_decodes")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    DECODE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ATTENTION_FIELD_NUMBER: _ClassVar[int]
    CHUNK_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODES_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    num_seqs: int
    decode_context: int
    chunk_attention: float
    chunk_context: int
    num_decodes: int
    def __init__(self, num_tokens: _Optional[int] = ..., num_seqs: _Optional[int] = ..., decode_context: _Optional[int] = ..., chunk_attention: _Optional[float] = ..., chunk_context: _Optional[int] = ..., num_decodes: _Optional[int] = ...) -> None: ...

class WorkerLoad(_message.Message):
    __slots__ = ("step", "running", "waiting", "pending_prefill_tokens", "free_blocks", "cached_blocks", "context_tokens", "draining", "preempted")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PENDING_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    step: int
    running: int
    waiting: int
    pending_prefill_tokens: int
    free_blocks: int
    cached_blocks: int
    context_tokens: int
    draining: bool
    preempted: int
    def __init__(self, step: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., pending_prefill_tokens: _Optional[int] = ..., free_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., context_tokens: _Optional[int] = ..., draining: bool = ..., preempted: _Optional[int] = ...) -> None: ...

class StepReport(_message.Message):
    __slots__ = ("tokens", "load", "step_seconds", "failures", "prefilled_handles", "cached_tokens", "cost_model", "shape", "preempted_handles", "resumed_handles", "parked_handles", "prompt_logprobs", "released_handles")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    PREFILLED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_MODEL_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    RESUMED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    PARKED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    tokens: _attempt_pb2.TokenColumns
    load: WorkerLoad
    step_seconds: float
    failures: _containers.RepeatedCompositeFieldContainer[SequenceFailure]
    prefilled_handles: _containers.RepeatedScalarFieldContainer[int]
    cached_tokens: _containers.RepeatedScalarFieldContainer[int]
    cost_model: CostModel
    shape: StepShape
    preempted_handles: _containers.RepeatedScalarFieldContainer[int]
    resumed_handles: _containers.RepeatedScalarFieldContainer[int]
    parked_handles: _containers.RepeatedScalarFieldContainer[int]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    released_handles: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Union[_attempt_pb2.TokenColumns, _Mapping]] = ..., load: _Optional[_Union[WorkerLoad, _Mapping]] = ..., step_seconds: _Optional[float] = ..., failures: _Optional[_Iterable[_Union[SequenceFailure, _Mapping]]] = ..., prefilled_handles: _Optional[_Iterable[int]] = ..., cached_tokens: _Optional[_Iterable[int]] = ..., cost_model: _Optional[_Union[CostModel, _Mapping]] = ..., shape: _Optional[_Union[StepShape, _Mapping]] = ..., preempted_handles: _Optional[_Iterable[int]] = ..., resumed_handles: _Optional[_Iterable[int]] = ..., parked_handles: _Optional[_Iterable[int]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., released_handles: _Optional[_Iterable[int]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("handle", "first_index", "logprobs", "num_top", "top_token_ids", "top_logprobs")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOP_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    first_index: int
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    num_top: int
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, handle: _Optional[int] = ..., first_index: _Optional[int] = ..., logprobs: _Optional[_Iterable[float]] = ..., num_top: _Optional[int] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class SequenceFailure(_message.Message):
    __slots__ = ("handle", "reason", "message", "session", "session_age_seconds")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    reason: FailureReason
    message: str
    session: int
    session_age_seconds: float
    def __init__(self, handle: _Optional[int] = ..., reason: _Optional[_Union[FailureReason, str]] = ..., message: _Optional[str] = ..., session: _Optional[int] = ..., session_age_seconds: _Optional[float] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("load", "running_step_seconds")
    LOAD_FIELD_NUMBER: _ClassVar[int]
    RUNNING_STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    load: WorkerLoad
    running_step_seconds: float
    def __init__(self, load: _Optional[_Union[WorkerLoad, _Mapping]] = ..., running_step_seconds: _Optional[float] = ...) -> None: ...

class Datagram(_message.Message):
    __slots__ = ("body", "tag")
    BODY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    tag: bytes
    def __init__(self, body: _Optional[bytes] = ..., tag: _Optional[bytes] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("stream", "number")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    stream: int
    number: int
    def __init__(self, stream: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class ProbeAck(_message.Message):
    __slots__ = ("stream", "number", "written", "unwritten_seconds", "taken")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    UNWRITTEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    stream: int
    number: int
    written: int
    unwritten_seconds: float
    taken: int
    def __init__(self, stream: _Optional[int] = ..., number: _Optional[int] = ..., written: _Optional[int] = ..., unwritten_seconds: _Optional[float] = ..., taken: _Optional[int] = ...) -> None: ...
