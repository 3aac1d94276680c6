"""An idle fleet finds out that it is well again, whatever it has learnt of itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.core.model.actions import AskGrants, Reject, TellAccepted
from router.core.model.events import Enqueued, StepReported, WorkerLoad
from router.errors import Refused
from scheduling.admission.learnt import PAUSE_S
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.request import FinishReason, Slo, SloClass, StopRules
from tests.router.core_driver import ARRIVAL, ONE, TWO, call, core_of, grant, tell

COST = CostModel((0.002, 0.0, 0.0003, 0.0, 0.0, 0.0), 0.0)
"""A third of a millisecond for each prompt token: 2400 tokens take 0.8 s on a healthy machine."""
FACTS = [replace(entry, num_blocks=4000, token_budget=512) for entry in (ONE, TWO)]
FIXED_S = 0.008


def healthy_s(prompt: int) -> float:
    """The first token of a prompt on an idle fleet whose machines are well."""
    return -(-prompt // 512) * 0.002 + prompt * 0.0003 + FIXED_S


class OneByOne:
    """A core whose requests come one after the other, each to an idle fleet."""

    def __init__(self) -> None:
        self.core = core_of("slack", *FACTS, cost=COST)
        self.now = 10.0
        self._number = 0

    def ask(self, prompt: int, slo: Slo) -> float | None:
        """Send a request; seconds until it should come back, or None when it was accepted."""
        self._number += 1
        name = f"r{self._number}"
        event = call(ARRIVAL, prompt_token_ids=range(prompt), stop=StopRules(max_tokens=1), slo=slo)
        event = call(event, received_at=self.now, listener=self._number, request_id=name)
        told = tell(self.core, event, Enqueued(f"t/{name}/0", 0, 0), now=self.now)
        errors = [action.error for action in told if isinstance(action, Reject)]
        if errors:
            assert isinstance(errors[0], Refused), errors[0]
            return errors[0].retry_after_s
        assert any(isinstance(action, TellAccepted) for action in told)
        if not any(
            isinstance(action, AskGrants) for action in told
        ):  # it takes another place in the queue first
            told = tell(self.core, Enqueued(f"t/{name}/0", 0, 0), now=self.now)
        self._asks = [action for action in told if isinstance(action, AskGrants)]
        return None

    def serve(self, took_s: float, cost: CostModel | None = None) -> None:
        """Its only token comes after so long, with what its worker says of costs by then."""
        (send,) = grant(self.core, self._number, self._asks[0].worker.key, now=self.now)
        self.now += took_s
        last = TokenColumns([send.spec.handle], [0], [0], [9], [int(FinishReason.LENGTH)])
        load = WorkerLoad(free_blocks=4000)
        tell(self.core, StepReported(send.worker_key, last, load, took_s, cost=cost), now=self.now)

    def serve_well(self, prompt: int) -> None:
        self.serve(healthy_s(prompt))


def slowed(cost: CostModel, by: float, *, is_trusted: bool) -> CostModel:
    return replace(
        cost, coefficients=tuple(coefficient * by for coefficient in cost.coefficients), is_trusted=is_trusted
    )


@dataclass(frozen=True)
class Turn:
    """So many requests, one after the other, on machines that are slow."""

    count: int
    prompt: int
    slow_by: float
    ttft_ms: int | None
    slo_class: SloClass
    later_s: float
    tells_cost: bool
    is_trusted: bool


PROMPTS = st.sampled_from([3, 30, 300, 2400])
CLASSES = st.sampled_from(SloClass)
TURNS = st.lists(
    st.builds(
        Turn,
        count=st.integers(1, 12),
        prompt=PROMPTS,
        slow_by=st.sampled_from([1.0, 4.6, 100.0]),
        ttft_ms=st.sampled_from([None, 30, 500, 60_000]),
        slo_class=CLASSES,
        later_s=st.sampled_from([0.0, 0.1, 3.0, 20.0]),
        tells_cost=st.booleans(),
        is_trusted=st.booleans(),
    ),
    max_size=12,
)


def after(turns: list[Turn]) -> OneByOne:
    fleet = OneByOne()
    for turn in turns:
        cost = slowed(COST, turn.slow_by, is_trusted=turn.is_trusted) if turn.tells_cost else None
        for _ in range(turn.count):
            slo = Slo(ttft_ms=turn.ttft_ms, slo_class=turn.slo_class)
            if turn.ttft_ms is not None and turn.ttft_ms < healthy_s(turn.prompt) * 1000:
                slo = replace(slo, ttft_ms=None)
            if fleet.ask(turn.prompt, slo) is None:
                fleet.serve(turn.slow_by * healthy_s(turn.prompt), cost)
            fleet.now += turn.later_s
    return fleet


@settings(max_examples=200, deadline=None)
@given(TURNS, PROMPTS, CLASSES)
@example([Turn(12, 300, 100.0, None, SloClass.STANDARD, 0.0, True, True)] * 10, 30, SloClass.BATCH)
def test_a_recovered_idle_fleet_serves_within_one_retry_after(
    turns: list[Turn], prompt: int, slo_class: SloClass
) -> None:
    fleet = after(turns)
    slo = Slo(ttft_ms=round(1.2 * healthy_s(prompt) * 1000) + 1, slo_class=slo_class)
    retry_after_s = fleet.ask(prompt, slo)
    if retry_after_s is not None:
        fleet.now += retry_after_s
        assert fleet.ask(prompt, slo) is None, "it came back when it was told to"
    fleet.serve_well(prompt)
    for _ in range(8):
        assert fleet.ask(prompt, slo) is None, "what went well once is promised again"
        fleet.serve_well(prompt)


@pytest.mark.parametrize("num_slow", [1, 4])
def test_slow_prompts_of_2400_tokens_refuse_nobody_500_ms(num_slow: int) -> None:
    fleet = OneByOne()
    for took_s in (0.014, 0.018, 0.022, 0.030):
        assert fleet.ask(20, Slo()) is None
        fleet.serve(took_s)
        fleet.now += 1.0
    for _ in range(num_slow):
        assert fleet.ask(2400, Slo()) is None
        fleet.serve(3.7)
    learnt = fleet.core.state.learnt
    for _ in range(19):
        fleet.now += 2.8
        assert fleet.ask(20, Slo(ttft_ms=500)) is None
        assert learnt.trials.wait_s(20, Slo(ttft_ms=500), fleet.now) == 0, "no trial was needed"
        fleet.serve(0.02)


def bad_minute() -> OneByOne:
    """Eight short prompts of late, each of which took 3 s."""
    return after([Turn(8, 30, 3.0 / healthy_s(30), None, SloClass.STANDARD, 0.0, False, True)])


def test_a_failed_trial_is_the_only_one_until_the_retry_after() -> None:
    fleet, slo = bad_minute(), Slo(ttft_ms=500)
    began = fleet.now
    assert fleet.ask(30, slo) is None
    fleet.serve(1.0)
    while fleet.now < began + PAUSE_S:
        retry_after_s = fleet.ask(30, slo)
        assert retry_after_s is not None
        left_s = max(0.1, began + PAUSE_S - fleet.now)
        assert left_s <= retry_after_s <= 1.2 * left_s
        fleet.now += 0.5
    assert fleet.ask(30, slo) is None


def test_an_impossible_slo_takes_no_trial_from_easier_requests() -> None:
    fleet = bad_minute()
    assert fleet.ask(30, Slo(ttft_ms=12)) is None
    fleet.serve_well(30)
    assert fleet.ask(30, Slo(ttft_ms=12)) is not None
    assert fleet.ask(30, Slo(ttft_ms=500)) is None


def test_a_long_prompt_that_fails_takes_no_trial_from_a_short_one() -> None:
    fleet = after([Turn(8, 30, 200.0, None, SloClass.STANDARD, 0.0, True, True)])
    assert fleet.ask(2400, Slo(ttft_ms=900)) is None
    fleet.serve(3.0)
    assert fleet.ask(2400, Slo(ttft_ms=900)) is not None
    assert fleet.ask(30, Slo(ttft_ms=900)) is None


def test_a_trial_says_what_a_request_takes_at_best() -> None:
    fleet = bad_minute()
    event = call(ARRIVAL, prompt_token_ids=range(30), slo=Slo(ttft_ms=500), received_at=fleet.now)
    told = tell(fleet.core, call(event, listener=99), Enqueued("t/r1/0", 0, 0), now=fleet.now)
    (accepted,) = [action for action in told if isinstance(action, TellAccepted)]
    assert accepted.promise.predicted_ttft_ms == pytest.approx((healthy_s(30) - FIXED_S) * 1000)
    assert not accepted.promise.at_risk
