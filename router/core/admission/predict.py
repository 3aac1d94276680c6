"""Predicts what a request will experience: its TTFT, its TPOT, and how far such predictions are off.

The formulas are in `scheduling/admission/prediction.py`; here they get the fleet, the prompt's cached blocks
and what was learnt. A prediction is made for the fleet as a whole, then for the worker with the earliest
first token. It counts the part of the prompt that is cached, but no more than is sure to be cached where the
prompt ends up: the prefix directory knows what each worker holds, and several workers may come to take the
request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from router.core.admission.learnt import Learnt
from router.core.capacity.fleet import Fleet, Worker
from router.core.capacity.fleet_capacity import TPOT_SCALE, FleetCapacity, cuts_steps
from router.core.queue.waiting import WaitingGroups
from scheduling.admission.admission import Spread, at_most, at_rest
from scheduling.admission.lanes import soonest
from scheduling.admission.prediction import (
    Capacity,
    Prediction,
    QueueAhead,
    RequestCost,
    own_prefill_s,
    predict,
)
from scheduling.placement import Placement
from scheduling.policies.policy import Policy
from scheduling.request import Slo
from scheduling.value import value

NO_HITS: Mapping[str, int] = {}
"""Leading blocks of a prompt that each worker holds, by worker key: none."""


@value
class Forecast:
    """A prediction, with how far such predictions are off."""

    predicted: Prediction
    capacity: Capacity
    ttft: Spread
    tpot: Spread
    at_rest: bool
    """The fleet is idle, and nobody waits."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """All that predictions are made from. `hits` are a prompt's cached blocks by worker key."""

    policy: Policy
    fleet: Fleet
    capacity: FleetCapacity
    learnt: Learnt
    waiting: WaitingGroups

    def predict(
        self, cost: RequestCost, slo: Slo, ahead: QueueAhead, hits: Mapping[str, int], now: float
    ) -> Forecast:
        """Predict a request with this much ahead of it in the queue."""
        capacity = self.capacity.capacity(slo.pace_ms, now)
        work_ahead = ahead.tokens + self.fleet.bound_tokens
        load = self.load(capacity, now)
        predicted = predict(cost, QueueAhead(work_ahead, ahead.requests), capacity, load)
        predicted = self._on_soonest_worker(cost, ahead, predicted, hits, now)
        fixed_s = self.learnt.fixed_s(predicted.ttft_s - predicted.wait_s, now)
        predicted = replace(predicted, ttft_s=predicted.ttft_s + fixed_s, fixed_s=fixed_s)
        ttft, tpot = self.learnt.ttft_spread(predicted, now), self._tpot_spread(predicted, slo, capacity, now)
        is_at_rest = ahead.requests == 0 and self.fleet.idle
        if is_at_rest:
            ttft, tpot = at_rest(ttft), at_rest(tpot)
        return Forecast(predicted, capacity, ttft, tpot, is_at_rest)

    def load(self, capacity: Capacity, now: float) -> float:
        """Return the prompt tokens admitted per second of late, by what the fleet computes; at most 1."""
        return min(1.0, self.learnt.admitted.rate(now) / capacity.prefill_rate)

    def _tpot_spread(self, predicted: Prediction, slo: Slo, capacity: Capacity, now: float) -> Spread:
        tpot = Spread(*self.learnt.tpot.quantiles(predicted.batch_size * TPOT_SCALE, now))
        if slo.tpot_ms is None or not cuts_steps(self.policy, capacity.roomiest.cost):
            return tpot
        # A ratio times its divisor may exceed the TPOT by a rounding, and would refuse what is kept.
        kept_s = max(predicted.itl_s, slo.tpot_ms / 1000 * (1 - 1e-9))
        return at_most(tpot, kept_s / predicted.tpot_s)

    def _on_soonest_worker(
        self,
        cost: RequestCost,
        ahead: QueueAhead,
        predicted: Prediction,
        hits: Mapping[str, int],
        now: float,
    ) -> Prediction:
        """Return the prediction with the wait and the prompt time of the worker with the first token soonest.

        Where requests are bound late, they go to that worker. Baselines bind at arrival to the shortest
        queue, and the mean over the fleet stands. So it does where more requests stand ahead than there are
        workers: each worker has another prompt to take first.
        """
        if self.policy.binds_at_arrival or ahead.requests > len(self.fleet.computing):
            return predicted
        cached = self.cached_tokens(hits, ahead, now)
        most_cached = replace(cost, cached_tokens=max((cost.cached_tokens, *cached.values())))

        def own_s(key: str) -> float:
            own = replace(cost, cached_tokens=cached[key]) if key in cached else cost
            return own_prefill_s(own, self.capacity.prefill_speed(key, now))

        least_own_s = own_prefill_s(most_cached, self.capacity.capacity(None, now).quickest)
        wait_s, found_s = soonest(self.capacity.lanes(now), ahead.tokens, own_s, least_own_s)
        if predicted.waits_for_slot:
            wait_s = max(wait_s, predicted.wait_s)
        return replace(predicted, ttft_s=wait_s + found_s, wait_s=wait_s)

    def cached_tokens(self, hits: Mapping[str, int], ahead: QueueAhead, now: float) -> dict[str, int]:
        """Return the cached tokens to count for some workers; for all others `cached_everywhere` counts.

        The next request is offered to the workers that are free, or only to the soonest of these if they are
        more than the waiting requests: then each counts with what it holds. Otherwise any of them may take
        the request, and what all of them hold counts.
        """
        if not hits or ahead.requests > 0 or self.fleet.placement is Placement.CONDITIONAL:
            return {}
        free, size = self.capacity.free_workers(now), self.fleet.block_size
        if len(free) > max(1, len(self.waiting)):
            return {worker.key: hits.get(worker.key, 0) * size for worker in free}
        least = _least(hits, free) * size
        return {worker.key: least for worker in free}

    def cached_everywhere(self, hits: Mapping[str, int]) -> int:
        """Return the tokens of a prompt that every worker has cached."""
        if not hits:
            return 0
        return _least(hits, self.fleet.computing) * self.fleet.block_size

    def with_most_cached(self, cost: RequestCost, hits: Mapping[str, int]) -> RequestCost:
        """Return the cost of a request on the worker with the most cached blocks."""
        return replace(cost, cached_tokens=max(hits.values(), default=0) * self.fleet.block_size)


def _least(hits: Mapping[str, int], workers: Sequence[Worker]) -> int:
    if len(hits) < len(workers):
        return 0
    return min((hits.get(worker.key, 0) for worker in workers), default=0)
