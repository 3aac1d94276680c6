"""Prompts bound to the workers that compute them: who has room for more, and when each would be free.

Kept by worker: only those whose bound prompts have moved since somebody asked are looked at again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.core.capacity.fleet import Fleet, Worker
from scheduling.admission.lanes import Lane


@dataclass(frozen=True, slots=True)
class PromptQueue:
    """A worker that computes prompts, as those see it that come to it."""

    rate: float
    """Tokens per second."""
    half_step_s: float
    """Until the step that runs is over, where it computes a prompt."""
    half_decode_s: float
    """The same where it computes none; 0 where nothing runs."""
    limit: int
    """Tokens from which on nothing more is bound to it."""

    def wait_s(self, bound_tokens: int) -> float:
        """Until what is bound to it is computed."""
        return bound_tokens / self.rate + self.half_step_s if bound_tokens else self.half_decode_s


class PromptQueues:
    """Those of a fleet's open workers, in the fleet's order."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._queues: dict[str, PromptQueue] = {}
        self._lanes: dict[str, Lane] = {}
        self._roomy: dict[str, Worker] = {}
        """Those below their limit."""
        self._places: dict[str, int] = {}

    def __getitem__(self, worker_key: str) -> PromptQueue:
        """How it works off the prompts bound to it."""
        return self._queues[worker_key]

    def begin(self, workers: Sequence[Worker]) -> None:
        """Other workers compute prompts than before; each is to be `put`, in this order."""
        self._places = {worker.key: place for place, worker in enumerate(workers)}
        for known in (self._queues, self._lanes, self._roomy, self._fleet.stirred):
            known.clear()

    def put(self, worker: Worker, queue: PromptQueue) -> None:
        """It works them off like this from now on."""
        self._queues[worker.key] = queue
        self._look_at(worker, queue)

    def lanes(self) -> list[Lane]:
        """When each is free."""
        self._catch_up()
        return list(self._lanes.values())

    def free(self) -> list[Worker]:
        """Those that have capacity to offer."""
        self._catch_up()
        free = [worker for worker in self._roomy.values() if not worker.asking]
        return sorted(free, key=lambda one: self._places[one.key])

    def _catch_up(self) -> None:
        stirred = self._fleet.stirred
        while stirred:
            key, _ = stirred.popitem()
            self._look_at(self._fleet.workers[key], self._queues[key])

    def _look_at(self, worker: Worker, queue: PromptQueue) -> None:
        bound = worker.bound_tokens
        self._lanes[worker.key] = Lane(worker.key, queue.wait_s(bound), queue.rate)
        if bound < queue.limit:
            self._roomy[worker.key] = worker
        else:
            self._roomy.pop(worker.key, None)
