"""Ways to decide how many workers a fleet needs, each through a HorizontalPodAutoscaler for each role.

`Slack` is the router's own decision, which reaches the autoscaler through KEDA. `Utilisation` and `Queue`
are what is used without it. Of several metrics in use, each takes the one that follows load best:

    utilisation   prefill: share of time busy, mean of 30 s; decode: share of KV blocks in use
    queue         prompts waiting or computed, and sequences running, for each worker
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from scheduling.placement import Placement
from scheduling.scaling.demand import EMPTY, NUM_SLOTS, SLOT_S, Slot, came, total
from scheduling.scaling.need import Goal, decode_needed, prefill_needed
from scheduling.scaling.steady import WorkerModel
from sim.scaling.day import Asked
from sim.scaling.fleet import Fleet, Worker
from sim.scaling.hpa import STABILISATION_S, for_average_value, for_pods

PREFILL, DECODE = ROLES = ("prefill", "decode")
WINDOW_S = 30.0
SLACK_STABILISATION_S = 120.0
"""The chart's: a pause takes nothing anyhow."""


class Arm(Protocol):
    """Proposes replicas; `stabilisation_s` is its autoscalers' for scaling down."""

    stabilisation_s: float

    def heard(self, asked: Asked, alone_s: float) -> None:
        """Take in a request at its arrival."""

    def propose(self, fleet: Fleet, role: str) -> int:
        """Return the replicas of a role that the metric asks for now."""


def as_slot(asked: Asked, alone_s: float) -> Slot:
    """Return what a request adds to its slot, as routers record it."""
    return came(
        prompt_tokens=asked.prompt_tokens,
        cached_tokens=0.0,
        num_seqs=1,
        output_tokens=float(asked.output_tokens),
        slack_s=asked.promise.ttft_s - alone_s,
        pace_s=asked.promise.tpot_s,
    )


@dataclass(slots=True)
class Slack:
    """The workers that keep the promises of the present load, as the router counts them."""

    worker: WorkerModel
    goal: Goal
    stabilisation_s: float = SLACK_STABILISATION_S
    _slots: deque[Slot] = field(default_factory=lambda: deque(maxlen=NUM_SLOTS))
    _present: int = 0
    _came: list[Slot] = field(default_factory=list)

    def heard(self, asked: Asked, alone_s: float) -> None:
        self._move_to(asked.at_s)
        self._came.append(as_slot(asked, alone_s))

    def propose(self, fleet: Fleet, role: str) -> int:
        self._move_to(fleet.now)
        decide = prefill_needed if role == PREFILL else decode_needed
        needed = decide(list(self._slots), self.worker, Placement.DISAGGREGATED, self.goal)
        return for_average_value(float(needed.workers), 1.0, fleet.replicas(role))

    def _move_to(self, now: float) -> None:
        while self._present < int(now / SLOT_S):
            self._slots.append(total(self._came) if self._came else EMPTY)
            self._came = []
            self._present += 1


@dataclass(slots=True)
class Utilisation:
    """A share of each worker's time or memory, held at a target."""

    prefill: float
    decode: float
    worker: WorkerModel
    stabilisation_s: float = STABILISATION_S
    _busy: dict[Worker, deque[tuple[float, float]]] = field(default_factory=dict)

    def heard(self, asked: Asked, alone_s: float) -> None:
        pass

    def propose(self, fleet: Fleet, role: str) -> int:
        serving = fleet.serving(role)
        unready = fleet.replicas(role) - len(serving)
        if role == DECODE:
            values = [worker.blocks / self.worker.num_blocks for worker in serving]
            return for_pods(values, unready, self.decode)
        self._busy = {worker: self._busy.get(worker, deque()) for worker in serving}
        return for_pods([self._share(fleet.now, worker) for worker in serving], unready, self.prefill)

    def _share(self, now: float, worker: Worker) -> float:
        """Return the share of the window in which a prefill worker was busy."""
        seen = self._busy[worker]
        done_s = worker.busy_s - max(0.0, worker.busy_until_s - now)
        seen.append((now, done_s))
        while len(seen) > 1 and seen[0][0] < now - WINDOW_S:
            seen.popleft()
        since, before_s = seen[0]
        return (done_s - before_s) / (now - since) if now > since else min(1.0, worker.busy_s / WINDOW_S)


@dataclass(slots=True)
class Queue:
    """Requests at each worker, waiting and running, held at a target."""

    prefill: float
    decode: float
    stabilisation_s: float = STABILISATION_S

    def heard(self, asked: Asked, alone_s: float) -> None:
        pass

    def propose(self, fleet: Fleet, role: str) -> int:
        serving = fleet.serving(role)
        if role == PREFILL:
            length = fleet.waiting + sum(worker.busy_until_s > fleet.now for worker in serving)
            return for_average_value(length, self.prefill, fleet.replicas(role))
        length = sum(worker.seats_taken for worker in serving)
        return for_average_value(length, self.decode, fleet.replicas(role))
