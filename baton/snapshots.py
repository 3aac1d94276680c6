"""What operators see of a fleet: its fixed facts, and a snapshot of everything that moves."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class FleetFacts:
    model_name: str
    architecture: str
    fingerprint: str
    block_size: int
    max_context_tokens: int
    placement: str
    version: str


@dataclass(frozen=True, slots=True)
class QueueState:
    waiting: int
    waiting_tokens: int
    capacity: int
    running_sessions: int
    redis_reachable: bool


@dataclass(frozen=True, slots=True)
class WorkerState:
    """`free_blocks` counts the cached ones too: they are free, but still hold a prefix."""

    worker_id: str
    incarnation: str
    address: str
    role: Role | None
    connected: bool
    draining: bool
    step: int
    running: int
    waiting: int
    pending_prefill_tokens: int
    context_tokens: int
    num_blocks: int
    free_blocks: int
    cached_blocks: int
    leased_blocks: int
    step_seconds: float

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - self.free_blocks


@dataclass(frozen=True, slots=True)
class FleetCounters:
    """Since the router started."""

    accepted: int
    refused: int
    finished: int
    failed: int
    cancelled: int
    relayed_tokens: int
    retried_attempts: int
    ttft_promises_kept: int
    ttft_promises_broken: int


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """As one router sees it."""

    router_id: str
    uptime_s: float
    queue: QueueState
    workers: tuple[WorkerState, ...]
    counters: FleetCounters
