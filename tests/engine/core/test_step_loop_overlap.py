"""A loop that is one step behind its device says what one says that waits for each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Cancel, Command, Decode, KVArrived, PreCopy, Prefill, Receive, StopAndCopy
from engine.core.report import Filled
from model_output.text.detokenizer import Detokenizer
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel, StepShape
from scheduling.policies.chunked import CHUNKED
from scheduling.policies.prefill_first import PREFILL_FIRST
from scheduling.request import FinishReason, SamplingParams, SequenceSpec, StopRules
from scheduling.step import StepView
from tests.engine.fake_runner import STEP_S, greedy
from tests.engine.loop_driver import DEAR_TOKENS, GREEDY, UNKNOWN_COST, VOCAB, Driver, spec, watching
from tests.model_output.text.tokenizers_zoo import byte_level

RANDOM = SamplingParams(
    temperature=0.9, seed=7, presence_penalty=0.4, repetition_penalty=1.2, frequency_penalty=0.3, logprobs=2
)
PROMPT = [3, 1]
TOKENS = greedy(PROMPT, 12, VOCAB)
UNIQUE = next(place for place in range(3, 12) if TOKENS[place] not in TOKENS[:place])
"""Where a token stands that none before it equals."""


def both(*commands: Command, detokenizer: Detokenizer | None = None) -> tuple[Driver, Driver]:
    """The commands' outcome one step behind the device, and without."""
    late, prompt = (Driver(overlaps=way, detokenizer=detokenizer) for way in (True, False))
    for driver in (late, prompt):
        driver.finish(*commands)
        driver.assert_at_rest()
    return late, prompt


def assert_same(one: Driver, other: Driver, specs: Sequence[SequenceSpec]) -> None:
    for request in specs:
        for choice in request.choices:
            assert one.rows(request.handle, choice) == other.rows(request.handle, choice)
            assert one.text(request.handle, choice) == other.text(request.handle, choice)
            assert one.logprobs(request.handle, choice) == other.logprobs(request.handle, choice)


def num_computed(driver: Driver) -> int:
    return sum(tokens for _, tokens in driver.runner.batches)


def test_each_step_is_launched_before_the_one_before_it_is_over() -> None:
    driver = Driver(overlaps=True, token_budget=8)
    driver.finish(Decode(spec(1, PROMPT, 8)), Decode(spec(2, range(40), 4, sampling=RANDOM, choices=(0, 1))))
    last = driver.runner.num_steps
    assert last > 8
    steps = [("launched", 1)]
    for number in range(1, last):
        steps += [("launched", number + 1), ("over", number)]
    # Nothing more is to be launched: it is waited for before commands are.
    assert driver.runner.log == [*steps, ("over", last)]
    assert driver.tokens(1) == greedy(PROMPT, 8, VOCAB)


def test_nothing_is_computed_beyond_a_limit_that_is_known() -> None:
    requests = [spec(1, PROMPT, 1), spec(2, [5], 6, choices=(0, 1)), spec(3, range(9), 3)]
    late, prompt = both(*map(Decode, requests))
    assert_same(late, prompt, requests)
    assert num_computed(late) == num_computed(prompt)


@pytest.mark.parametrize("end", ["eos", "token", "string"])
@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_what_comes_after_an_end_is_computed_and_told_to_nobody(end: str, sampling: SamplingParams) -> None:
    detokenizer = Detokenizer(byte_level())
    probe = Driver(detokenizer=detokenizer)
    probe.finish(Decode(spec(1, PROMPT, 12, sampling=sampling)))
    token, text = probe.tokens(1)[5], probe.text(1)[4:6]
    rules = {
        "eos": StopRules(max_tokens=40),
        "token": StopRules(max_tokens=40, stop_token_ids=(token,)),
        "string": StopRules(max_tokens=40, stop_strings=(text,)),
    }
    requests = [spec(1, PROMPT, sampling=sampling, stop=rules[end]), spec(2, [7], 30, sampling=sampling)]
    drivers = []
    for way in (True, False):
        driver = Driver(overlaps=way, detokenizer=detokenizer, eos=(token,) if end == "eos" else ())
        driver.finish(*map(Decode, requests))
        # The row is another's by then, with counts of its own.
        driver.finish(Decode(spec(3, [8], 9, sampling=sampling)))
        driver.assert_at_rest()
        drivers.append(driver)
    late, prompt = drivers
    assert_same(late, prompt, [*requests, spec(3, [8], 9)])
    assert len(late.tokens(1)) < 40
    assert num_computed(late) > num_computed(prompt)
    assert late.freed() == prompt.freed()


