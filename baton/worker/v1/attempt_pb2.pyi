from baton.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Fence(_message.Message):
    __slots__ = ("tenant", "request_id", "session", "attempt", "choice", "source_incarnation", "target_incarnation", "router_id", "router_incarnation", "run")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    request_id: str
    session: int
    attempt: int
    choice: int
    source_incarnation: str
    target_incarnation: str
    router_id: str
    router_incarnation: str
    run: int
    def __init__(self, tenant: _Optional[str] = ..., request_id: _Optional[str] = ..., session: _Optional[int] = ..., attempt: _Optional[int] = ..., choice: _Optional[int] = ..., source_incarnation: _Optional[str] = ..., target_incarnation: _Optional[str] = ..., router_id: _Optional[str] = ..., router_incarnation: _Optional[str] = ..., run: _Optional[int] = ...) -> None: ...

class TokenColumns(_message.Message):
    __slots__ = ("handles", "choices", "indexes", "token_ids", "finish_reasons", "text_lengths", "text_utf8", "logprob_rows", "logprobs", "top_counts", "top_token_ids", "top_logprobs", "stop_rows", "stop_places")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASONS_FIELD_NUMBER: _ClassVar[int]
    TEXT_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TEXT_UTF8_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_ROWS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STOP_ROWS_FIELD_NUMBER: _ClassVar[int]
    STOP_PLACES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedScalarFieldContainer[int]
    indexes: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reasons: _containers.RepeatedScalarFieldContainer[_generation_pb2.FinishReason]
    text_lengths: _containers.RepeatedScalarFieldContainer[int]
    text_utf8: bytes
    logprob_rows: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_counts: _containers.RepeatedScalarFieldContainer[int]
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    stop_rows: _containers.RepeatedScalarFieldContainer[int]
    stop_places: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handles: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[int]] = ..., indexes: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., finish_reasons: _Optional[_Iterable[_Union[_generation_pb2.FinishReason, str]]] = ..., text_lengths: _Optional[_Iterable[int]] = ..., text_utf8: _Optional[bytes] = ..., logprob_rows: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., top_counts: _Optional[_Iterable[int]] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., stop_rows: _Optional[_Iterable[int]] = ..., stop_places: _Optional[_Iterable[int]] = ...) -> None: ...
