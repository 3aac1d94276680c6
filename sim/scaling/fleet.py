"""Workers that start, serve and drain, and the requests that they serve, refuse or are late with.

Prompts wait in one queue by the time their first token is due; a free prefill worker takes the head. The
sequences of a decode worker advance together, each step as long as its cost says. A request is refused at its
arrival if its first token would be late, or no decode worker has a seat in which all paces are kept: what
`slack` promises, in the large.
"""

from __future__ import annotations

import heapq
import random
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from scheduling.scaling.steady import WorkerModel, prompt_speed, work_s
from scheduling.speeds import PrefillSpeed
from sim.scaling.day import Asked

STARTUP_S = (90.0, 150.0)
"""A worker serves so long after it was wanted: scheduling, weights, calibration."""
HANDOFF_S = 0.01


@dataclass(slots=True, eq=False)
class Worker:
    """A worker from the decision to start it until it has drained."""

    role: str
    began_s: float
    ready: bool = False
    draining: bool = False
    # A prefill worker
    busy_until_s: float = 0.0
    busy_s: float = 0.0
    # A decode worker
    tokens: float = 0.0
    """Tokens that each sequence would have, had it been here from the start."""
    at_s: float = 0.0
    running: list[tuple[float, int, _Sequence]] = field(default_factory=list)
    """A heap by the number of tokens at which each sequence ends."""
    coming: int = 0
    """Sequences whose prompts are still computed."""
    context: float = 0.0
    blocks: float = 0.0
    """Leased blocks, those of coming sequences included."""
    paces: list[float] = field(default_factory=list)
    version: int = 0

    @property
    def seats_taken(self) -> int:
        return len(self.running) + self.coming


@dataclass(slots=True, eq=False)
class _Sequence:
    asked: Asked
    worker: Worker
    blocks: float
    work_s: float
    due_s: float
    first_at_s: float = 0.0


@dataclass(slots=True)
class Tally:
    """The outcome of the requests, and its cost."""

    requests: int = 0
    kept: int = 0
    refused: int = 0
    late: int = 0
    worker_s: float = 0.0
    peak: int = 0


Heard = Callable[[Asked, float], None]
"""Called with each request and the seconds that its prompt takes alone."""


