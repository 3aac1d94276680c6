"""The messages from sender to receiver about blocks; they are the same for every transport.

The calls that carry them are in `proto/baton/worker/v1/kvtransfer.proto`; `convert` converts them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.columns import TokenColumns


class ChecksumKind(enum.IntEnum):
    """The checksum of a block; values as in the protocol."""

    XXH3_64 = 1
    """For blocks in host memory."""
    MULTILINEAR_64 = 2
    """For blocks in a GPU's memory (`kernels.checksum_blocks`)."""


@dataclass(frozen=True, slots=True)
class CudaReach:
    """The GPUs whose memory a receiver can map."""

    host: str
    """Its boot, namespaces and user: CUDA maps memory only between processes that have all of them in common.
    Empty if they are not known; then nothing is in reach."""
    gpus: tuple[str, ...]
    """UUIDs."""


@dataclass(frozen=True, slots=True)
class CudaPool:
    """A sender's pool in a GPU's memory."""

    host: str
    """The same as in a receiver's reach."""
    gpu: str
    """UUID."""
    handle: bytes
    """The handle by which CUDA maps it."""
    num_blocks: int


@dataclass(frozen=True, slots=True)
class NixlPool:
    """How NIXL reaches a sender's pool."""

    agent: bytes
    """The sender's agent, as NIXL packs it."""
    address: int
    """The address of the pool's first byte in the sender's memory."""
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The header: facts that are the same for all blocks of a handoff."""

    num_blocks: int
    block_size: int
    block_bytes: int
    checksum_kind: ChecksumKind
    shm_socket: str = ""
    """Unix socket that hands out the pool's memory; empty when the sender has none."""
    nixl: NixlPool | None = None
    """None when the sender has no NIXL."""
    cuda_ipc: CudaPool | None = None
    """The GPU pool that holds the blocks of this handoff, if they are on a GPU; they are nowhere else
    then."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Filled blocks as columns of equal length. Offered blocks do not change until acknowledged."""

    indexes: Sequence[int]
    """Positions in the sequence."""
    sender_blocks: Sequence[int]
    """Block numbers in the sender's pool."""
    block_hashes: Sequence[bytes]
    checksums: Sequence[int]


@dataclass(frozen=True, slots=True)
class Commit:
    """Every block has been offered; the first token of every choice comes along."""

    num_tokens: int
    first_tokens: TokenColumns


@dataclass(frozen=True, slots=True)
class SenderAbort:
    reason: str


FINISHED = "finished"
"""The reason to abort when every choice ended with its first token: there is nothing to decode."""


OpenEvent = Manifest | Offer | Commit | SenderAbort
