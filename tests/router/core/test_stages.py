"""A worker with pipeline stages is given as many prompts as it computes at once."""

from __future__ import annotations

from dataclasses import replace

from router.core.core import RouterCore
from router.core.model.actions import AskGrants, SendDecode
from router.core.model.events import GrantsAnswered, StepReported, WorkerFacts
from scheduling.columns import TokenColumns
from scheduling.request import FinishReason
from tests.router.core_driver import ARRIVAL, ONE, arrive, call, core_of, grant, tell

LONG = call(ARRIVAL, prompt_token_ids=range(2000))
FACTS = replace(ONE, num_blocks=10_000, max_num_seqs=64)


def offers(core: RouterCore, number: int) -> list[AskGrants]:
    """One more long request comes, and a running grant call is over."""
    actions = arrive(core, number, LONG) + tell(core, GrantsAnswered(FACTS.key))
    return [action for action in actions if isinstance(action, AskGrants)]


def num_dispatched(facts: WorkerFacts) -> int:
    """Return how many of ten long requests are sent to a worker that is granted all it is offered for."""
    core, count = core_of("slack", facts), 0
    for number in range(1, 11):
        if offers(core, number):
            count += len(grant(core, number, facts.key))
    return count


def test_without_stages_one_long_prompt_is_enough() -> None:
    assert num_dispatched(FACTS) == 1


def test_each_step_in_flight_has_a_long_prompt() -> None:
    assert num_dispatched(replace(FACTS, num_stages=4)) == 5


def test_a_computed_prompt_makes_room_for_the_next() -> None:
    facts = replace(FACTS, num_stages=2)
    core = core_of("slack", facts)
    sent: list[SendDecode] = []
    for number in range(1, 4):
        assert offers(core, number)
        sent += grant(core, number, facts.key)
    assert not offers(core, 4)
    worker = core.state.fleet.workers[facts.key]
    first = TokenColumns([sent[0].spec.handle], [0], [0], [9], [int(FinishReason.NONE)])
    load = replace(worker.load, running=1, pending_prefill_tokens=4000)
    report = StepReported(facts.key, first, load, 0.01, prefilled=[sent[0].spec.handle], cached_tokens=[0])
    (offer,) = [action for action in tell(core, report) if isinstance(action, AskGrants)]
    assert (offer.worker.key, offer.worker.min_prompts) == (facts.key, 3)