class Fleet:
    """The fleet on its own clock; `advance` moves it."""

    def __init__(self, worker: WorkerModel, seed: int, heard: Heard = lambda *_: None) -> None:
        self._model = worker
        self._speed: PrefillSpeed = prompt_speed(worker)
        self._rng = random.Random(f"fleet:{seed}")
        self._heard = heard
        self._events: list[tuple[float, int, int, Worker | None, _Sequence | None]] = []
        self._number = 0
        self._queue: list[tuple[float, int, _Sequence]] = []
        self.workers: dict[str, list[Worker]] = {"prefill": [], "decode": []}
        self._serving: dict[str, list[Worker]] = {"prefill": [], "decode": []}
        self.tally = Tally()
        self.now = 0.0

    # Scaling

    def replicas(self, role: str) -> int:
        """Return the workers that start or serve; draining ones do not count."""
        return sum(not worker.draining for worker in self.workers[role])

    def serving(self, role: str) -> list[Worker]:
        """Return the workers that take requests."""
        return self._serving[role]

    def _changed(self, role: str) -> None:
        members = self.workers[role]
        self._serving[role] = [worker for worker in members if worker.ready and not worker.draining]

    @property
    def waiting(self) -> int:
        """Prompts that no worker has begun."""
        return len(self._queue)

    def scale(self, role: str, wanted: int, *, at_once: bool = False) -> None:
        """Start or drain workers of a role."""
        for _ in range(wanted - self.replicas(role)):
            worker = Worker(role, self.now, at_s=self.now)
            self.workers[role].append(worker)
            worker.ready = at_once
            if not at_once:
                self._at(self.now + self._rng.uniform(*STARTUP_S), _READY, worker)
        staying = [worker for worker in self.workers[role] if not worker.draining]
        # Those that have not started go first, then those with the least to finish.
        staying.sort(key=lambda worker: (worker.ready, worker.seats_taken, worker.busy_until_s))
        for worker in staying[: max(0, len(staying) - wanted)]:
            worker.draining = True
            self._leave_if_done(worker)
        self._changed(role)

    # Requests

    def arrive(self, asked: Asked) -> None:
        """Accept or refuse a request at its time."""
        self.advance(asked.at_s)
        self.tally.requests += 1
        tokens = asked.prompt_tokens
        alone_s = work_s(tokens, tokens * tokens, self._speed)
        self._heard(asked, alone_s)
        due_s = asked.at_s + asked.promise.ttft_s
        worker = self._seat(asked)
        if worker is None or not self._is_in_time(due_s, alone_s):
            self.tally.refused += 1
            return
        blocks = (tokens + asked.output_tokens) / self._model.block_size
        worker.coming += 1
        worker.blocks += blocks
        insort(worker.paces, asked.promise.tpot_s)
        sequence = _Sequence(asked, worker, blocks, alone_s, due_s)
        self._number += 1
        insort(self._queue, (due_s, self._number, sequence))
        self._dispatch()

    def _is_in_time(self, due_s: float, alone_s: float) -> bool:
        serving = self.serving("prefill")
        if not serving:
            return False
        late = self._model.cost.ratio_q95
        ahead_s = sum(sequence.work_s for due, _, sequence in self._queue if due <= due_s)
        bound_s = sum(max(0.0, worker.busy_until_s - self.now) for worker in serving)
        soonest_s = max(0.0, min(worker.busy_until_s for worker in serving) - self.now)
        wait_s = soonest_s if not self._queue else (ahead_s + bound_s) / len(serving)
        return self.now + late * (wait_s + alone_s) <= due_s

    def _seat(self, asked: Asked) -> Worker | None:
        """Return the emptiest decode worker that keeps all paces with one more; None if there is none."""
        serving = self.serving("decode")
        if not serving:
            return None
        worker = min(serving, key=lambda candidate: candidate.seats_taken)
        blocks = worker.blocks + (asked.prompt_tokens + asked.output_tokens) / self._model.block_size
        if worker.seats_taken >= self._model.max_num_seqs or blocks > self._model.num_blocks:
            return None
        count = worker.seats_taken + 1
        mean = worker.context / len(worker.running) if worker.running else asked.prompt_tokens
        pace_s = min(asked.promise.tpot_s, worker.paces[0] if worker.paces else asked.promise.tpot_s)
        late = self._model.cost.ratio_q95
        return worker if late * self._step_s(count, count * mean) <= pace_s else None

    def _step_s(self, count: int, context: float) -> float:
        a0, c1, c3, c4, _, _ = self._model.cost.coefficients
        return a0 + c1 * count + c3 * max(0.0, count - self._model.cost.knee_tokens) + c4 * context

    def _dispatch(self) -> None:
        while self._queue:
            free = [worker for worker in self.serving("prefill") if worker.busy_until_s <= self.now]
            if not free:
                return
            _, _, sequence = self._queue.pop(0)
            worker, ratio = free[0], self._model.cost
            taken_s = sequence.work_s * self._rng.triangular(
                ratio.ratio_q10, ratio.ratio_q95, ratio.ratio_q50
            )
            worker.busy_until_s = self.now + taken_s
            worker.busy_s += taken_s
            self._at(worker.busy_until_s, _COMPUTED, worker, sequence)

    # Events

    def _at(self, time: float, kind: int, worker: Worker | None, sequence: _Sequence | None = None) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, kind, worker, sequence))

    def advance(self, until: float) -> None:
        """Let everything happen that is due by a time."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, kind, worker, sequence = heapq.heappop(events)
            assert worker is not None, "every event is a worker's"
            if kind == _READY:
                worker.ready, worker.at_s = True, self.now
                self._changed(worker.role)
                self._dispatch()
            elif kind == _COMPUTED:
                assert sequence is not None, "a prompt was computed"
                sequence.first_at_s = self.now
                self._at(self.now + HANDOFF_S, _JOINS, sequence.worker, sequence)
                self._leave_if_done(worker)
                self._dispatch()
            elif kind == _JOINS:
                assert sequence is not None, "a sequence joins"
                self._join(worker, sequence)
            elif kind == worker.version:
                self._end_due(worker)
        self.now = until

    def _join(self, worker: Worker, sequence: _Sequence) -> None:
        self._catch_up(worker)
        worker.coming -= 1
        asked = sequence.asked
        worker.context += asked.prompt_tokens + asked.output_tokens / 2
        self._number += 1
        heapq.heappush(worker.running, (worker.tokens + asked.output_tokens, self._number, sequence))
        self._plan(worker)

    def _catch_up(self, worker: Worker) -> None:
        if worker.running:
            step_s = self._step_s(len(worker.running), worker.context)
            worker.tokens += (self.now - worker.at_s) / step_s
        worker.at_s = self.now

    def _plan(self, worker: Worker) -> None:
        """Plan the next end; earlier plans are void."""
        worker.version += 1
        if worker.running:
            step_s = self._step_s(len(worker.running), worker.context)
            left = max(0.0, worker.running[0][0] - worker.tokens)
            self._at(self.now + left * step_s, worker.version, worker)

    def _end_due(self, worker: Worker) -> None:
        self._catch_up(worker)
        while worker.running and worker.running[0][0] <= worker.tokens + 1e-6:
            _, _, sequence = heapq.heappop(worker.running)
            asked = sequence.asked
            worker.context -= asked.prompt_tokens + asked.output_tokens / 2
            worker.blocks -= sequence.blocks
            worker.paces.remove(asked.promise.tpot_s)
            pace_s = (self.now - sequence.first_at_s) / max(1, asked.output_tokens - 1)
            in_time = sequence.first_at_s <= sequence.due_s and pace_s <= asked.promise.tpot_s
            if in_time:
                self.tally.kept += 1
            else:
                self.tally.late += 1
        self._plan(worker)
        self._leave_if_done(worker)

    def _leave_if_done(self, worker: Worker) -> None:
        if worker.draining and not worker.seats_taken and worker.busy_until_s <= self.now:
            self.workers[worker.role].remove(worker)
            self.tally.worker_s += self.now - worker.began_s

    def finish(self) -> Tally:
        """Count the workers that are left, and return the tally."""
        for workers in self.workers.values():
            self.tally.worker_s += sum(self.now - worker.began_s for worker in workers)
        return self.tally


_READY, _COMPUTED, _JOINS = -1, -2, -3
"""Kinds of events; a kind from 0 is the version of a decode worker's plan."""
