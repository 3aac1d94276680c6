"""The records that Redis stores. Times are milliseconds of Redis's own clock."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field

from scheduling.admission.shares import SEAT_SHARE
from scheduling.value import value

CLASS_SCORE = 10**13
"""A class outweighs any due time: this many milliseconds are three centuries."""
GRANT_TTL_MS = 1000
"""The time that a busy router has to settle a grant before it expires."""
LEASE_TTL_S = 10.0
"""The holds of a dead router expire after this time; a living router renews them every second."""
SILENT_MS = 3000
"""A router that has asked for no place and no grants for this long gets none, even if its requests wait."""
ABANDONED_MS = round(LEASE_TTL_S * 1000)
"""The first places of a router that has asked for nothing for this long are forgotten, as its holds are. One
that only stood still asks for them again.
"""
MOST_FORGOTTEN = 100
"""Places that one call forgets, so that no call takes long."""
MAX_GRANTS_LOST = 2
"""An entry gets its place back after this many expired grants; then its router must enqueue it again."""
START_TTL_MS = 30_000
"""The announcement of a starting worker expires after this long without a report."""
MOST_PASSED = 64
"""Entries at the head of the queue among which a grant looks for one whose adapter the worker has."""
PREFIX_TTL_MS = 30_000
"""The published prefixes of a worker that was never announced expire after this long."""


@value
class TierRecord:
    """The KV blocks of a worker in host memory, or those on its disk, as they are now."""

    num_blocks: int
    wait_s: float
    """Seconds until a read that is asked for would begin."""
    block_s: float
    """Seconds to read a block."""

    def read_s(self, num_blocks: int) -> float:
        """Return how long a read of so many blocks is expected to take."""
        return self.wait_s + num_blocks * self.block_s


@value
class LinkRecord:
    """How fast a worker fetches blocks from others now."""

    wait_s: float
    """Seconds from a request until the first block comes."""
    block_s: float
    """Seconds for each block."""
    by_source: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The two from workers that it has fetched from lately, by incarnation: a few, however many there are."""

    def speed_of(self, incarnation: str) -> tuple[float, float]:
        """Return the wait, and the time for each block, from one worker."""
        wait_s, block_s = self.by_source.get(incarnation, (self.wait_s, self.block_s))
        return wait_s, block_s


@value
class LoraRecord:
    """The LoRA adapters of a worker that loads them when requests ask for them, as they are now."""

    adapters: Mapping[str, str] = field(default_factory=dict)
    """The digests of those that it can load, by name."""
    load_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that loading each of these would take, by digest, without those in its memory."""
    loaded: tuple[str, ...] = ()
    """The digests of those in its memory; the files of some may have changed since."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why others that it has found cannot be served, by name."""


@value
class Leading:
    """Leading blocks of a prompt that a worker has."""

    cached: int
    """In its pool."""
    on_disk: int = 0
    """Behind those in its pool and in host memory, on its disk or in host memory."""
    in_host: int = 0
    """Right behind those in its pool, in host memory."""


@value
class WorkerRecord:
    """A worker's announcement; it expires when the worker's heartbeat stops."""

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
    """A digest of what a deterministic worker computes; empty for any other."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The digests of its LoRA adapters, by name."""
    disk: TierRecord | None = None
    """None without one."""
    link: LinkRecord | None = None
    """None if the worker neither lends blocks to others nor fetches theirs."""
    num_stages: int = 1
    """Its pipeline stages."""
    lora: LoraRecord | None = None
    """None if it loads no adapters while it serves; those in `adapters` are always in its memory."""
    host: TierRecord | None = None
    """None if it keeps no blocks in host memory."""
    model_commit: str = ""
    """The commit of a model of the hub; empty for any other."""

    @property
    def key(self) -> str:
        """The name of this process of the worker; credits and leases of earlier processes do not count."""
        return f"{self.worker_id}:{self.incarnation}"


def incarnation_of(worker_key: str) -> str:
    """Return the process that a key of a `WorkerRecord` names."""
    return worker_key.rpartition(":")[2]


@value
class StartingRecord:
    """The announcement of a worker that does not serve yet."""

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
        """The name of this process of the worker."""
        return f"{self.worker_id}:{self.incarnation}"


@value
class Starting:
    """A starting worker, and the time since its last report."""

    record: StartingRecord
    silent_s: float


@value
class QueueEntry:
    """A waiting request. The queue is ordered by class, then by due time."""

    request_key: str
    router_id: str
    """The router's name in the store (`CoreConfig.caller`)."""
    slo_class: int
    due_in_ms: int
    work_tokens: int
    """Prompt tokens to compute."""
    blocks: int
    """KV blocks that the request can grow to on its decode worker."""
    adapter: str = ""
    """The digest of its LoRA adapter; empty without one."""
    seats: int = 1
    """Sequences that it will run."""
    share: int = SEAT_SHARE
    """The count of its seats for its tenant (`scheduling.admission.shares`)."""
    takes_turns: bool = True
    """Its place may go to a request of a tenant that holds fewer seats."""


@value
class QueuePlace:
    """The place of an entry in the queue."""

    position: int
    work_ahead_tokens: int


@value
class QueueStatus:
    """The size of the whole queue."""

    waiting: int
    waiting_tokens: int


@value
class PrefillRoom:
    """A worker that takes prompts while less than `limit_tokens` are bound to it, or too few prompts."""

    key: str
    limit_tokens: int
    max_grants: int = 10**9
    """The most grants of one call: these all go to one worker, even if another becomes better meanwhile."""
    adapters: tuple[str, ...] = ()
    """The digests of its LoRA adapters."""
    min_prompts: int = 0
    """Prompts that may be bound to it however long they are: a pipeline computes several at once."""


@value
class DecodeRoom:
    """A worker's whole capacity; Redis knows how much of it is leased."""

    key: str
    num_blocks: int
    max_seqs: int
    """Seats: one for each sequence."""
    adapters: tuple[str, ...] = ()
    """The digests of its LoRA adapters."""


@value
class Grant:
    """Permission for the head of the queue to run.

    If it is not settled within `GRANT_TTL_MS`, the request returns to its place.
    """

    request_key: str
    router_id: str
    worker_key: str
    decode_key: str
    """The decode worker on which its blocks and its seat are held until then."""


@value
class Hold:
    """A credit's prompt tokens or a lease's blocks, according to its router."""

    request_key: str
    worker_key: str
    amount: int
    seats: int = 1
    share: int = SEAT_SHARE


@value
class LostHolds:
    """Credits and leases that could not be renewed since they are not held, by request key and worker key."""

    credits: tuple[tuple[str, str], ...] = ()
    leases: tuple[tuple[str, str], ...] = ()


class Settled(enum.Enum):
    """The outcome of settling a grant."""

    OK = "ok"
    NO_ROOM = "no_room"
    """The entry is back in its place, and what the grant held is released."""
    EXPIRED = "expired"
    """It has no grant on this worker. Enqueue it again: that does not move an entry that still waits."""


@value
class Settlement:
    """The outcome, and the decode worker of the lease; empty without a lease."""

    outcome: Settled
    decode_key: str = ""


@value
class Nudge:
    """Capacity has been released somewhere while requests wait: a good moment to ask for grants."""


@value
class Cancelled:
    """A client has asked another router to end this generation."""

    tenant: str
    request_id: str


Notice = Grant | Nudge | Cancelled
