"""A quote takes nothing, is answered at once, and is decided again in a replay, as all around it is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.core import RouterCore
from router.core.model.actions import Action, Reject, TellAccepted, TellQuoted
from router.core.model.events import (
    Enqueued,
    Event,
    QuoteAsked,
    StepReported,
    WorkerFacts,
    WorkerJoined,
    WorkerLoad,
)
from router.core.model.state import CoreConfig
from router.errors import Unavailable, ValidationError
from router.replay.recording import footer, header, line
from router.replay.replay import replay
from scheduling.admission.admission import Verdict
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.request import Slo
from tests.router.core_driver import ARRIVAL, ONE, TWO, call, core_of, tell

COST = CostModel((0.005, 0.001, 0.00005, 2e-5, 1e-8, 1e-8), 8.0)
QUOTE = QuoteAsked(
    listener=9, prompt_tokens=6, num_choices=1, max_tokens=50, slo=Slo(), waiting=0, waiting_tokens=0
)
TURNS = st.lists(
    st.tuples(
        st.sampled_from(["quote", "report", "arrive"]),
        st.sampled_from([ONE, TWO]),
        st.integers(0, 60),
        st.sampled_from([None, 5, 60]),
        st.sampled_from([0.0, 0.02, 0.06]),
    ),
    min_size=4,
    max_size=25,
)


@settings(max_examples=300)
@given(TURNS)
def test_histories_with_quotes_in_them_are_replayed_identically(
    turns: list[tuple[str, WorkerFacts, int, int | None, float]],
) -> None:
    core, now = RouterCore(CoreConfig("router-a")), 1.0
    told: list[str] = []

    def take(event: Event) -> list[Action]:
        actions = core.on(event, now)
        told.append(line(event, now, actions))
        return actions

    for facts in (ONE, TWO):
        take(WorkerJoined(facts, WorkerLoad(free_blocks=facts.num_blocks), COST))
    for number, (kind, facts, amount, ttft_ms, later_s) in enumerate(turns):
        now += later_s
        slo = Slo(ttft_ms=ttft_ms)
        if kind == "quote":
            before = list(core.state.groups), len(core.state.live), core.state.counters
            asked = replace(QUOTE, listener=-number - 1, prompt_tokens=amount + 1, slo=slo, waiting=amount)
            (answer,) = [action for action in take(asked) if isinstance(action, TellQuoted | Reject)]
            assert answer.listener == asked.listener
            assert before == (list(core.state.groups), len(core.state.live), core.state.counters)
        elif kind == "report":
            load = WorkerLoad(
                running=amount % 8, pending_prefill_tokens=amount, context_tokens=amount, free_blocks=60
            )
            take(StepReported(facts.key, TokenColumns(), load))
        else:
            event = call(ARRIVAL, listener=number, request_id=f"r{number}", slo=slo, received_at=now)
            take(event)
            take(Enqueued(f"t/r{number}/0", 0, 0))
    decided = list(replay([header(core.state.config), *told, footer(len(told))]))
    assert [action.recorded.line for action in decided if not action.identical] == []


def quote(core: RouterCore, asked: QuoteAsked = QUOTE) -> TellQuoted | Reject:
    (answer,) = tell(core, asked)
    assert isinstance(answer, TellQuoted | Reject)
    return answer


def test_a_quote_is_the_promise_that_the_request_then_gets() -> None:
    core = core_of("slack", cost=COST)
    quoted = quote(core, replace(QUOTE, slo=Slo(ttft_ms=60_000, tpot_ms=500)))
    assert isinstance(quoted, TellQuoted)
    assert quoted.verdict is Verdict.ACCEPTED
    event = call(ARRIVAL, slo=Slo(ttft_ms=60_000, tpot_ms=500))
    (told,) = [
        action for action in tell(core, event, Enqueued("t/r1/0", 0, 0)) if isinstance(action, TellAccepted)
    ]
    assert told.promise == quoted.promise


def test_a_quote_says_what_is_wrong_with_the_request() -> None:
    answer = quote(core_of("slack"), replace(QUOTE, slo=Slo(ttft_ms=1)))
    assert isinstance(answer, Reject)
    assert isinstance(answer.error, ValidationError)
    answer = quote(RouterCore(CoreConfig("router-a")))
    assert isinstance(answer, Reject)
    assert isinstance(answer.error, Unavailable)
