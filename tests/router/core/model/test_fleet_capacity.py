"""Totals kept as the fleet changes equal those of counting it all again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.core import RouterCore
from router.core.model.actions import AskGrants, SendDecode, SendPrefill, SendReceive, Settle
from router.core.model.events import (
    CancelAsked,
    DrainAsked,
    Enqueued,
    Granted,
    GrantsAnswered,
    SettleAnswered,
    StepReported,
    WorkerFacts,
    WorkerJoined,
    WorkerLoad,
    WorkerLost,
)
from router.core.model.fleet import MAX_AGE_S, FleetCapacity
from router.core.model.session import Group, Phase
from runtime.state.records import Settled
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.placement import Placement
from scheduling.request import FinishReason, Slo
from tests.router.core_driver import ARRIVAL, call, core_of

COST = CostModel((0.005, 0.001, 0.00005, 2e-5, 1e-8, 1e-8), 8.0)
"""Costs with which a few sequences fill what the strictest pace allows."""
COSTS = (COST, COST, replace(COST, is_trusted=False), replace(COST, ratio_q95=1.5))
WORKERS = [
    WorkerFacts(name, "1", role, f"{name}:1", "fp", 4, 400, 8, 128, num_stages=num_stages)
    for name, role, num_stages in (("p1", "prefill", 2), ("d1", "decode", 1), ("d2", "decode", 3))
]
PACES = (None, 12)
TURNS = ["arrive", "arrive", "arrive", *["report"] * 10, "cancel", "drain", "lose", "join"]
turns = st.lists(
    st.tuples(
        st.sampled_from(TURNS),
        st.sampled_from(WORKERS),
        st.sampled_from(PACES),
        st.sampled_from([0, 99]),
        st.sampled_from([0, 4]),
        st.sampled_from(COSTS),
        st.sampled_from([0.0, 0.01, 2 * MAX_AGE_S, 2 * MAX_AGE_S]),
    ),
    min_size=10,
    max_size=30,
)


class Driven:
    """A core whose workers take what they are offered, and report as they are told to."""

    def __init__(self, placement: Placement) -> None:
        self.core = core_of("slack", *WORKERS, placement=placement, cost=COST)
        self.now = 1.0
        self.arrived = 0
        self.running: dict[str, dict[int, int]] = {}
        """By worker and handle: tokens so far."""

    def tell(self, event: object) -> None:
        for action in self.core.on(event, self.now):  # type: ignore[arg-type]  # one of `Event`
            match action:
                case AskGrants():
                    self.grant(action)
                case Settle():
                    outcome = SettleAnswered(
                        action.request_key, action.prefill_key, action.decoders[0].key, Settled.OK
                    )
                    self.tell(outcome)
                case SendDecode(key, spec) | SendPrefill(key, spec) | SendReceive(key, spec):
                    self.running.setdefault(key, {})[spec.handle] = 0

    def grant(self, asked: AskGrants) -> None:
        head = self.core.state.waiting.head
        if head is not None and asked.decoders and self.arrived % 4:
            self.tell(Granted(head.key, asked.worker.key, asked.decoders[0].key))
        if self.arrived % 5:
            self.tell(GrantsAnswered(asked.worker.key))

    def arrive(self, _: WorkerFacts, pace_ms: int | None, amount: int, ahead: int, __: CostModel) -> None:
        self.arrived += 1
        name, slo = f"r{self.arrived}", Slo(tpot_ms=pace_ms)
        event = call(ARRIVAL, request_id=name, listener=self.arrived, prompt_token_ids=range(amount + 1))
        self.tell(call(event, slo=slo, received_at=self.now))
        self.tell(Enqueued(f"t/{name}/0", 0, ahead))

    def report(
        self, facts: WorkerFacts, pace_ms: int | None, amount: int, running: int, cost: CostModel
    ) -> None:
        rows = self.running.get(facts.key, {})
        tokens = TokenColumns()
        for handle in list(rows)[:1]:
            reason = FinishReason.EOS if pace_ms is None else FinishReason.NONE
            tokens = TokenColumns([handle], [0], [rows[handle]], [9], [int(reason)])
            rows[handle] += 1
        load = WorkerLoad(0, running, 0, amount, free_blocks=400 - amount, context_tokens=10 * (pace_ms or 0))
        self.tell(StepReported(facts.key, tokens, load, 0.01, cost=cost))

    def cancel(self, *_: object) -> None:
        self.tell(CancelAsked("t", f"r{self.arrived}"))

    def drain(self, facts: WorkerFacts, *_: object) -> None:
        self.tell(DrainAsked(facts.worker_id))

    def lose(self, facts: WorkerFacts, *_: object) -> None:
        self.running.pop(facts.key, None)
        self.tell(WorkerLost(facts.key, "gone"))

    def join(self, facts: WorkerFacts, *_: object) -> None:
        self.running.pop(facts.key, None)
        self.tell(WorkerJoined(facts, WorkerLoad(free_blocks=400), COST))


def check_queues(core: RouterCore) -> None:
    """These are followed exactly, however old the rest is."""
    capacity, computing, now = core.state.capacity, core.state.fleet.computing, core.state.now
    queues = {worker.key: capacity.prompt_queue(worker, now) for worker in computing}
    free = [entry for entry in computing if not entry.asking and queues[entry.key].has_room(entry)]
    assert capacity.free_workers(now) == free
    assert [(lane.key, lane.wait_s) for lane in capacity.lanes(now)] == [
        (entry.key, queues[entry.key].wait_s(entry.bound_tokens)) for entry in computing
    ]
    assert core.state.fleet.bound_tokens == sum(entry.bound_tokens for entry in computing)
    bound = Counter(filter(None, map(_bound_to, core.state.groups.values())))
    assert {entry.key: entry.bound_prompts for entry in computing} == {
        entry.key: bound[entry.key] for entry in computing
    }


def _bound_to(group: Group) -> str | None:
    return group.prefill_key if group.phase is Phase.SETTLING else group.credit_on


def seen(core: RouterCore, capacity: FleetCapacity) -> list[object]:
    fleet, now = core.state.fleet, core.state.now
    found: list[object] = [capacity.free_workers(now), capacity.lanes(now)]
    found += [
        (capacity.prefill_speed(worker, now), capacity.chunk(worker, now)) for worker in fleet.computing
    ]
    found += [capacity.decode_view(worker, now) for worker in fleet.workers.values()]
    found += [capacity.seat_limit(worker, pace, now) for worker in fleet.workers.values() for pace in PACES]
    return found + [capacity.capacity(pace, now) for pace in PACES if fleet.serves]


@settings(max_examples=150)
@given(st.sampled_from(Placement), turns)
def test_what_is_kept_is_what_would_be_found_afresh(
    placement: Placement, turns: list[tuple[str, WorkerFacts, int | None, int, int, CostModel, float]]
) -> None:
    driven = Driven(placement)
    core = driven.core
    for name, facts, pace_ms, amount, few, cost, later_s in turns:
        driven.now += later_s
        turn: Callable[..., None] = getattr(driven, name)
        turn(facts, pace_ms, amount, few, cost)
        check_queues(core)
        if later_s > MAX_AGE_S:
            driven.now += later_s
            state = core.state
            state.now = driven.now
            afresh = FleetCapacity(state.config.policy, state.fleet, state.learnt.tpot)
            kept = seen(core, state.capacity)
            assert kept == seen(core, afresh)
