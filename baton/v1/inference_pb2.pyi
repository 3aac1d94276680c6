from baton.v1 import errors_pb2 as _errors_pb2
from baton.v1 import generation_pb2 as _generation_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToolMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_MODE_UNSPECIFIED: _ClassVar[ToolMode]
    TOOL_MODE_AUTO: _ClassVar[ToolMode]
    TOOL_MODE_NONE: _ClassVar[ToolMode]
    TOOL_MODE_REQUIRED: _ClassVar[ToolMode]

class Path(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PATH_UNSPECIFIED: _ClassVar[Path]
    PATH_AGGREGATED: _ClassVar[Path]
    PATH_DISAGGREGATED: _ClassVar[Path]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_ACCEPTED: _ClassVar[Verdict]
    VERDICT_AT_RISK: _ClassVar[Verdict]
    VERDICT_REFUSED: _ClassVar[Verdict]
TOOL_MODE_UNSPECIFIED: ToolMode
TOOL_MODE_AUTO: ToolMode
TOOL_MODE_NONE: ToolMode
TOOL_MODE_REQUIRED: ToolMode
PATH_UNSPECIFIED: Path
PATH_AGGREGATED: Path
PATH_DISAGGREGATED: Path
VERDICT_UNSPECIFIED: Verdict
VERDICT_ACCEPTED: Verdict
VERDICT_AT_RISK: Verdict
VERDICT_REFUSED: Verdict

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "model", "tenant", "text", "chat", "tokens", "sampling", "stop", "slo", "resume_grace_ms", "truncate_prompt_tokens", "output_format", "user", "adapter", "program")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SLO_FIELD_NUMBER: _ClassVar[int]
    RESUME_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    tenant: str
    text: str
    chat: ChatInput
    tokens: TokenInput
    sampling: _generation_pb2.SamplingParams
    stop: _generation_pb2.StopRules
    slo: _generation_pb2.Slo
    resume_grace_ms: int
    truncate_prompt_tokens: int
    output_format: _generation_pb2.OutputFormat
    user: str
    adapter: str
    program: _generation_pb2.Program
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., tenant: _Optional[str] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[ChatInput, _Mapping]] = ..., tokens: _Optional[_Union[TokenInput, _Mapping]] = ..., sampling: _Optional[_Union[_generation_pb2.SamplingParams, _Mapping]] = ..., stop: _Optional[_Union[_generation_pb2.StopRules, _Mapping]] = ..., slo: _Optional[_Union[_generation_pb2.Slo, _Mapping]] = ..., resume_grace_ms: _Optional[int] = ..., truncate_prompt_tokens: _Optional[int] = ..., output_format: _Optional[_Union[_generation_pb2.OutputFormat, _Mapping]] = ..., user: _Optional[str] = ..., adapter: _Optional[str] = ..., program: _Optional[_Union[_generation_pb2.Program, _Mapping]] = ...) -> None: ...

class ChatInput(_message.Message):
    __slots__ = ("messages", "template_arguments", "add_generation_prompt", "continue_final_message", "tools", "tool_choice", "parallel_tool_calls")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    template_arguments: _struct_pb2.Struct
    add_generation_prompt: bool
    continue_final_message: bool
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., template_arguments: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., add_generation_prompt: bool = ..., continue_final_message: bool = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., tool_choice: _Optional[_Union[ToolChoice, _Mapping]] = ..., parallel_tool_calls: bool = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters", "strict")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters: str
    strict: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters: _Optional[str] = ..., strict: bool = ...) -> None: ...

class ToolChoice(_message.Message):
    __slots__ = ("mode", "name")
    MODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    mode: ToolMode
    name: str
    def __init__(self, mode: _Optional[_Union[ToolMode, str]] = ..., name: _Optional[str] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "parts", "tool_calls", "tool_call_id", "name", "reasoning")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    parts: _containers.RepeatedCompositeFieldContainer[ContentPart]
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    name: str
    reasoning: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[ContentPart, _Mapping]]] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ..., name: _Optional[str] = ..., reasoning: _Optional[str] = ...) -> None: ...

