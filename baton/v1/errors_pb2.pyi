from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    MALFORMED_MESSAGE: _ClassVar[ErrorReason]
    INVALID_FIELD: _ClassVar[ErrorReason]
    PROMPT_TOO_LONG: _ClassVar[ErrorReason]
    SLO_IMPOSSIBLE: _ClassVar[ErrorReason]
    EXCEEDS_MEMORY: _ClassVar[ErrorReason]
    MODEL_NOT_FOUND: _ClassVar[ErrorReason]
    REQUEST_ID_IN_USE: _ClassVar[ErrorReason]
    SUPERSEDED: _ClassVar[ErrorReason]
    DEADLINE_EXPIRED: _ClassVar[ErrorReason]
    SLO_REFUSED: _ClassVar[ErrorReason]
    QUEUE_FULL: _ClassVar[ErrorReason]
    ROUTER_BUSY: _ClassVar[ErrorReason]
    BUDGET_EXCEEDED: _ClassVar[ErrorReason]
    READER_TOO_SLOW: _ClassVar[ErrorReason]
    CREDENTIAL_MISSING: _ClassVar[ErrorReason]
    CREDENTIAL_INVALID: _ClassVar[ErrorReason]
    TENANT_NOT_ALLOWED: _ClassVar[ErrorReason]
    SLO_CLASS_NOT_ALLOWED: _ClassVar[ErrorReason]
    OPERATORS_ONLY: _ClassVar[ErrorReason]
    ROUTER_LEAVING: _ClassVar[ErrorReason]
    NO_WORKER: _ClassVar[ErrorReason]
    REDIS_AWAY: _ClassVar[ErrorReason]
    TOKENIZER_LOST: _ClassVar[ErrorReason]
    UNKNOWN_METHOD: _ClassVar[ErrorReason]
    INTERNAL_ERROR: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
MALFORMED_MESSAGE: ErrorReason
INVALID_FIELD: ErrorReason
PROMPT_TOO_LONG: ErrorReason
SLO_IMPOSSIBLE: ErrorReason
EXCEEDS_MEMORY: ErrorReason
MODEL_NOT_FOUND: ErrorReason
REQUEST_ID_IN_USE: ErrorReason
SUPERSEDED: ErrorReason
DEADLINE_EXPIRED: ErrorReason
SLO_REFUSED: ErrorReason
QUEUE_FULL: ErrorReason
ROUTER_BUSY: ErrorReason
BUDGET_EXCEEDED: ErrorReason
READER_TOO_SLOW: ErrorReason
CREDENTIAL_MISSING: ErrorReason
CREDENTIAL_INVALID: ErrorReason
TENANT_NOT_ALLOWED: ErrorReason
SLO_CLASS_NOT_ALLOWED: ErrorReason
OPERATORS_ONLY: ErrorReason
ROUTER_LEAVING: ErrorReason
NO_WORKER: ErrorReason
REDIS_AWAY: ErrorReason
TOKENIZER_LOST: ErrorReason
UNKNOWN_METHOD: ErrorReason
INTERNAL_ERROR: ErrorReason

class SloRefusal(_message.Message):
    __slots__ = ("predicted_ttft_ms", "predicted_tpot_ms", "attainable_ttft_ms", "attainable_tpot_ms", "predicted_itl_ms", "attainable_itl_ms")
    PREDICTED_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    ATTAINABLE_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    ATTAINABLE_TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_ITL_MS_FIELD_NUMBER: _ClassVar[int]
    ATTAINABLE_ITL_MS_FIELD_NUMBER: _ClassVar[int]
    predicted_ttft_ms: float
    predicted_tpot_ms: float
    attainable_ttft_ms: int
    attainable_tpot_ms: int
    predicted_itl_ms: float
    attainable_itl_ms: int
    def __init__(self, predicted_ttft_ms: _Optional[float] = ..., predicted_tpot_ms: _Optional[float] = ..., attainable_ttft_ms: _Optional[int] = ..., attainable_tpot_ms: _Optional[int] = ..., predicted_itl_ms: _Optional[float] = ..., attainable_itl_ms: _Optional[int] = ...) -> None: ...
