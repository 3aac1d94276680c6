"""Tokens that a grammar forces need no step of their own, and change nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Decode, Receive, StopAndCopy
from output_text.detokenizer import Detokenizer
from output_text.grammar import Grammars, grammar_of
from scheduling.request import FinishReason, ReceiveKind, SamplingParams, SequenceSpec, StopRules
from tests.engine.core.test_step_loop_moving import fetch, resumed, running
from tests.engine.loop_driver import VOCAB, Driver, spec
from tests.output_text.tokenizers_zoo import one_byte_tokens

pytestmark = pytest.mark.usefixtures("both_ways")

FORCED = r"([A-C]{1,2}-forced!){1,6}"
FREE = r"[A-Z]{1,20}"


@lru_cache(maxsize=1)
def words() -> dict[str, Any]:
    tokenizer = one_byte_tokens(VOCAB)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        tokenizer.save(str(file))
        grammars = Grammars(file, VOCAB, [VOCAB - 1])
    return {"detokenizer": Detokenizer(tokenizer), "grammars": grammars, "eos": (VOCAB - 1,)}


def asked(handle: int, pattern: str, sampling: SamplingParams, stop: StopRules, n: int = 1) -> SequenceSpec:
    grammar = grammar_of("regex", pattern) if pattern else ""
    prompt = range(handle, handle + 5)
    return spec(
        handle, prompt, sampling=replace(sampling, grammar=grammar, n=n), stop=stop, choices=(*range(n),)
    )


def answered(driver: Driver, request: SequenceSpec) -> list[tuple[object, ...]]:
    """All that a client is told of each choice."""
    handle = request.handle
    return [
        (driver.rows(handle, choice), driver.text(handle, choice), driver.logprobs(handle, choice))
        for choice in request.choices
    ]


def all_answered(driver: Driver, requests: Sequence[SequenceSpec]) -> list[object]:
    """All that clients are told, but of a request of several choices that failed only why.

    A choice whose grammar and other limits leave no token fails the whole request, wherever its other choices
    are: how far that is depends on how many tokens a step brings.
    """
    failures = driver.failures()
    return [
        failures[request.handle]
        if request.handle in failures and len(request.choices) > 1
        else (answered(driver, request), failures.get(request.handle))
        for request in requests
    ]


def play(driver: Driver, requests: Sequence[SequenceSpec], places: Sequence[int]) -> list[object]:
    """Send the requests, with so many turns behind each; return what all of them were answered."""
    for request, turns in zip(requests, places, strict=False):
        driver.turn(Decode(request))
        for _ in range(turns):
            driver.turn()
    driver.finish()
    driver.assert_at_rest()
    return all_answered(driver, requests)


SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 3.0]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.4]),
    min_p=st.sampled_from([0.0, 0.2]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 1.5]),
    logit_bias=st.sampled_from([(), ((ord("f") - 33, -100.0), (5, 20.0))]),
    seed=st.integers(0, 99),
    logprobs=st.sampled_from([None, None, 2]),
)
STOPS = st.builds(
    StopRules,
    max_tokens=st.integers(1, 60),
    stop_strings=st.sampled_from([(), ("rce",), ("d!A", "d!B"), ("!",)]),
    stop_token_ids=st.sampled_from([(), (ord("c") - 33,)]),
    include_stop=st.booleans(),
)


@st.composite
def requests(draw: st.DrawFn) -> list[SequenceSpec]:
    patterns = draw(st.lists(st.sampled_from([FORCED, FORCED, FREE, ""]), min_size=1, max_size=4))
    return [
        asked(handle, pattern, draw(SAMPLINGS), draw(STOPS), draw(st.integers(1, 3)))
        for handle, pattern in enumerate(patterns, 1)
    ]


@settings(max_examples=25)
@given(
    specs=requests(),
    num_blocks=st.sampled_from([64, 34, 22]),
    budget=st.sampled_from([64, 12]),
    places=st.lists(st.integers(0, 6), min_size=4, max_size=4),
)
def test_outputs_are_the_same_with_and_without_steps_of_their_own(
    specs: list[SequenceSpec], num_blocks: int, budget: int, places: list[int]
) -> None:
    """Also when sequences join in the midst of others, and when blocks run out."""
    told = []
    for takes_forced in (False, True):
        driver = Driver(
            **words(), num_blocks=num_blocks, block_size=4, token_budget=budget, takes_forced=takes_forced
        )
        told.append(play(driver, specs, places))
    assert told[0] == told[1]


def test_a_forced_text_takes_fewer_steps() -> None:
    request = asked(1, r"[A-C]-forced_tokens!", SamplingParams(temperature=0.0), StopRules(max_tokens=40))
    steps = []
    for takes_forced in (False, True):
        driver = Driver(**words(), block_size=16, takes_forced=takes_forced)
        driver.finish(Decode(request))
        assert driver.text(1)[1:] == "-forced_tokens!"
        steps.append(driver.runner.num_steps)
    assert steps[1] < steps[0] / 3


def test_a_step_computes_no_more_tokens_than_its_budget() -> None:
    driver = Driver(**words(), block_size=64, token_budget=8)
    requests = [
        asked(handle, FORCED, SamplingParams(temperature=0.0), StopRules(max_tokens=50))
        for handle in (1, 2, 3)
    ]
    driver.finish(*[Decode(request) for request in requests])
    assert max(num_tokens for _, num_tokens in driver.runner.batches) <= 8


@pytest.mark.parametrize("num_turns", range(4))
def test_a_choice_moves_with_all_of_its_forced_tokens(num_turns: int) -> None:
    request = asked(7, r"([A-C]-forced!){9}", SamplingParams(temperature=0.9, seed=4), StopRules(99))
    source, target, alone = (Driver(**words()) for _ in range(3))
    alone.finish(Decode(request))
    running(source, request, num_turns)
    source.turn(StopAndCopy(7, ((0, 70),)))
    target.finish(Receive(resumed(source, request, 0, 70), ReceiveKind.STOPPED))
    fetch(source, target, 70, 70)
    assert source.rows(7) + target.rows(70) == alone.rows(7)
    assert source.text(7) + target.text(70) == alone.text(7)


def test_a_stop_string_within_forced_tokens_ends_the_choice_there() -> None:
    stop = StopRules(max_tokens=50, stop_strings=("rce",))
    driver = Driver(**words(), block_size=32)
    driver.finish(Decode(asked(1, FORCED, SamplingParams(temperature=0.0), stop)))
    assert driver.text(1).endswith("-fo")
    assert driver.rows(1)[-1][2] == FinishReason.STOP
    # The blocks of what came after it are not found by another prompt.
    again = asked(2, FORCED, SamplingParams(temperature=0.0), StopRules(max_tokens=50))
    again = replace(again, prompt_token_ids=(*range(1, 6), *driver.tokens(1), *range(40, 70)))
    driver.finish(Decode(again))
    driver.assert_at_rest()