def test_blocks_of_an_ended_choice_stay_until_no_step_writes_them() -> None:
    driver = Driver(overlaps=True)
    stop = StopRules(max_tokens=40, stop_token_ids=(TOKENS[UNIQUE],))
    driver.turn(Decode(spec(1, PROMPT, stop=stop)), Decode(spec(2, [40], 40)))
    while not driver.freed():
        driver.turn()
    # Its row is in the step in flight; what that writes to comes back when it is over.
    used = driver.blocks.num_blocks - driver.reports[-1].load.free_blocks
    assert driver.runner.blocks_in_flight
    driver.turn()
    assert driver.blocks.num_blocks - driver.reports[-1].load.free_blocks < used
    driver.finish()
    assert driver.tokens(1) == TOKENS[: UNIQUE + 1]
    assert driver.tokens(2) == greedy([40], 40, VOCAB)
    driver.assert_at_rest()


def test_a_choice_ending_at_once_leaves_its_siblings_alone() -> None:
    sampling = replace(RANDOM, temperature=1.5)
    probe = Driver()
    probe.finish(Decode(spec(1, PROMPT, 6, sampling=sampling, choices=(0, 1, 2))))
    ends = probe.tokens(1, 1)[0]
    assert ends not in probe.tokens(1, 0)
    stop = StopRules(max_tokens=6, stop_token_ids=(ends,))
    request = spec(1, PROMPT, sampling=sampling, stop=stop, choices=(0, 1, 2))
    late, prompt = both(Decode(request))
    assert_same(late, prompt, [request])
    assert late.rows(1, 1) == [(0, ends, FinishReason.STOP)]
    assert late.freed() == [1]


@pytest.mark.parametrize("num_turns", range(6))
def test_a_cancelled_sequence_is_gone_at_once_whatever_is_in_flight(num_turns: int) -> None:
    driver = Driver(overlaps=True, token_budget=8)
    driver.turn(Decode(spec(1, range(20), 20, choices=(0, 1))), Decode(spec(2, PROMPT, 9)))
    for _ in range(num_turns):
        driver.turn()
    driver.turn(Cancel(1))
    assert driver.freed() == [1]
    told = len(driver.rows(1))
    driver.finish(Decode(spec(3, range(20), 3)))
    assert len(driver.rows(1)) == told
    assert driver.tokens(2) == greedy(PROMPT, 9, VOCAB)
    assert driver.tokens(3) == greedy(range(20), 3, VOCAB)
    driver.assert_at_rest()


def test_a_prompt_cancelled_in_a_step_leaves_nothing_in_the_cache() -> None:
    """Nobody has looked at its logits: its KV may be broken."""
    driver = Driver(overlaps=True)
    driver.turn(Decode(spec(1, range(20), 5)))
    driver.turn(Cancel(1))
    driver.finish(Decode(spec(2, range(20), 3)))
    assert driver.cached_tokens() == [0]
    assert driver.tokens(2) == greedy(range(20), 3, VOCAB)


def test_a_sequence_that_is_parked_has_told_all_its_tokens() -> None:
    driver = Driver(overlaps=True)
    driver.turn(Decode(spec(7, range(6), 24)), Decode(spec(8, PROMPT, 9)))
    driver.turn()
    assert len(driver.tokens(7)) == 1
    driver.turn(StopAndCopy(7, ((0, 70),)))
    assert [report.parked for report in driver.reports if report.parked] == [[7]]
    assert driver.tokens(7) == greedy(range(6), 2, VOCAB)
    (filled,) = offers(driver, 70)
    # All but the newest token's: its own is written where it goes on.
    assert (filled.num_tokens, filled.complete) == (7, True)
    driver.finish()
    assert driver.tokens(7) == greedy(range(6), 2, VOCAB)
    assert driver.tokens(8) == greedy(PROMPT, 9, VOCAB)


def test_blocks_are_lent_up_to_what_is_written() -> None:
    driver = Driver(overlaps=True)
    driver.turn(Decode(spec(7, range(6), 24)))
    driver.turn()
    # The third step writes the eighth token's KV; what is asked for then is there.
    driver.turn()
    driver.turn(PreCopy(7, 0, 2, 60))
    assert [len(filled.blocks) for filled in offers(driver, 60)] == [2]
    assert not driver.failures()


