"""A fleet in the large, which simulates hours of requests in seconds: requests are simulated, and not steps.

Prompts wait in one queue by the time their first token is due; a free prefill worker takes the head. The
sequences of a decode worker advance together, each step as long as its cost says. A request is refused at its
arrival if its first token would be late, or no decode worker has a seat in which all paces are kept: what
`slack` promises, in the large.
"""

from __future__ import annotations

import heapq
import random
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from scheduling.scaling.steady import WorkerModel, prompt_speed, work_s
from sim.workloads.shapes import DEFAULT_CAPS, WORKLOADS

HANDOFF_S = 0.01
RAMP_S = 60.0
"""Documents begin to come within this long."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The limits that requests of one kind state; seconds."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Asked:
    """A request."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    promise: Promise


def requests(
    chats: tuple[float, Promise], documents: tuple[float, Promise], span_s: float, seed: int
) -> Iterator[Asked]:
    """Yield requests of both kinds in order, each at its rate and with its promise."""
    rng, now = random.Random(f"day:{seed}"), 0.0
    most = chats[0] * 2.5 + documents[0]
    while True:
        now += rng.expovariate(most)
        if now >= span_s:
            return
        drawn, rising = rng.random() * most, 0.1 + 0.9 * min(1.0, now / RAMP_S)
        if drawn < chats[0]:
            yield _asked(rng, now, "chat", chats[1])
        elif drawn < chats[0] + rising * documents[0]:
            yield _asked(rng, now, "summarise", documents[1])


def _asked(rng: random.Random, now: float, workload: str, promise: Promise) -> Asked:
    shape = WORKLOADS[workload](rng, 1.0, DEFAULT_CAPS[workload])
    return Asked(now, shape.prompt_tokens, shape.output_tokens, promise)


@dataclass(slots=True, eq=False)
class DecodeWorker:
    """A worker whose sequences advance together."""

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
    worker: DecodeWorker
    blocks: float
    work_s: float
    due_s: float
    first_at_s: float = 0.0


