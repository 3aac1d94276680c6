"""Prompts bound to the workers that compute them: which workers have room for more, and when each is free.

Only workers whose bound prompts have changed since the last question are looked at again.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core.capacity.fleet import Fleet, Worker
from scheduling.admission.lanes import Lane
from scheduling.value import value


@value
class PromptQueue:
    """How a worker computes the prompts bound to it, in arrival order at the worker."""

    rate: float
    """Tokens per second."""
    half_step_s: float
    """Expected rest of a running step that computes a prompt."""
    half_decode_s: float
    """Expected rest of a running step that computes none; 0 where nothing runs."""
    limit: int
    """Tokens from which on nothing more is bound to the worker."""

    def wait_s(self, bound_tokens: int) -> float:
        """Return the time until so many bound tokens are computed."""
        return bound_tokens / self.rate + self.half_step_s if bound_tokens else self.half_decode_s


class PromptQueues:
    """The prompt queues of the workers that a fleet gives prompts, in the fleet's order."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.by_worker: dict[str, PromptQueue] = {}
        self._lanes: dict[str, Lane] = {}
        self._roomy: dict[str, Worker] = {}
        """Workers below their limit."""
        self._places: dict[str, int] = {}

    def begin(self, workers: Sequence[Worker]) -> None:
        """Start again with other workers; each is then `put`, in this order."""
        self._places = {worker.key: place for place, worker in enumerate(workers)}
        for known in (self.by_worker, self._lanes, self._roomy, self._fleet.dirty):
            known.clear()

    def put(self, worker: Worker, queue: PromptQueue) -> None:
        """Set how a worker computes its prompts from now on."""
        self.by_worker[worker.key] = queue
        self._look_at(worker, queue)

    def lanes(self) -> list[Lane]:
        """Return when each worker is free."""
        self._catch_up()
        return list(self._lanes.values())

    def free(self) -> list[Worker]:
        """Return the workers that have capacity to offer."""
        self._catch_up()
        free = [worker for worker in self._roomy.values() if not worker.asking]
        return sorted(free, key=lambda worker: self._places[worker.key])

    def _catch_up(self) -> None:
        dirty = self._fleet.dirty
        while dirty:
            key, _ = dirty.popitem()
            self._look_at(self._fleet.workers[key], self.by_worker[key])

    def _look_at(self, worker: Worker, queue: PromptQueue) -> None:
        bound = worker.bound_tokens
        self._lanes[worker.key] = Lane(worker.key, queue.wait_s(bound), queue.rate)
        if bound < queue.limit:
            self._roomy[worker.key] = worker
        else:
            self._roomy.pop(worker.key, None)