class ContentPart(_message.Message):
    __slots__ = ("type", "text")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    type: str
    text: str
    def __init__(self, type: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class TokenInput(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: GenerationEvent
    def __init__(self, event: _Optional[_Union[GenerationEvent, _Mapping]] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("request", "session", "received", "failed_attempts", "received_prompt_logprobs")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    FAILED_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    request: GenerateRequest
    session: int
    received: _containers.RepeatedCompositeFieldContainer[ReceivedTokens]
    failed_attempts: int
    received_prompt_logprobs: int
    def __init__(self, request: _Optional[_Union[GenerateRequest, _Mapping]] = ..., session: _Optional[int] = ..., received: _Optional[_Iterable[_Union[ReceivedTokens, _Mapping]]] = ..., failed_attempts: _Optional[int] = ..., received_prompt_logprobs: _Optional[int] = ...) -> None: ...

class GenerateManyRequest(_message.Message):
    __slots__ = ("id", "generate", "resume", "leave", "credential", "acting_for", "traceparent")
    ID_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    ACTING_FOR_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    id: int
    generate: GenerateRequest
    resume: ResumeRequest
    leave: Leave
    credential: str
    acting_for: str
    traceparent: str
    def __init__(self, id: _Optional[int] = ..., generate: _Optional[_Union[GenerateRequest, _Mapping]] = ..., resume: _Optional[_Union[ResumeRequest, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., credential: _Optional[str] = ..., acting_for: _Optional[str] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GenerateManyResponse(_message.Message):
    __slots__ = ("tokens", "events")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    tokens: TokenRows
    events: _containers.RepeatedCompositeFieldContainer[GenerateManyEvent]
    def __init__(self, tokens: _Optional[_Union[TokenRows, _Mapping]] = ..., events: _Optional[_Iterable[_Union[GenerateManyEvent, _Mapping]]] = ...) -> None: ...

class TokenRows(_message.Message):
    __slots__ = ("ids", "choices", "first_indexes", "num_tokens", "text_lengths", "token_ids", "text_utf8", "num_deltas", "deltas")
    IDS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEXES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_UTF8_FIELD_NUMBER: _ClassVar[int]
    NUM_DELTAS_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedScalarFieldContainer[int]
    first_indexes: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    text_lengths: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text_utf8: bytes
    num_deltas: _containers.RepeatedScalarFieldContainer[int]
    deltas: _containers.RepeatedCompositeFieldContainer[Delta]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[int]] = ..., first_indexes: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., text_lengths: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., text_utf8: _Optional[bytes] = ..., num_deltas: _Optional[_Iterable[int]] = ..., deltas: _Optional[_Iterable[_Union[Delta, _Mapping]]] = ...) -> None: ...

class GenerateManyEvent(_message.Message):
    __slots__ = ("id", "after_rows", "generation", "status")
    ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_ROWS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    id: int
    after_rows: int
    generation: GenerationEvent
    status: bytes
    def __init__(self, id: _Optional[int] = ..., after_rows: _Optional[int] = ..., generation: _Optional[_Union[GenerationEvent, _Mapping]] = ..., status: _Optional[bytes] = ...) -> None: ...

class ReceivedTokens(_message.Message):
    __slots__ = ("choice", "token_ids")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    choice: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, choice: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: GenerationEvent
    def __init__(self, event: _Optional[_Union[GenerationEvent, _Mapping]] = ...) -> None: ...

class GenerationEvent(_message.Message):
    __slots__ = ("accepted", "queued", "tokens", "choice_finished", "finished", "leaving", "retrying", "prompt_logprobs")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FINISHED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    RETRYING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    queued: Queued
    tokens: Tokens
    choice_finished: ChoiceFinished
    finished: Finished
    leaving: Leaving
    retrying: Retrying
    prompt_logprobs: PromptLogprobs
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., queued: _Optional[_Union[Queued, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., choice_finished: _Optional[_Union[ChoiceFinished, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., retrying: _Optional[_Union[Retrying, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ...) -> None: ...

class Retrying(_message.Message):
    __slots__ = ("failed_attempts", "session")
    FAILED_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    failed_attempts: int
    session: int
    def __init__(self, failed_attempts: _Optional[int] = ..., session: _Optional[int] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("request_id", "promise", "seed", "prompt_tokens", "fingerprint", "tool_format", "reasoning_format", "reasoning_open", "has_deltas")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOOL_FORMAT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FORMAT_FIELD_NUMBER: _ClassVar[int]
    REASONING_OPEN_FIELD_NUMBER: _ClassVar[int]
    HAS_DELTAS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    promise: LatencyPromise
    seed: int
    prompt_tokens: int
    fingerprint: str
    tool_format: str
    reasoning_format: str
    reasoning_open: bool
    has_deltas: bool
    def __init__(self, request_id: _Optional[str] = ..., promise: _Optional[_Union[LatencyPromise, _Mapping]] = ..., seed: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., fingerprint: _Optional[str] = ..., tool_format: _Optional[str] = ..., reasoning_format: _Optional[str] = ..., reasoning_open: bool = ..., has_deltas: bool = ...) -> None: ...

class LatencyPromise(_message.Message):
    __slots__ = ("predicted_ttft_ms", "predicted_tpot_ms", "ttft_ms", "tpot_ms", "at_risk", "itl_ms", "predicted_itl_ms")
    PREDICTED_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    AT_RISK_FIELD_NUMBER: _ClassVar[int]
    ITL_MS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_ITL_MS_FIELD_NUMBER: _ClassVar[int]
    predicted_ttft_ms: float
    predicted_tpot_ms: float
    ttft_ms: int
    tpot_ms: int
    at_risk: bool
    itl_ms: int
    predicted_itl_ms: float
    def __init__(self, predicted_ttft_ms: _Optional[float] = ..., predicted_tpot_ms: _Optional[float] = ..., ttft_ms: _Optional[int] = ..., tpot_ms: _Optional[int] = ..., at_risk: bool = ..., itl_ms: _Optional[int] = ..., predicted_itl_ms: _Optional[float] = ...) -> None: ...

class Queued(_message.Message):
    __slots__ = ("position", "work_ahead_tokens", "predicted_ttft_ms")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    WORK_AHEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    position: int
    work_ahead_tokens: int
    predicted_ttft_ms: float
    def __init__(self, position: _Optional[int] = ..., work_ahead_tokens: _Optional[int] = ..., predicted_ttft_ms: _Optional[float] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("choice", "first_index", "token_ids", "text", "logprobs", "deltas")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    choice: int
    first_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    deltas: _containers.RepeatedCompositeFieldContainer[Delta]
    def __init__(self, choice: _Optional[int] = ..., first_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., deltas: _Optional[_Iterable[_Union[Delta, _Mapping]]] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("content", "reasoning", "call_begun", "call_arguments", "call_ended")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    CALL_BEGUN_FIELD_NUMBER: _ClassVar[int]
    CALL_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    CALL_ENDED_FIELD_NUMBER: _ClassVar[int]
    content: str
    reasoning: str
    call_begun: ToolCallBegun
    call_arguments: ToolCallArguments
    call_ended: ToolCallEnded
    def __init__(self, content: _Optional[str] = ..., reasoning: _Optional[str] = ..., call_begun: _Optional[_Union[ToolCallBegun, _Mapping]] = ..., call_arguments: _Optional[_Union[ToolCallArguments, _Mapping]] = ..., call_ended: _Optional[_Union[ToolCallEnded, _Mapping]] = ...) -> None: ...

class ToolCallBegun(_message.Message):
    __slots__ = ("index", "id", "name")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ToolCallArguments(_message.Message):
    __slots__ = ("index", "text")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class ToolCallEnded(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_token_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("first_index", "logprobs")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, first_index: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class ChoiceFinished(_message.Message):
    __slots__ = ("choice", "reason", "output_tokens", "stop_string", "stop_token_id", "deltas")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    choice: int
    reason: _generation_pb2.FinishReason
    output_tokens: int
    stop_string: str
    stop_token_id: int
    deltas: _containers.RepeatedCompositeFieldContainer[Delta]
    def __init__(self, choice: _Optional[int] = ..., reason: _Optional[_Union[_generation_pb2.FinishReason, str]] = ..., output_tokens: _Optional[int] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., deltas: _Optional[_Iterable[_Union[Delta, _Mapping]]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("usage", "promise", "delivery", "split", "error", "path")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    usage: Usage
    promise: LatencyPromise
    delivery: Delivery
    split: TimeSplit
    error: str
    path: Path
    def __init__(self, usage: _Optional[_Union[Usage, _Mapping]] = ..., promise: _Optional[_Union[LatencyPromise, _Mapping]] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ..., split: _Optional[_Union[TimeSplit, _Mapping]] = ..., error: _Optional[str] = ..., path: _Optional[_Union[Path, str]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "cached_prompt_tokens", "output_tokens", "attempts")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    attempts: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., attempts: _Optional[int] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("ttft_ms", "tpot_ms", "max_gap_ms", "e2e_ms", "ttft_kept", "tpot_kept", "itl_kept")
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_GAP_MS_FIELD_NUMBER: _ClassVar[int]
    E2E_MS_FIELD_NUMBER: _ClassVar[int]
    TTFT_KEPT_FIELD_NUMBER: _ClassVar[int]
    TPOT_KEPT_FIELD_NUMBER: _ClassVar[int]
    ITL_KEPT_FIELD_NUMBER: _ClassVar[int]
    ttft_ms: float
    tpot_ms: float
    max_gap_ms: float
    e2e_ms: float
    ttft_kept: bool
    tpot_kept: bool
    itl_kept: bool
    def __init__(self, ttft_ms: _Optional[float] = ..., tpot_ms: _Optional[float] = ..., max_gap_ms: _Optional[float] = ..., e2e_ms: _Optional[float] = ..., ttft_kept: bool = ..., tpot_kept: bool = ..., itl_kept: bool = ...) -> None: ...

class TimeSplit(_message.Message):
    __slots__ = ("queue_ms", "prefill_ms", "handoff_ms", "decode_ms", "relay_ms")
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MS_FIELD_NUMBER: _ClassVar[int]
    RELAY_MS_FIELD_NUMBER: _ClassVar[int]
    queue_ms: float
    prefill_ms: float
    handoff_ms: float
    decode_ms: float
    relay_ms: float
    def __init__(self, queue_ms: _Optional[float] = ..., prefill_ms: _Optional[float] = ..., handoff_ms: _Optional[float] = ..., decode_ms: _Optional[float] = ..., relay_ms: _Optional[float] = ...) -> None: ...

class GenerateOnceRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: GenerateRequest
    def __init__(self, request: _Optional[_Union[GenerateRequest, _Mapping]] = ...) -> None: ...

class GenerateOnceResponse(_message.Message):
    __slots__ = ("request_id", "choices", "finished", "seed", "prompt_logprobs", "tool_format", "reasoning_format", "reasoning_open")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOOL_FORMAT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FORMAT_FIELD_NUMBER: _ClassVar[int]
    REASONING_OPEN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    choices: _containers.RepeatedCompositeFieldContainer[Choice]
    finished: Finished
    seed: int
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    tool_format: str
    reasoning_format: str
    reasoning_open: bool
    def __init__(self, request_id: _Optional[str] = ..., choices: _Optional[_Iterable[_Union[Choice, _Mapping]]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., seed: _Optional[int] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., tool_format: _Optional[str] = ..., reasoning_format: _Optional[str] = ..., reasoning_open: bool = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("index", "text", "token_ids", "logprobs", "finish_reason", "stop_string", "stop_token_id", "message", "has_cut_call")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HAS_CUT_CALL_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    finish_reason: _generation_pb2.FinishReason
    stop_string: str
    stop_token_id: int
    message: ChatMessage
    has_cut_call: bool
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[_generation_pb2.FinishReason, str]] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., message: _Optional[_Union[ChatMessage, _Mapping]] = ..., has_cut_call: bool = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("tenant", "request_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    request_id: str
    def __init__(self, tenant: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("cancelled",)
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    cancelled: bool
    def __init__(self, cancelled: bool = ...) -> None: ...

class QuoteRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: GenerateRequest
    def __init__(self, request: _Optional[_Union[GenerateRequest, _Mapping]] = ...) -> None: ...

class QuoteResponse(_message.Message):
    __slots__ = ("verdict", "promise", "prompt_tokens", "retry_after_ms", "refusal")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    promise: LatencyPromise
    prompt_tokens: int
    retry_after_ms: int
    refusal: _errors_pb2.SloRefusal
    def __init__(self, verdict: _Optional[_Union[Verdict, str]] = ..., promise: _Optional[_Union[LatencyPromise, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., retry_after_ms: _Optional[int] = ..., refusal: _Optional[_Union[_errors_pb2.SloRefusal, _Mapping]] = ...) -> None: ...

class CountTokensRequest(_message.Message):
    __slots__ = ("model", "text", "chat")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    chat: ChatInput
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[ChatInput, _Mapping]] = ...) -> None: ...

class CountTokensResponse(_message.Message):
    __slots__ = ("count", "token_ids")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    count: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, count: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("model", "token_ids", "skip_special_tokens", "include_token_bytes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    skip_special_tokens: bool
    include_token_bytes: bool
    def __init__(self, model: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., skip_special_tokens: bool = ..., include_token_bytes: bool = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text", "token_bytes")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_bytes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, text: _Optional[str] = ..., token_bytes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ("tenant_only",)
    TENANT_ONLY_FIELD_NUMBER: _ClassVar[int]
    tenant_only: bool
    def __init__(self, tenant_only: bool = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "tenant")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    tenant: str
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., tenant: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "architecture", "max_context_tokens", "vocab_size", "has_chat_template", "fingerprint", "model_type", "tool_format", "reasoning_format", "adapters", "default_sampling", "more_names")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    TOOL_FORMAT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FORMAT_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MORE_NAMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    max_context_tokens: int
    vocab_size: int
    has_chat_template: bool
    fingerprint: str
    model_type: str
    tool_format: str
    reasoning_format: str
    adapters: _containers.RepeatedScalarFieldContainer[str]
    default_sampling: _generation_pb2.SamplingParams
    more_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., max_context_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ..., has_chat_template: bool = ..., fingerprint: _Optional[str] = ..., model_type: _Optional[str] = ..., tool_format: _Optional[str] = ..., reasoning_format: _Optional[str] = ..., adapters: _Optional[_Iterable[str]] = ..., default_sampling: _Optional[_Union[_generation_pb2.SamplingParams, _Mapping]] = ..., more_names: _Optional[_Iterable[str]] = ...) -> None: ...
