"""Record the requests to this router, and find a typical worker: scaling is decided on these.

Once a second, what came since is added to the slots in Redis that all routers share, so either of them knows
the demand on the whole fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from itertools import islice

from router.core.model.capacity import cuts_steps
from router.core.model.events import Arrived
from router.core.model.fleet import Worker
from router.core.model.state import RouterState
from runtime.state.errors import StoreUnavailable
from runtime.state.store import Store
from scheduling.policies.slack import arrival_s
from scheduling.scaling.demand import Slot, came, total
from scheduling.scaling.need import typical
from scheduling.scaling.steady import WorkerModel, prompt_speed, work_s
from scheduling.speeds import PrefillSpeed, num_micro_batches
from scheduling.step import NO_LIMIT_S

FLUSH_S = 1.0
SAMPLE = 8
"""Workers of a role that are looked at for a typical one."""


class DemandRecorder:
    """The demand on this router that is not in Redis yet, and the workers last seen."""

    def __init__(self, store: Store, state: RouterState) -> None:
        self._store = store
        self._state = state
        self._unsent: list[Slot] = []
        self._prefill: WorkerModel | None = None
        self._decode: WorkerModel | None = None
        self._speed: PrefillSpeed | None = None
        self._looked_at = float("-inf")
        self.came = asyncio.Event()
        """Set with every request; whoever waits for one clears it."""

    def arrived(self, event: Arrived, now: float) -> None:
        """Count a new request; a call that goes on with one does not count again."""
        state, request = self._state, event.request
        slo, stop = request.slo, request.stop
        if request.session > 0 or (request.tenant, request.request_id) in state.live:
            return
        cached = self._cached_tokens(event)
        learnt = state.learnt.lengths[slo.slo_class]
        expected = learnt.expected(stop.max_tokens, ignore_eos=stop.ignore_eos)
        slack_s = None
        if slo.ttft_ms is not None:
            tokens = len(request.prompt_token_ids) - cached
            slack_s = slo.ttft_ms / 1000 - (now - request.received_at) - self._alone_s(tokens, now)
        self._unsent.append(
            came(
                prompt_tokens=len(request.prompt_token_ids),
                cached_tokens=cached,
                num_seqs=request.sampling.n,
                output_tokens=expected * request.sampling.n,
                slack_s=slack_s,
                pace_s=None if slo.pace_ms is None else slo.pace_ms / 1000,
            )
        )
        self.came.set()

    def workers(self) -> tuple[WorkerModel, WorkerModel] | None:
        """Return a typical prefill and a typical decode worker; None if none has measured its steps yet.

        Where there is no worker of a role, the last one seen counts, or else one of the other role.
        """
        fleet = self._state.fleet
        self._prefill = self._typical(fleet.prefilling) or self._prefill
        self._decode = self._typical(fleet.decoding) or self._decode
        prefill, decode = self._prefill or self._decode, self._decode or self._prefill
        return None if prefill is None or decode is None else (prefill, decode)

    @property
    def in_use(self) -> bool:
        """Whether this router holds requests, or has just received some."""
        return bool(self._state.live or self._unsent)

    async def run(self) -> None:
        """Add what came to Redis, once a second, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self._flush()

    async def _flush(self) -> None:
        if not self._unsent:
            return
        sent, self._unsent = self._unsent, []
        # Without Redis the demand of this second is lost: counted later, it would look like a burst.
        with contextlib.suppress(StoreUnavailable):
            await self._store.add_demand(total(sent))

    def _cached_tokens(self, event: Arrived) -> float:
        """Return the cached tokens that the prompt finds on the mean worker."""
        fleet = self._state.fleet
        hits = sum(event.hits.cached.values())
        return hits * fleet.block_size / len(fleet.computing) if hits and fleet.computing else 0.0

    def _alone_s(self, tokens: float, now: float) -> float:
        """Return the time of a prompt alone, by a worker that is looked at once a second."""
        if now - self._looked_at >= FLUSH_S:
            found, self._looked_at = self.workers(), now
            self._speed = None if found is None else prompt_speed(found[0])
        if self._speed is None:
            return 0.0
        # A pipeline computes one chunk of a prompt at a time, in one of the steps in flight.
        num_steps = num_micro_batches(self._speed.view.num_stages)
        return num_steps * work_s(tokens, tokens * tokens, self._speed)

    def _typical(self, workers: Sequence[Worker]) -> WorkerModel | None:
        return typical([self._model(worker) for worker in islice(workers, SAMPLE)])

    def _model(self, worker: Worker) -> WorkerModel:
        facts, is_short = worker.facts, cuts_steps(self._state.config.policy, worker.cost)
        return WorkerModel(
            worker.cost,
            facts.token_budget,
            facts.num_blocks,
            facts.block_size,
            facts.max_num_seqs,
            arrival_s(worker.cost) if is_short else NO_LIMIT_S,
            facts.num_stages,
        )
