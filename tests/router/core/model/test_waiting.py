"""The waiting queue finds the same requests as a search of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import hypothesis
import hypothesis.strategies as st

from router.core.model.session import Choice, Group, Phase, Session, Timeline
from router.core.model.waiting import LEAST_STALE, WaitingGroups
from router.request import Request
from runtime.state.records import CLASS_SCORE
from scheduling.admission.admission import Decision, Verdict
from scheduling.admission.prefixes import NO_HITS
from scheduling.request import SamplingParams, Slo, SloClass, StopRules
from tests.growth import LARGE, MOST_GROWTH, SMALL, growth

AGAIN_S = 1.0


def group_of(number: int, slo_class: SloClass, tokens: int, verdict: Verdict | None = None) -> Group:
    slo = Slo(ttft_ms=1000, slo_class=slo_class)
    session = Session(
        sid=number,
        request=Request(
            tenant="t",
            request_id=f"r{number}",
            session=0,
            digest=b"",
            prompt_token_ids=range(tokens),
            sampling=SamplingParams(),
            seed_given=True,
            stop=StopRules(max_tokens=5),
            slo=slo,
            received_at=0.0,
        ),
        number=0,
        goal=slo,
        aim=slo,
        prefix_hits=NO_HITS,
        timeline=Timeline(0.0),
        choices=[Choice(0)],
    )
    if verdict is not None:
        session.decision = Decision(verdict, 1.0, 0.1)
    key = f"g{number}"
    place = slo_class * CLASS_SCORE, key
    return Group(key, session, session.choices, 1, tokens, 1, phase=Phase.WAITING, place=place)


classes = st.sampled_from(tuple(SloClass))
verdicts = st.sampled_from((None, Verdict.ACCEPTED, Verdict.AT_RISK))
newcomers = st.tuples(st.just("add"), classes, st.integers(1, 9), verdicts)
others = st.tuples(st.sampled_from(("leave", "ask", "enqueue", "settle_back", "look")), st.integers(0, 99))


@hypothesis.given(st.lists(newcomers | others, max_size=60))
def test_answers_are_those_of_looking_at_all(steps: list[tuple]) -> None:
    waiting, known, now = WaitingGroups(), [], 0.0
    for count, (what, *rest) in enumerate(steps):
        now += 0.3
        if what == "add":
            group = group_of(count, *rest)
            group.asked_at = now
            waiting.add(group, now)
            known.append(group)
        elif what == "look":
            due = [
                request
                for request in waiting
                if request.phase is Phase.WAITING and now - request.asked_at >= AGAIN_S
            ]
            assert waiting.take_unconfirmed(now, AGAIN_S, len(steps)) == due
            for entry in due:
                entry.asked_at = now
                waiting.asked(entry)
        elif known:
            group = known[rest[0] % len(known)]
            if what == "leave":
                waiting.remove(group)
                known.remove(group)
            elif what == "ask":
                group.asked_at = now
                waiting.asked(group)
            elif what == "enqueue":
                group.phase = Phase.ENQUEUEING if group.phase is Phase.WAITING else Phase.WAITING
            else:
                waiting.remove(group)
                waiting.add(group, now)
        at_risk = [
            entry
            for entry in known
            if entry.session.decision is not None and entry.session.decision.verdict is Verdict.AT_RISK
        ]
        assert waiting.has_at_risk == bool(at_risk)
        for slo_class in SloClass:
            own = [entry for entry in at_risk if entry.session.request.slo.slo_class is slo_class]
            largest = max(own, key=lambda one: (one.work_tokens, one.key), default=None)
            assert waiting.largest_at_risk(slo_class) is largest


def test_a_queue_does_not_grow_with_requests_that_left() -> None:
    waiting = WaitingGroups()
    stays = group_of(0, SloClass.STANDARD, 1)
    waiting.add(stays, 0.0)
    for number in range(1, 2000):
        group = group_of(number, SloClass.STANDARD, 1)
        group.due_at = float(number)
        waiting.add(group, 0.0)
        waiting.remove(group)
        waiting.take_unconfirmed(number * AGAIN_S, AGAIN_S, 9)
    assert sum(len(line) for line in waiting._lines.values()) <= LEAST_STALE + 4
    assert len(waiting._asked) <= 2
    assert waiting.head is stays


def test_no_more_are_told_than_are_asked_for_and_the_others_next() -> None:
    waiting = WaitingGroups()
    groups = [group_of(number, SloClass.STANDARD, 1) for number in range(5)]
    for group in groups:
        waiting.add(group, 0.0)
    told = [waiting.take_unconfirmed(AGAIN_S, AGAIN_S, 2) for _ in range(4)]
    assert [len(some) for some in told] == [2, 2, 1, 0]
    assert [entry for some in told for entry in some] == groups


def test_an_arrival_costs_the_same_however_many_others_wait() -> None:
    def many(count: int) -> WaitingGroups:
        waiting, one = WaitingGroups(), group_of(0, SloClass.BATCH, 9)
        for number in range(count):
            key = f"g{number}"
            waiting.add(replace(one, key=key, place=(one.place[0], key)), 0.0)
        return waiting

    full = {count: many(count) for count in (SMALL, LARGE)}
    passing = [group_of(LARGE + number, SloClass.INTERACTIVE, 9) for number in range(4 * LEAST_STALE)]

    def prepare(count: int) -> Callable[[], object]:
        def pass_by() -> None:
            for group in passing:
                full[count].add(group, 1.0)
                full[count].remove(group)

        return pass_by

    assert growth(prepare) < MOST_GROWTH
