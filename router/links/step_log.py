"""The steps that workers report, for operators who watch them. While nobody does, nothing is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from router.core.model.events import StepReported

MAX_STEPS = 256
"""Steps of one worker that are kept between two looks at them."""
MAX_SEQUENCES = 32
"""Sequences of one step that are named."""


@dataclass(frozen=True, slots=True)
class NotedStep:
    """One step of a worker: `WorkerStep` of `fleet.proto`. `noted_at` is on the router's clock."""

    worker_id: str
    step: int
    noted_at: float
    step_seconds: float
    num_decodes: int
    num_chunks: int
    chunk_tokens: int
    sequences: tuple[int, ...]


class StepTail:
    """The steps that one watcher has not seen yet: of each worker at most the last `MAX_STEPS`."""

    def __init__(self) -> None:
        self._by_worker: dict[str, deque[NotedStep]] = {}

    def put(self, step: NotedStep) -> None:
        self._by_worker.setdefault(step.worker_id, deque(maxlen=MAX_STEPS)).append(step)

    def take(self) -> list[NotedStep]:
        """Return the steps in the order of their reports, and forget them."""
        steps = [step for kept in self._by_worker.values() for step in kept]
        self._by_worker.clear()
        return sorted(steps, key=_noted_at)


class StepLog:
    """Hands each step to those who watch steps."""

    def __init__(self) -> None:
        self._tails: set[StepTail] = set()

    @property
    def is_watched(self) -> bool:
        return bool(self._tails)

    @contextmanager
    def watched(self) -> Iterator[StepTail]:
        """Keep steps for one watcher while the block lasts."""
        tail = StepTail()
        self._tails.add(tail)
        try:
            yield tail
        finally:
            self._tails.discard(tail)

    def note(self, worker_id: str, report: StepReported, now: float) -> None:
        """Keep the step of a report, if one ran."""
        shape = report.shape
        if shape is None:
            return
        step = NotedStep(
            worker_id=worker_id,
            step=report.load.step,
            noted_at=now,
            step_seconds=report.step_s,
            num_decodes=shape.num_decodes,
            num_chunks=shape.num_seqs - shape.num_decodes,
            chunk_tokens=shape.num_tokens - shape.num_decodes,
            sequences=tuple(dict.fromkeys(report.tokens.handles))[:MAX_SEQUENCES],
        )
        for tail in self._tails:
            tail.put(step)


def _noted_at(step: NotedStep) -> float:
    return step.noted_at
