"""Newcomers of a burst are judged by what waits when they are judged, not by what waited when they came."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given

from router.core.model.session import Group, Phase
from scheduling.prediction import QueueAhead
from scheduling.request import Slo, SloClass, StopRules
from tests.router.core.test_late_calls import Fleet
from tests.router.core_driver import ARRIVAL, ONE, TWO, call

ROOMY = tuple(replace(facts, num_blocks=4000) for facts in (ONE, TWO))
PROMPTS = st.integers(1, 40 * ONE.token_budget)
"""A step takes 10 ms, whatever is in it: up to 0.4 s."""
SLOS = st.builds(Slo, ttft_ms=st.sampled_from([None, 20, 100, 400]), slo_class=st.sampled_from(SloClass))
BURSTS = st.lists(st.tuples(PROMPTS, SLOS), min_size=2, max_size=12)


class Burst:
    """Requests that come at once to one router, and then a store that answers one call after the other."""

    def __init__(self, asked: list[tuple[int, Slo]]) -> None:
        self.fleet = Fleet(Fleet.answer, ROOMY)
        for number, (prompt, slo) in enumerate(asked):
            self.fleet.tell(
                call(
                    ARRIVAL,
                    listener=number + 1,
                    request_id=f"r{number}",
                    prompt_token_ids=range(prompt),
                    slo=slo,
                    stop=StopRules(max_tokens=1),
                    received_at=self.fleet.now,
                )
            )

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
        tokens = [
            group.work_tokens
            for group in self.fleet.core.state.groups.values()
            if (group.phase is Phase.WAITING or group in self.judged_next)
            and _place(group) < _place(newcomer)
        ]
        return QueueAhead(sum(tokens), len(tokens))


def _place(group: Group) -> tuple[SloClass, int, str]:
    """Return what the store sorts by."""
    return group.session.request.slo.slo_class, round(group.due_at * 1000), group.key


@given(BURSTS)
def test_what_was_refused_or_bound_meanwhile_is_not_ahead(asked: list[tuple[int, Slo]]) -> None:
    burst = Burst(asked)
    while burst.fleet.calls:
        burst.answer()
        for newcomer in burst.judged_next:
            told = newcomer.session.ahead
            assert told is not None
            assert burst.fleet.core.state.ahead.now(newcomer, told) == burst.ahead_of(newcomer)


@given(st.integers(2, 20))
def test_refused_prompts_take_no_room_from_the_rest_of_a_burst(count: int) -> None:
    """Two workers compute a long prompt each in time, and a short one after it; the other long ones go."""
    long, short = (30 * ONE.token_budget, Slo(ttft_ms=600)), (1, Slo(ttft_ms=600))
    burst = Burst([*[long] * (2 + count), short])
    while burst.fleet.calls:
        burst.answer()
    counters = burst.fleet.core.state.counters
    assert (counters.accepted, counters.refused) == (3, count)
