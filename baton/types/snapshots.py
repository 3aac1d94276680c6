"""The operators' view of a fleet: its fixed facts, and snapshots of its state."""

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
    deterministic: bool = False
    """The same tokens give the same bits on every worker, whatever else is in their steps."""


@dataclass(frozen=True, slots=True)
class QueueState:
    waiting: int
    waiting_tokens: int
    capacity: int
    running_sessions: int
    redis_reachable: bool
    waiting_interactive: int = 0
    """Requests of this class that wait at the router that sends this; `waiting` is of all routers."""
    waiting_standard: int = 0
    waiting_batch: int = 0


@dataclass(frozen=True, slots=True)
class CostState:
    """A worker's cost model: how long its steps take.

    coefficients, knee_tokens   seconds of a step by its contents, as in `scheduling/cost_model.py`
    ratio_q10, ratio_q50, ratio_q95   quantiles of actual / predicted over recent steps
    """

    is_trusted: bool
    """False while steps keep to a fixed token budget, because the predictions are too far off."""
    coefficients: tuple[float, ...]
    knee_tokens: float
    ratio_q10: float
    ratio_q50: float
    ratio_q95: float


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker's state. `free_blocks` includes cached blocks: they are free, but still hold a prefix."""

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
    cost: CostState | None
    dtype: str = ""
    """The type it computes in, such as bfloat16; empty if it computes nothing."""
    native_ops: bool = False
    """Whether it computes ops of a layer in C on a CPU, instead of leaving them to PyTorch."""
    host_blocks: int | None = None
    """KV blocks that have left its pool and are in host memory; None if it keeps none."""
    disk_blocks: int | None = None
    """KV blocks on its disk; None without one."""
    loadable_adapters: int | None = None
    """LoRA adapters that it has found and can serve; None if it loads none while it serves."""
    loaded_adapters: tuple[str, ...] = ()
    """The names of those in its memory."""

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - self.free_blocks


@dataclass(frozen=True, slots=True)
class StartingState:
    """A worker that does not serve yet."""

    worker_id: str
    role: Role | None
    phase: str
    done: int
    total: int
    """Bytes or steps of the phase; 0 if unknown."""
    silent_s: float
    """Seconds since its last report. A healthy worker reports every second."""

    @property
    def share(self) -> float | None:
        """The share of the phase that is done, 0 to 1; None if unknown."""
        return self.done / self.total if self.total else None


@dataclass(frozen=True, slots=True)
class FleetCounters:
    """Counts since the router started."""

    accepted: int
    refused: int
    finished: int
    failed: int
    cancelled: int
    relayed_tokens: int
    retried_attempts: int
    ttft_promises_kept: int
    ttft_promises_broken: int
    handed_over: int = 0
    """Ended requests whose prompt a prefill worker computed and handed over."""


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """One step of a worker, as it was reported to a router. With several routers each may miss some.

    step            the worker's count of steps
    reported_at_s   when the report arrived, as `FleetSnapshot.uptime_s`
    num_decodes     sequences that were decoded
    num_chunks, chunk_tokens   chunks of prompts, and their tokens
    sequences       numbers of the sequences that drew tokens, the first 32 at most
    """

    worker_id: str
    step: int
    reported_at_s: float
    step_seconds: float
    num_decodes: int
    num_chunks: int
    chunk_tokens: int
    sequences: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The state of a fleet, as one router sees it. `steps` is empty unless they are asked for."""

    router_id: str
    uptime_s: float
    queue: QueueState
    workers: tuple[WorkerState, ...]
    counters: FleetCounters
    starting: tuple[StartingState, ...] = ()
    steps: tuple[WorkerStep, ...] = ()
