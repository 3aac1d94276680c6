"""What is kept in Redis, as the fleet sees it. Times are milliseconds of Redis's own clock."""

from __future__ import annotations

import enum

from scheduling.value import value

CLASS_SCORE = 10**13
"""A class outweighs any due time: this many milliseconds are three centuries."""
GRANT_TTL_MS = 1000
"""How long a busy router may take to settle what it was granted, before it is granted anew."""
SILENT_MS = 3000
"""A router that asks for no place and no grants for so long is given none, whoever of its requests waits."""
MAX_GRANTS_LOST = 2
"""An entry whose grants nobody settled has its place back this often; then its router must ask again."""
START_TTL_MS = 30_000
"""A starting worker that reports nothing more is forgotten after this long."""
PREFIX_TTL_MS = 30_000
"""What a worker that was never announced says of its cache lasts this long."""


@value
class WorkerRecord:
    """A worker as it announces itself; gone when its heartbeat stops."""

    worker_id: str
    incarnation: str
    role: str
    """`prefill` or `decode`"""
    address: str
    fingerprint: str
    model_name: str
    block_size: int
    num_blocks: int
    sameness: str = ""
    """What a deterministic worker computes, as a digest; empty for any other."""

    @property
    def key(self) -> str:
        """Names this process of this worker: what a former one held is not its own."""
        return f"{self.worker_id}:{self.incarnation}"


@value
class StartingRecord:
    """A worker that does not serve yet, as it announces itself."""

    worker_id: str
    incarnation: str
    role: str
    """`prefill` or `decode`"""
    phase: str
    done: int
    total: int
    """Bytes or steps; 0 if unknown."""

    @property
    def key(self) -> str:
        """Names this process of this worker."""
        return f"{self.worker_id}:{self.incarnation}"


@value
class Starting:
    """A worker that does not serve yet, and how long it has been silent."""

    record: StartingRecord
    silent_s: float


@value
class QueueEntry:
    """A request that waits. Order: class, then due time."""

    request_key: str
    router_id: str
    slo_class: int
    due_in_ms: int
    work_tokens: int
    """Prompt tokens to compute."""
    blocks: int
    """KV blocks the request can grow to on its decode worker."""


@value
class QueuePlace:
    """Where an entry stands."""

    position: int
    work_ahead_tokens: int


@value
class QueueStatus:
    """The whole queue in two numbers."""

    waiting: int
    waiting_tokens: int


@value
class PrefillRoom:
    """A worker that takes prompts while less than `limit_tokens` are bound to it."""

    key: str
    limit_tokens: int
    max_grants: int = 10**9
    """Of one call: what is granted at once goes to one worker, whoever else has become the better one."""


@value
class DecodeRoom:
    """A worker's whole capacity; what is leased of it, Redis knows."""

    key: str
    num_blocks: int
    max_seqs: int


@value
class Grant:
    """The head of the queue may go. Not settled within `GRANT_TTL_MS`, it has its place back instead."""

    request_key: str
    router_id: str
    worker_key: str
    decode_key: str
    """Where its blocks and its seat are held until then."""


@value
class Hold:
    """A credit's prompt tokens or a lease's blocks, as its router knows them."""

    request_key: str
    worker_key: str
    amount: int


class Settled(enum.Enum):
    """What became of a grant."""

    OK = "ok"
    NO_ROOM = "no_room"
    """The entry is back in its place, and what the grant held returned."""
    EXPIRED = "expired"
    """No grant of this worker's is held for it. Enqueue it again: that moves nothing that still waits."""


@value
class Settlement:
    """How a grant was settled, and the decode worker that its lease is on; none without one."""

    outcome: Settled
    decode_key: str = ""


@value
class Granted:
    """A grant for a session of this router, made by another router."""

    grant: Grant


@value
class Nudge:
    """Capacity has come back somewhere: a good moment to ask for grants."""


Notice = Granted | Nudge
