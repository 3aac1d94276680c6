"""Newcomers of a burst are judged by what waits when they are judged, not by what waited when they came."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from router.core.model.actions import Action, AskGrants, ChargeTenant, Dequeue, Enqueue, Settle
from router.core.model.events import (
    CancelAsked,
    ClientGone,
    RouterLeaving,
    RouterStopping,
    StoreForgot,
)
from router.core.model.session import Group
from router.core.model.state import CoreConfig
from scheduling.policies import by_name
from scheduling.prediction import QueueAhead
from scheduling.request import Slo, SloClass, StopRules
from tests.router.core.test_late_calls import CONFIG, Fleet
from tests.router.core_driver import ARRIVAL, ONE, TWO, call, failure_of

ROOMY = tuple(replace(facts, num_blocks=4000) for facts in (ONE, TWO))
PROMPTS = st.integers(1, 40 * ONE.token_budget)
"""A step takes 10 ms, whatever is in it: up to 0.4 s."""
SLOS = st.builds(Slo, ttft_ms=st.sampled_from([None, 20, 100, 400]), slo_class=st.sampled_from(SloClass))
BURSTS = st.lists(st.tuples(PROMPTS, SLOS), min_size=2, max_size=12)
CONFIGS = st.builds(
    replace,
    st.just(CONFIG),
    policy=st.sampled_from(["slack", "chunked"]).map(by_name),
    queue_capacity=st.sampled_from([2, 100]),
    serves_without_store=st.booleans(),
)
MAY_FAIL = (Enqueue, ChargeTenant, Dequeue, AskGrants, Settle)


class Burst:
    """Requests that come at once to one router, and then a store that answers one call after the other."""

    def __init__(self, asked: list[tuple[int, Slo]]) -> None:
        self.fleet = Fleet(Fleet.answer, ROOMY)
        for number, (prompt, slo) in enumerate(asked):
            _arrive(self.fleet, number, prompt, slo)

    @property
    def judged_next(self) -> list[Group]:
        """The newcomers that the store has given a place."""
        groups = self.fleet.core.state.groups.values()
        return [group for group in groups if group.session.ahead is not None and not group.session.admitted]

    def answer(self) -> None:
        """Let the store answer the call that came first."""
        self.fleet.answer(self.fleet.calls.pop(0))

    def ahead_of(self, newcomer: Group) -> QueueAhead:
        """Return what the queue holds ahead of a newcomer, as far as its router knows."""
        waiting = self.fleet.core.state.waiting
        tokens = [group.work_tokens for group in waiting if _place(group) < _place(newcomer)]
        return QueueAhead(sum(tokens), len(tokens))


def _place(group: Group) -> tuple[SloClass, int, str]:
    """Return what the store sorts by."""
    return group.session.request.slo.slo_class, round(group.due_at * 1000), group.key


def _arrive(fleet: Fleet, number: int, prompt: int, slo: Slo) -> None:
    fleet.tell(
        call(
            ARRIVAL,
            listener=number + 1,
            request_id=f"r{number}",
            prompt_token_ids=range(prompt),
            slo=slo,
            stop=StopRules(max_tokens=1),
            received_at=fleet.now,
        )
    )


@given(BURSTS, st.lists(st.integers(0, 30), max_size=3))
def test_what_left_or_was_bound_meanwhile_is_not_ahead(
    asked: list[tuple[int, Slo]], cancelled_after: list[int]
) -> None:
    burst, num_answers = Burst(asked), 0
    while burst.fleet.calls:
        live = list(burst.fleet.core.state.live)
        if live and num_answers in cancelled_after:
            burst.fleet.tell(CancelAsked(*live[num_answers % len(live)]))
        burst.answer()
        num_answers += 1
        for newcomer in burst.judged_next:
            told = newcomer.session.ahead
            assert told is not None
            assert burst.fleet.core.state.waiting.ahead_of(newcomer, told) == burst.ahead_of(newcomer)


@given(st.integers(2, 20))
def test_refused_prompts_take_no_room_from_the_rest_of_a_burst(count: int) -> None:
    """Two workers compute a long prompt each in time, and a short one after it; the other long ones go."""
    long, short = (30 * ONE.token_budget, Slo(ttft_ms=600)), (1, Slo(ttft_ms=600))
    burst = Burst([*[long] * (2 + count), short])
    while burst.fleet.calls:
        burst.answer()
    counters = burst.fleet.core.state.counters
    assert (counters.accepted, counters.refused) == (3, count)


def _let_happen(fleet: Fleet, data: st.DataObject, number: int) -> None:
    """Let something happen that is not an answer of the store."""
    state = fleet.core.state
    match data.draw(
        st.sampled_from(["arrive", "arrive", "cancel", "gone", "forget", "lose", "wait", "leave"])
    ):
        case "arrive":
            for more in range(data.draw(st.integers(1, 4))):
                _arrive(fleet, 10 * number + more, data.draw(PROMPTS), data.draw(SLOS))
        case "cancel" if state.live:
            fleet.tell(CancelAsked(*data.draw(st.sampled_from(list(state.live)))))
        case "gone" if state.by_listener:
            fleet.tell(ClientGone(data.draw(st.sampled_from(list(state.by_listener)))))
        case "forget":
            fleet.tell(StoreForgot())
        case "lose":
            fleet.lose(data.draw(st.sampled_from([ONE.key, TWO.key])))
        case "wait":
            fleet.turn(data.draw(st.sampled_from([0.1, 2.0])))
        case "leave":
            fleet.tell(RouterLeaving())


def _let_fail(fleet: Fleet, action: Action, *, is_executed: bool) -> None:
    """Let a call fail, whether the store executed it or not."""
    if is_executed:
        fleet.execute(action)
    fleet.tell(failure_of(action))


@settings(max_examples=60)
@given(st.data(), CONFIGS)
def test_of_newcomers_nothing_is_kept_in_mind_however_they_end(
    data: st.DataObject, config: CoreConfig
) -> None:
    fleet = Fleet(Fleet.answer, ROOMY, config)
    for number in range(data.draw(st.integers(2, 60))):
        outcome = data.draw(st.sampled_from(["answered", "answered", "answered", "failed", "none", "none"]))
        if outcome == "none" or not fleet.calls:
            _let_happen(fleet, data, number)
        elif outcome == "failed" and isinstance(fleet.calls[0], MAY_FAIL):
            _let_fail(fleet, fleet.calls.pop(0), is_executed=data.draw(st.booleans()))
        else:
            fleet.answer(fleet.calls.pop(0))
        waiting = fleet.core.state.waiting
        newcomers = {group.key for group in waiting if not group.session.admitted}
        assert waiting._newcomers.keys() <= newcomers
        assert len(waiting._line) == len(waiting)
    fleet.tell(RouterStopping())
    assert not fleet.core.state.groups
    assert not fleet.core.state.waiting._newcomers