def offers(driver: Driver, handle: int) -> list[Filled]:
    return [row for report in driver.reports for row in report.filled if row.handle == handle]


def test_blocks_are_offered_once_the_step_that_filled_them_ends() -> None:
    driver = Driver(overlaps=True, token_budget=8)
    turns: list[list[Command]] = [[Prefill(spec(1, range(20), 4))], [], [], [], []]
    reports = [driver.turn(*commands) for commands in turns]
    told = [sum(len(row.blocks) for report in turn for row in report.filled) for turn in reports]
    assert told == [0, 2, 2, 1, 0]
    assert driver.tokens(1) == greedy(range(20), 1, VOCAB)
    assert [report.step_seconds for report in driver.reports] == [STEP_S] * 3


def test_broken_logits_are_noticed_one_step_late_and_do_no_harm() -> None:
    driver = Driver(overlaps=True)
    clean = greedy([1, 2], 10, VOCAB)
    bad = greedy(PROMPT, 12, VOCAB)
    place = next(n for n in range(3, 12) if bad[n] not in [1, 2, 3, *clean, *bad[:n]])
    driver.runner.poison = bad[place]
    driver.finish(Decode(spec(1, [1, 2], 10)), Decode(spec(2, PROMPT, 20, sampling=GREEDY)))
    assert list(driver.failures()) == [2]
    assert driver.tokens(2) == bad[: place + 1]
    assert driver.tokens(1) == clean
    assert sorted(driver.freed()) == [1, 2]
    # Nothing of it is found in the cache.
    driver.runner.poison = None
    driver.finish(Decode(spec(3, [*PROMPT, *bad], 4)))
    assert driver.cached_tokens()[-1] == 0
    driver.assert_at_rest()


def test_a_launch_that_fails_keeps_what_the_step_before_it_drew() -> None:
    driver = Driver(overlaps=True, token_budget=8)
    driver.turn(Decode(spec(1, PROMPT, 50)))
    driver.turn()
    driver.runner.error = RuntimeError("no memory")
    driver.turn(Decode(spec(2, range(20), 50)), Decode(spec(3, [4], 5)))
    assert driver.tokens(1) == greedy(PROMPT, 2, VOCAB)
    assert sorted(driver.failures()) == [1, 2]
    assert "no memory" in driver.reports[-1].step_error
    driver.finish()
    assert driver.tokens(3) == greedy([4], 5, VOCAB)
    driver.assert_at_rest()


def test_a_step_that_fails_on_the_device_fails_those_it_computed_for() -> None:
    driver = Driver(overlaps=True)
    driver.turn(Decode(spec(1, PROMPT, 50)))
    driver.turn(Decode(spec(2, [9], 6)))
    driver.runner.late_error = RuntimeError("device lost")
    driver.turn(Decode(spec(3, [4], 5)))
    # The second's prompt and the first's token were in the step that failed; the third's prompt is behind it.
    assert sorted(driver.failures()) == [1, 2]
    assert "device lost" in driver.reports[-1].step_error
    driver.finish()
    assert driver.tokens(3) == greedy([4], 5, VOCAB)
    driver.assert_at_rest()


def test_paused_rows_go_on_with_the_tokens_they_had() -> None:
    requests = [spec(1, PROMPT, 12, sampling=RANDOM), spec(2, [7], 12)]
    driver = Driver(overlaps=True, policy=PREFILL_FIRST, token_budget=16)
    alone = Driver()
    driver.turn(*map(Decode, requests))
    for handle in (3, 4, 5):
        driver.turn(Decode(spec(handle, range(handle, 30), 4)))
        driver.turn()
    driver.finish()
    for request in requests:
        alone.finish(Decode(request))
    assert_same(driver, alone, requests)


def test_first_tokens_with_kv_are_reported_once_the_rest_is_done() -> None:
    driver = Driver(overlaps=True, token_budget=8)
    driver.turn(Receive(spec(1, range(20), 6)), Decode(spec(2, PROMPT, 20)))
    first = (greedy(range(20), 1, VOCAB)[0] + 1) % VOCAB  # not what this model would draw
    driver.finish(KVArrived(1, 0, TokenColumns([1], [0], [0], [first], [0])))
    assert driver.tokens(1) == [first, *greedy([*range(20), first], 5, VOCAB)]
    assert driver.tokens(2) == greedy(PROMPT, 20, VOCAB)
    driver.assert_at_rest()


