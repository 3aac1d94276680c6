"""The engine's pool in handoffs: used in place, or through page-locked host memory."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.report import Mark
from engine.kv.block_copies import BlockCopies
from engine.kv.kv_pool import KVPool
from kvtransfer.pools.host_blocks import InPlace
from kvtransfer.pools.pool import HostSource, HostTarget
from kvtransfer.pools.staging import ReceiveStaging, SendStaging
from kvtransfer.receiving.receiver import ReceiverLimits, max_blocks_in_flight
from worker.engine.engine import Engine

SEND_BYTES = 4 * 1024**3
"""Host memory for handoffs, unless the longest sequence needs more. A bus fills it in less than a tenth of a
second, about as long as a receiver needs to fetch and acknowledge."""


class HostSlots:
    """Implements `kvtransfer.pools.staging.DeviceCopies` for `pool`, for one thread."""

    def __init__(self, pool: KVPool, num_slots: int) -> None:
        self.slots = KVPool(pool.layout, num_slots)
        self._copies = BlockCopies(pool.tensor, self.slots.tensor)

    def store(self, blocks: Sequence[int], slots: Sequence[int], behind: Mark | None) -> None:
        self._copies.store(blocks, slots, behind).ended.synchronize()

    def load(self, slots: Sequence[int], blocks: Sequence[int], behind: Mark | None) -> None:
        self._copies.load(slots, blocks, behind).ended.synchronize()


def staging_bytes(pool: KVPool, max_context: int) -> int:
    """Return the host memory that handoffs of a pool take, with sequences of so many tokens; 0 in place."""
    if pool.fd is not None:
        return 0
    num_received = max_blocks_in_flight(pool.block_bytes, ReceiverLimits())
    return (_num_sent(pool, max_context) + num_received) * pool.block_bytes


def source_of(engine: Engine) -> HostSource:
    """Return the source for receivers that do not reach the pool's device; page-locking it takes seconds."""
    pool = engine.pool
    if pool.fd is not None:
        return InPlace(pool)
    return SendStaging(HostSlots(pool, _num_sent(pool, engine.max_context)))


def target_of(pool: KVPool, limits: ReceiverLimits) -> HostTarget:
    """Return the target for blocks that do not come from a device in reach."""
    if pool.fd is not None:
        return InPlace(pool)
    return ReceiveStaging(HostSlots(pool, max_blocks_in_flight(pool.block_bytes, limits)))


def _num_sent(pool: KVPool, max_context: int) -> int:
    """Return how many slots there are for blocks to send."""
    longest = -(-max_context // pool.layout.block_size)
    return min(pool.num_blocks, max(longest, SEND_BYTES // pool.block_bytes))
