from baton.worker.v1 import attempt_pb2 as _attempt_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChecksumKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECKSUM_KIND_UNSPECIFIED: _ClassVar[ChecksumKind]
    CHECKSUM_KIND_XXH3_64: _ClassVar[ChecksumKind]
    CHECKSUM_KIND_MULTILINEAR_64: _ClassVar[ChecksumKind]
CHECKSUM_KIND_UNSPECIFIED: ChecksumKind
CHECKSUM_KIND_XXH3_64: ChecksumKind
CHECKSUM_KIND_MULTILINEAR_64: ChecksumKind

class OpenRequest(_message.Message):
    __slots__ = ("fence", "num_held_blocks", "fingerprint", "cuda_reach", "borrowing")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    NUM_HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CUDA_REACH_FIELD_NUMBER: _ClassVar[int]
    BORROWING_FIELD_NUMBER: _ClassVar[int]
    fence: _attempt_pb2.Fence
    num_held_blocks: int
    fingerprint: str
    cuda_reach: CudaReach
    borrowing: Borrowing
    def __init__(self, fence: _Optional[_Union[_attempt_pb2.Fence, _Mapping]] = ..., num_held_blocks: _Optional[int] = ..., fingerprint: _Optional[str] = ..., cuda_reach: _Optional[_Union[CudaReach, _Mapping]] = ..., borrowing: _Optional[_Union[Borrowing, _Mapping]] = ...) -> None: ...

class Borrowing(_message.Message):
    __slots__ = ("block_hashes", "limit_ms")
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    block_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    limit_ms: int
    def __init__(self, block_hashes: _Optional[_Iterable[bytes]] = ..., limit_ms: _Optional[int] = ...) -> None: ...

class CudaReach(_message.Message):
    __slots__ = ("host", "gpus")
    HOST_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    host: str
    gpus: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, host: _Optional[str] = ..., gpus: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenResponse(_message.Message):
    __slots__ = ("manifest", "offer", "commit", "abort")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    manifest: Manifest
    offer: Offer
    commit: Commit
    abort: SenderAbort
    def __init__(self, manifest: _Optional[_Union[Manifest, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., abort: _Optional[_Union[SenderAbort, _Mapping]] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("num_blocks", "block_size", "block_bytes", "checksum_kind", "shm_socket", "nixl", "cuda_ipc")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_KIND_FIELD_NUMBER: _ClassVar[int]
    SHM_SOCKET_FIELD_NUMBER: _ClassVar[int]
    NIXL_FIELD_NUMBER: _ClassVar[int]
    CUDA_IPC_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    block_size: int
    block_bytes: int
    checksum_kind: ChecksumKind
    shm_socket: str
    nixl: NixlPool
    cuda_ipc: CudaPool
    def __init__(self, num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., block_bytes: _Optional[int] = ..., checksum_kind: _Optional[_Union[ChecksumKind, str]] = ..., shm_socket: _Optional[str] = ..., nixl: _Optional[_Union[NixlPool, _Mapping]] = ..., cuda_ipc: _Optional[_Union[CudaPool, _Mapping]] = ...) -> None: ...

class CudaPool(_message.Message):
    __slots__ = ("host", "gpu", "handle", "num_blocks")
    HOST_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    host: str
    gpu: str
    handle: bytes
    num_blocks: int
    def __init__(self, host: _Optional[str] = ..., gpu: _Optional[str] = ..., handle: _Optional[bytes] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class NixlPool(_message.Message):
    __slots__ = ("agent", "address", "num_blocks")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    agent: bytes
    address: int
    num_blocks: int
    def __init__(self, agent: _Optional[bytes] = ..., address: _Optional[int] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("indexes", "sender_blocks", "block_hashes", "checksums")
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    SENDER_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    indexes: _containers.RepeatedScalarFieldContainer[int]
    sender_blocks: _containers.RepeatedScalarFieldContainer[int]
    block_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    checksums: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, indexes: _Optional[_Iterable[int]] = ..., sender_blocks: _Optional[_Iterable[int]] = ..., block_hashes: _Optional[_Iterable[bytes]] = ..., checksums: _Optional[_Iterable[int]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("num_tokens", "first_tokens")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    first_tokens: _attempt_pb2.TokenColumns
    def __init__(self, num_tokens: _Optional[int] = ..., first_tokens: _Optional[_Union[_attempt_pb2.TokenColumns, _Mapping]] = ...) -> None: ...

class SenderAbort(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("fence", "indexes")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    fence: _attempt_pb2.Fence
    indexes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, fence: _Optional[_Union[_attempt_pb2.Fence, _Mapping]] = ..., indexes: _Optional[_Iterable[int]] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("index", "offset_bytes", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    offset_bytes: int
    data: bytes
    def __init__(self, index: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("fence", "num_corrupt_blocks")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    NUM_CORRUPT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    fence: _attempt_pb2.Fence
    num_corrupt_blocks: int
    def __init__(self, fence: _Optional[_Union[_attempt_pb2.Fence, _Mapping]] = ..., num_corrupt_blocks: _Optional[int] = ...) -> None: ...

class AcknowledgeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("fence", "reason")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    fence: _attempt_pb2.Fence
    reason: str
    def __init__(self, fence: _Optional[_Union[_attempt_pb2.Fence, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