def test_slack_counts_from_the_expected_end_of_the_current_step() -> None:
    """Each step takes a second; a token is due every five."""
    views: list[StepView] = []
    a_second = CostModel((1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)
    assert a_second.predict(StepShape.of(1, 9, [])) == 1.0
    driver = Driver(overlaps=True, policy=watching(views), cost=a_second)
    driver.turn(Decode(replace(spec(1, PROMPT, 30), tpot_ms=5000)))
    assert views[-1].decodes.slack_s == math.inf
    driver.turn()
    # Its first token is expected a second from the launch, the next one five seconds after that.
    assert views[-1].decodes.slack_s == pytest.approx(5.0)
    driver.now_s += 1.5
    driver.turn()
    # The first one came at 0.0 after all; the second's step is over at 2.0, and the third is due at 10.0.
    assert views[-1].decodes.slack_s == pytest.approx(10.0 - 2.0)


@st.composite
def requests(draw: st.DrawFn, handle: int) -> SequenceSpec:
    prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=12))
    ends = draw(st.lists(st.integers(0, VOCAB - 1), max_size=12))
    stop = StopRules(
        max_tokens=draw(st.integers(1, 24)),
        min_tokens=draw(st.sampled_from([0, 0, 3])),
        stop_token_ids=tuple(ends),
        stop_strings=draw(st.sampled_from([(), (), ("a",), ("b", "cd")])),
    )
    stop = replace(stop, min_tokens=min(stop.min_tokens, stop.max_tokens))
    sampling = draw(st.sampled_from([GREEDY, RANDOM, replace(RANDOM, seed=handle, top_k=9)]))
    choices = tuple(range(draw(st.sampled_from([1, 1, 2, 3]))))
    return spec(handle, prompt, sampling=sampling, stop=stop, choices=choices)


@settings(max_examples=40)
@given(data=st.data())
def test_whatever_comes_ends_is_cancelled_or_loses_its_blocks(data: st.DataObject) -> None:
    assert_outputs_are_those_of_each_alone(data, overlaps=True)


def assert_outputs_are_those_of_each_alone(data: st.DataObject, **options: Any) -> None:
    """Let a driver with these options serve what `data` draws."""
    specs = [data.draw(requests(handle)) for handle in range(data.draw(st.integers(1, 6)))]
    arrivals = [data.draw(st.integers(0, 6)) for _ in specs]
    cancelled = data.draw(st.dictionaries(st.sampled_from(range(len(specs))), st.integers(0, 12), max_size=2))
    eos = tuple(data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=8)))
    detokenizer = Detokenizer(byte_level())
    driver = Driver(
        **options,
        eos=eos,
        detokenizer=detokenizer,
        num_blocks=data.draw(st.sampled_from([27, 64])),
        token_budget=data.draw(st.sampled_from([3, 64])),
        policy=data.draw(st.sampled_from([CHUNKED, PREFILL_FIRST])),
        cost=data.draw(st.sampled_from([UNKNOWN_COST, DEAR_TOKENS])),
        num_swap_blocks=data.draw(st.sampled_from([0, 7, 100])),
        max_num_seqs=8,
    )
    # Outputs have been short so far: what comes now is let in, and is longer.
    driver.finish(*(Decode(spec(1000 + n, [n], 1)) for n in range(9)))
    for turn in range(13):
        commands: list[Command] = [
            Decode(sequence) for sequence, at in zip(specs, arrivals, strict=True) if at == turn
        ]
        commands += [Cancel(handle) for handle, at in cancelled.items() if at == turn]
        driver.turn(*commands)
    driver.finish()
    assert not driver.failures()
    for sequence in specs:
        alone = Driver(overlaps=False, eos=eos, detokenizer=detokenizer)
        alone.finish(Decode(sequence))
        for choice in sequence.choices:
            rows = alone.rows(sequence.handle, choice)
            if sequence.handle in cancelled:
                said = driver.rows(sequence.handle, choice)
                assert said == rows[: len(said)]
                continue
            assert driver.rows(sequence.handle, choice) == rows
            assert driver.text(sequence.handle, choice) == alone.text(sequence.handle, choice)
            assert driver.logprobs(sequence.handle, choice) == alone.logprobs(sequence.handle, choice)
    driver.assert_at_rest()
