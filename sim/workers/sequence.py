"""One request on one simulated worker.

    Decode    WAITING ───────────────────→ PREFILLING → RUNNING → (ended)
    Prefill   WAITING ───────────────────→ PREFILLING → HELD    → (ended by its hand-over)
    Receive   WAITING → RECEIVING → ARRIVED ─────────→ RUNNING → (ended)

A receiving sequence waits only for its blocks. What runs short of them is PREEMPTED, to be computed again, or
SWAPPED to host memory.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from scheduling.lateness import MEAN_GAPS
from scheduling.request import FinishReason, SequenceSpec
from scheduling.step import NO_LIMIT_S


class Goal(enum.Enum):
    """What a worker was told to do."""

    HOLD = "prefill"
    DECODE = "decode"
    RECEIVE = "receive"


class Phase(enum.Enum):
    """Where a sequence is on its way."""

    WAITING = "waiting"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"
    RECEIVING = "receiving"
    ARRIVED = "arrived"
    PREFILLING = "prefilling"
    HELD = "held"
    RUNNING = "running"
    ENDED = "ended"


class Sequence:
    """What is known of it. Tokens are counted, never named."""

    __slots__ = (
        "arrived_at",
        "block_table",
        "copied_blocks",
        "ends_at",
        "first_at",
        "gap_limit_s",
        "gaps",
        "generated",
        "goal",
        "handle",
        "has_kv",
        "is_resuming",
        "itl_s",
        "joined_at",
        "last_at",
        "num_blocks",
        "num_cached",
        "num_computed",
        "order",
        "output_tokens",
        "phase",
        "prompt_tokens",
        "reported",
        "router",
        "row",
        "sent_at",
        "shared_block_tokens",
        "shared_names",
        "spec",
        "tpot_s",
    )

    def __init__(
        self, router: int, spec: SequenceSpec, goal: Goal, output_tokens: int, arrived_at: float, order: int
    ) -> None:
        self.router = router
        self.handle = spec.handle
        self.spec = spec
        self.goal = goal
        self.phase = Phase.WAITING
        self.arrived_at = arrived_at
        self.order = order
        """Its place in the order of arrival."""
        self.shared_names: tuple[tuple[int, ...], ...] = ()
        """Of the pieces of its prompt that others may have computed."""
        self.shared_block_tokens = 0
        self.prompt_tokens = len(spec.prompt_token_ids)
        self.output_tokens = output_tokens
        """How long its answer will be."""
        self.generated = len(spec.output_token_ids)
        """Tokens of the answer, as of when it joined the batch last."""
        self.reported = self.generated
        self.num_computed = 0
        self.num_cached = 0
        self.num_blocks = 0
        """Promised to it; those that it shares not among them."""
        self.block_table: tuple[tuple[int, ...], ...] = ()
        """Names of the shared pieces of its prefix that it holds."""
        self.has_kv = False
        """Its prompt's blocks came from another worker."""
        self.is_resuming = False
        """It was preempted."""
        self.sent_at = 0.0
        """When what is computed of it will have been sent."""
        self.joined_at = 0
        """Decode steps of the worker before it joined."""
        self.ends_at = 0
        self.row = -1
        self.first_at: float | None = None
        self.last_at = 0.0
        self.gaps: list[NDArray[np.float64]] = []
        self.tpot_s = spec.tpot_ms / 1000 if spec.tpot_ms is not None else None
        self.itl_s = spec.itl_ms / 1000 if spec.itl_ms is not None else NO_LIMIT_S
        self.gap_limit_s = min(self.itl_s, MEAN_GAPS * self.tpot_s if self.tpot_s is not None else NO_LIMIT_S)
        self.copied_blocks = 0
        """In host memory."""

    @property
    def context_tokens(self) -> int:
        """To be computed before it decodes."""
        return self.prompt_tokens + self.generated

    @property
    def num_remaining(self) -> int:
        return self.prompt_tokens + self.generated - self.num_computed

    @property
    def is_over(self) -> bool:
        return self.generated >= self.output_tokens

    @property
    def finish_reason(self) -> FinishReason:
        """Why its newest token is its last, if it is."""
        if not self.is_over:
            return FinishReason.NONE
        is_cut = self.generated >= self.spec.stop.max_tokens
        return FinishReason.LENGTH if is_cut else FinishReason.EOS

    def add_token(self, now: float) -> None:
        """A token that a prompt's last chunk brought."""
        self.generated += 1
        if self.first_at is None:
            self.first_at = now
        else:
            self.gaps.append(np.array([now - self.last_at]))
        self.last_at = now

    def add_times(self, times: NDArray[np.float64]) -> None:
        """When decode steps gave it tokens."""
        gaps = np.empty(len(times))
        gaps[0] = times[0] - self.last_at
        np.subtract(times[1:], times[:-1], out=gaps[1:])
        self.gaps.append(gaps)
        self.last_at = float(times[-1])