class LargeFleet:
    """The fleet on its own clock; `advance` moves it. `heard` gets each request, and how long its prompt
    takes alone.
    """

    def __init__(
        self,
        worker: WorkerModel,
        num_prefill: int,
        num_decode: int,
        heard: Callable[[Asked, float], None] = lambda *_: None,
    ) -> None:
        self._model = worker
        self._speed = prompt_speed(worker)
        self._rng = random.Random("fleet:1")
        self._heard = heard
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._queue: list[tuple[float, int, _Sequence]] = []
        self._busy_until_s = [0.0] * num_prefill
        self._decoders = [DecodeWorker() for _ in range(num_decode)]
        self._num_requests = 0
        self._num_kept = 0
        self.now = 0.0

    @property
    def kept_share(self) -> float:
        """The share of all requests that were accepted and whose promise was kept."""
        return self._num_kept / self._num_requests

    def arrive(self, asked: Asked) -> None:
        """Accept or refuse a request at its time."""
        self.advance(asked.at_s)
        self._num_requests += 1
        tokens = asked.prompt_tokens
        alone_s = work_s(tokens, tokens * tokens, self._speed)
        self._heard(asked, alone_s)
        due_s = asked.at_s + asked.promise.ttft_s
        worker = self._seat(asked)
        if worker is None or not self._is_in_time(due_s, alone_s):
            return
        blocks = (tokens + asked.output_tokens) / self._model.block_size
        worker.coming += 1
        worker.blocks += blocks
        insort(worker.paces, asked.promise.tpot_s)
        self._number += 1
        insort(self._queue, (due_s, self._number, _Sequence(asked, worker, blocks, alone_s, due_s)))
        self._dispatch()

    def _is_in_time(self, due_s: float, alone_s: float) -> bool:
        ahead_s = sum(sequence.work_s for due, _, sequence in self._queue if due <= due_s)
        bound_s = [max(0.0, until_s - self.now) for until_s in self._busy_until_s]
        wait_s = (ahead_s + sum(bound_s)) / len(bound_s) if self._queue else min(bound_s)
        return self.now + self._model.cost.ratio_q95 * (wait_s + alone_s) <= due_s

    def _seat(self, asked: Asked) -> DecodeWorker | None:
        """Return the emptiest decode worker that keeps all paces with one more; None if there is none."""
        worker = min(self._decoders, key=lambda candidate: candidate.seats_taken)
        blocks = worker.blocks + (asked.prompt_tokens + asked.output_tokens) / self._model.block_size
        if worker.seats_taken >= self._model.max_num_seqs or blocks > self._model.num_blocks:
            return None
        count = worker.seats_taken + 1
        mean = worker.context / len(worker.running) if worker.running else asked.prompt_tokens
        pace_s = min((asked.promise.tpot_s, *worker.paces[:1]))
        return worker if self._model.cost.ratio_q95 * self._step_s(count, count * mean) <= pace_s else None

    def _step_s(self, count: int, context: float) -> float:
        a0, c1, c3, c4, _, _ = self._model.cost.coefficients
        return a0 + c1 * count + c3 * max(0.0, count - self._model.cost.knee_tokens) + c4 * context

    def _dispatch(self) -> None:
        for place, until_s in enumerate(self._busy_until_s):
            if not self._queue:
                return
            if until_s <= self.now:
                _, _, sequence = self._queue.pop(0)
                ratio = self._model.cost
                scatter = self._rng.triangular(ratio.ratio_q10, ratio.ratio_q95, ratio.ratio_q50)
                self._busy_until_s[place] = self.now + sequence.work_s * scatter
                self._at(self._busy_until_s[place], partial(self._computed, sequence))

    def _at(self, time: float, happens: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, happens))

    def advance(self, until: float) -> None:
        """Let everything happen that is due by a time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, happens = heapq.heappop(self._events)
            happens()
        self.now = until

    def _computed(self, sequence: _Sequence) -> None:
        sequence.first_at_s = self.now
        self._at(self.now + HANDOFF_S, partial(self._join, sequence.worker, sequence))
        self._dispatch()

    def _join(self, worker: DecodeWorker, sequence: _Sequence) -> None:
        self._catch_up(worker)
        worker.coming -= 1
        asked = sequence.asked
        worker.context += asked.prompt_tokens + asked.output_tokens / 2
        self._number += 1
        heapq.heappush(worker.running, (worker.tokens + asked.output_tokens, self._number, sequence))
        self._plan(worker)

    def _catch_up(self, worker: DecodeWorker) -> None:
        if worker.running:
            worker.tokens += (self.now - worker.at_s) / self._step_s(len(worker.running), worker.context)
        worker.at_s = self.now

    def _plan(self, worker: DecodeWorker) -> None:
        """Plan the next end; earlier plans are void."""
        worker.version += 1
        version = worker.version
        if worker.running:
            left = max(0.0, worker.running[0][0] - worker.tokens)
            ends_at_s = self.now + left * self._step_s(len(worker.running), worker.context)
            self._at(ends_at_s, lambda: self._end_due(worker) if worker.version == version else None)

    def _end_due(self, worker: DecodeWorker) -> None:
        self._catch_up(worker)
        while worker.running and worker.running[0][0] <= worker.tokens + 1e-6:
            _, _, sequence = heapq.heappop(worker.running)
            asked = sequence.asked
            worker.context -= asked.prompt_tokens + asked.output_tokens / 2
            worker.blocks -= sequence.blocks
            worker.paces.remove(asked.promise.tpot_s)
            pace_s = (self.now - sequence.first_at_s) / max(1, asked.output_tokens - 1)
            self._num_kept += sequence.first_at_s <= sequence.due_s and pace_s <= asked.promise.tpot_s
        self._plan(worker)
