"""A running sequence stops in one step loop and goes on in another, with the blocks copied by hand."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from engine.core.commands import Decode, HandBack, KVArrived, PreCopy, Prefill, Receive, Release, StopAndCopy
from engine.core.report import Filled, Received
from model_output.grammar.grammar import Grammars, grammar_of
from model_output.text.detokenizer import Detokenizer
from scheduling.columns import TokenColumns
from scheduling.request import (
    FailureReason,
    FinishReason,
    ReceiveKind,
    SamplingParams,
    SequenceSpec,
    StopRules,
)
from tests.engine.loop_driver import GREEDY, VOCAB, Driver, spec
from tests.model_output.text.tokenizers_zoo import one_byte_tokens

pytestmark = pytest.mark.usefixtures("both_ways")

SIZE = 4
RANDOM = SamplingParams(
    temperature=0.9,
    seed=21,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    repetition_penalty=1.2,
    logprobs=2,
    n=2,
)


def running(source: Driver, request: SequenceSpec, num_turns: int) -> None:
    source.turn(Decode(request))
    for _ in range(num_turns):
        source.turn()


def blocks_of(source: Driver, part: int) -> Filled:
    (filled,) = [row for report in source.reports for row in report.filled if row.handle == part]
    assert filled.complete
    assert filled.first_index == 0
    (behind,) = [report.filled_behind for report in source.reports if filled in report.filled]
    assert behind is not None, "copies between blocks may be under way"
    return filled


def received(target: Driver, handle: int) -> Received:
    (one,) = [row for report in target.reports for row in report.received if row.handle == handle]
    return one


def fetch(source: Driver, target: Driver, part: int, handle: int, num_good: int | None = None) -> int:
    """Copy what the target does not hold, or less; return how many blocks it asked for."""
    filled, told = blocks_of(source, part), received(target, handle)
    assert told.hashes == filled.hashes, "both sides mean the same tokens"
    count = len(told.blocks) if num_good is None else num_good
    for index in range(told.num_held, count):
        target.runner.pool[told.blocks[index]] = source.runner.pool[filled.blocks[index]]
    target.finish(KVArrived(handle, count, TokenColumns()))
    source.turn(Release(part))
    return len(told.blocks) - told.num_held


def resumed(source: Driver, request: SequenceSpec, choice: int, handle: int) -> SequenceSpec:
    """Return the request as a router sends it to the target, to go on with one choice."""
    return dataclasses.replace(
        request,
        handle=handle,
        choices=(choice,),
        output_token_ids=tuple(source.tokens(request.handle, choice)),
        sampling=dataclasses.replace(request.sampling, n=1),
    )


def assert_goes_on(source: Driver, target: Driver, request: SequenceSpec, choice: int, handle: int) -> None:
    alone = Driver()
    alone.finish(Decode(request))
    said = source.rows(request.handle, choice) + target.rows(handle, choice)
    assert said == alone.rows(request.handle, choice)
    assert source.text(request.handle, choice) + target.text(handle, choice) == alone.text(
        request.handle, choice
    )


@pytest.mark.parametrize("num_turns", range(9))
@pytest.mark.parametrize("num_good", [None, 1])
def test_each_choice_goes_on_as_if_it_had_not_moved(num_turns: int, num_good: int | None) -> None:
    request = spec(7, range(1, 7), sampling=RANDOM, stop=StopRules(max_tokens=24), choices=(0, 1))
    source, target = Driver(), Driver()
    running(source, request, num_turns)
    source.turn(StopAndCopy(7, ((0, 70), (1, 71))))
    assert [report.parked for report in source.reports if report.parked] == [[7]]
    for choice, handle in ((0, 70), (1, 71)):
        target.finish(Receive(resumed(source, request, choice, handle), ReceiveKind.STOPPED))
        fetch(source, target, handle, handle, num_good)
    for choice, handle in ((0, 70), (1, 71)):
        assert_goes_on(source, target, request, choice, handle)
    for driver in (source, target):
        assert driver.blocks.num_available_blocks == driver.blocks.num_blocks


EVERYTHING = SamplingParams(
    temperature=0.8,
    top_k=40,
    top_p=0.95,
    min_p=0.001,
    repetition_penalty=1.3,
    presence_penalty=0.5,
    frequency_penalty=0.7,
    logit_bias=((5, 1.5), (9, -100.0)),
    seed=3,
    n=2,
    logprobs=1,
    prompt_logprobs=1,
    allowed_token_ids=tuple(range(90)),
    bad_words=((4,), (11, 12)),
    # Four letters, then one of !, " and so on up to @: it takes all tokens to know what may follow.
    grammar=grammar_of("regex", r"([A-\[\]-~]{4}[!-@])*[A-\[\]-~]{0,4}"),
)


@pytest.mark.parametrize("num_turns", [3, 6])
def test_no_state_of_a_choice_is_lost_when_it_moves(num_turns: int, tmp_path: Path) -> None:
    """Whatever rule holds for a choice follows from its tokens: a stop string that began before the move ends
    it after the move. Every rule there is takes part, and one that is new fails here until it does.
    """
    tokenizer = one_byte_tokens(VOCAB)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    words: dict[str, Any] = {
        "detokenizer": Detokenizer(tokenizer),
        "grammars": Grammars(tmp_path / "tokenizer.json", VOCAB, [VOCAB - 1]),
    }
    request = spec(7, range(1, 7), sampling=EVERYTHING, stop=StopRules(30, ignore_eos=True), choices=(0, 1))
    probe = Driver(**words)
    probe.finish(Decode(request))
    text = probe.text(7)
    for choice in (0, 1):
        assert re.fullmatch("([A-~]{4}[!-@])*", probe.text(7, choice))
    marks = (text[0],), (text[1],)  # reasoning is over where it stands
    stop = StopRules(30, 2, (text[num_turns - 1 : num_turns + 2],), (96,), True, True, False, *marks)
    assert text.index(stop.stop_strings[0]) == num_turns - 1, "it stands where the choice is moved"
    for rules in (EVERYTHING, stop):
        usual = StopRules(max_tokens=0) if isinstance(rules, StopRules) else SamplingParams()
        unused = [
            field.name
            for field in dataclasses.fields(rules)
            if getattr(rules, field.name) == getattr(usual, field.name)
        ]
        assert not unused, "a rule that this test leaves out"
    request = dataclasses.replace(request, stop=stop)
    source, target = Driver(**words), Driver(**words)
    running(source, request, num_turns - 1)
    source.turn(StopAndCopy(7, ((0, 70), (1, 71))))
    assert len(source.tokens(7)) == num_turns
    for choice, handle in ((0, 70), (1, 71)):
        target.finish(Receive(resumed(source, request, choice, handle), ReceiveKind.STOPPED))
        fetch(source, target, handle, handle)
    alone = Driver(**words)
    alone.finish(Decode(request))
    for choice, handle in ((0, 70), (1, 71)):
        assert source.rows(7, choice) + target.rows(handle, choice) == alone.rows(7, choice)
        # What might have become the stop string was held back at the source, and comes from the target.
        assert source.text(7, choice) + target.text(handle, choice) == alone.text(7, choice)
    assert target.rows(70)[-1][2] == FinishReason.STOP


def test_what_was_copied_ahead_is_not_fetched_again() -> None:
    request = spec(7, range(1, 23), sampling=GREEDY, stop=StopRules(max_tokens=30))
    source, target = Driver(), Driver()
    running(source, request, 4)
    source.turn(PreCopy(7, 0, num_blocks=6, part=60))
    tokens = (*request.prompt_token_ids, *source.tokens(7))[: 6 * SIZE]
    ahead = dataclasses.replace(request, handle=60, prompt_token_ids=tokens)
    target.finish(Receive(ahead, ReceiveKind.AHEAD))
    assert fetch(source, target, 60, 60) == 6
    assert [row.handle for report in target.reports for row in report.prefilled] == [60]
    assert target.blocks.num_available_blocks == target.blocks.num_blocks, "only the cache has them"
    source.turn()
    source.turn(StopAndCopy(7, ((0, 70),)))
    target.finish(Receive(resumed(source, request, 0, 70), ReceiveKind.STOPPED))
    assert fetch(source, target, 70, 70) == 2
    assert_goes_on(source, target, request, 0, 70)


def test_reporting_a_stop_does_not_wait_for_steps_of_others() -> None:
    source = Driver(overlaps=False)
    running(source, spec(7, range(1, 7), stop=StopRules(max_tokens=24)), 2)
    source.turn(Decode(spec(8, range(1, 9), stop=StopRules(max_tokens=24))))
    first, second = source.turn(StopAndCopy(7, ((0, 70),)))
    assert (first.parked, first.step_seconds) == ([7], 0.0)
    assert second.tokens.handles == [8]


@pytest.mark.parametrize(
    "offer", [PreCopy(9, 0, 1, 60), PreCopy(7, 1, 1, 60), PreCopy(7, 0, 5, 60), StopAndCopy(9, ((0, 60),))]
)
def test_what_is_not_there_is_not_offered(offer: Any) -> None:
    source = Driver()
    request = spec(7, range(1, 7), stop=StopRules(max_tokens=6))
    running(source, request, 1)
    source.finish(offer)
    (failure,) = [entry for report in source.reports for entry in report.failures]
    assert (failure.handle, failure.reason) == (60, FailureReason.DRAINING)
    alone = Driver()
    alone.finish(Decode(request))
    assert source.rows(7) == alone.rows(7)


def test_only_what_has_not_begun_is_handed_back() -> None:
    source = Driver(token_budget=4, max_num_seqs=2)
    source.turn(Prefill(spec(1, range(1, 9))))
    source.turn(Prefill(spec(2, range(11, 19))), Decode(spec(3, range(21, 29))), HandBack())
    failures = [failure for report in source.reports for failure in report.failures]
    assert {failure.handle for failure in failures} == {2, 3}
    assert {failure.reason for failure in failures} == {FailureReason.DRAINING}
    source.finish()
    assert source.tokens(1)
