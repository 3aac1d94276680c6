"""Requests that are played on step loops, and what they have to say alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

from engine.core.commands import Decode, Receive, StopAndCopy
from model_output.grammar.grammar import Grammars, grammar_of
from model_output.text.detokenizer import Detokenizer
from scheduling.cost_model import CostModel
from scheduling.policies.chunked import CHUNKED
from scheduling.request import ReceiveKind, SamplingParams, SequenceSpec, StopRules
from tests.engine.core.test_step_loop_moving import fetch, resumed, running
from tests.engine.fake_runner import FakeRunner
from tests.engine.loop_driver import (
    CHEAP_DRAFTS,
    DEAR_TOKENS,
    FREE_DRAFTS,
    RESERVING,
    UNKNOWN_COST,
    VOCAB,
    Driver,
    spec,
)
from tests.model_output.text.tokenizers_zoo import one_byte_tokens

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
    """Requests that the contract allows: bad words and `min_tokens` are refused beside a grammar."""
    patterns = draw(st.lists(st.sampled_from([FORCED, FREE, "", "", ""]), min_size=1, max_size=4))
    bad_words = st.sampled_from([(), (), ((3, 4), (5, 6, 7))])
    return [
        asked(
            handle,
            pattern,
            replace(draw(SAMPLINGS), bad_words=() if pattern else draw(bad_words)),
            replace(draw(STOPS), min_tokens=0 if pattern else draw(st.sampled_from([0, 9]))),
            draw(st.integers(1, 3)),
        )
        for handle, pattern in enumerate(patterns, 1)
    ]


@st.composite
def free_requests(draw: st.DrawFn) -> list[SequenceSpec]:
    """Requests without penalties, bad words, grammars and log-probabilities."""
    prompts = st.sampled_from([range(5), range(30), range(2, 40), [*range(30), 7, 8, 9]])
    sampling = st.builds(replace, SAMPLINGS, frequency_penalty=st.just(0.0), logprobs=st.none())
    num_choices = st.integers(1, 3)
    return [
        spec(
            handle,
            draw(prompts),
            sampling=replace(draw(sampling), n=n),
            stop=replace(draw(STOPS), stop_strings=(), min_tokens=draw(st.sampled_from([0, 9]))),
            choices=(*range(n),),
        )
        for handle, n in enumerate(draw(st.lists(num_choices, min_size=1, max_size=5)), 1)
    ]


PLACES = st.lists(st.integers(0, 6), min_size=5, max_size=5)
COSTS = st.sampled_from([FREE_DRAFTS, UNKNOWN_COST, DEAR_TOKENS])
BUDGETS = st.sampled_from([64, 12])


@dataclass(frozen=True)
class Play:
    """Requests that join in the midst of others, on a loop whose blocks may run out."""

    specs: list[SequenceSpec]
    num_blocks: int
    budget: int
    places: list[int]
    cost: CostModel = UNKNOWN_COST
    num_seen: int | None = None
    reserves: bool = False

    def draft(self, num_seen: int | None) -> FakeRunner:
        """Return a draft model with as many blocks."""
        return FakeRunner(self.num_blocks, 4, VOCAB, num_seen)

    def assert_told_alike(self, *options: dict[str, Any]) -> None:
        """Play them on a driver with each of these options: clients are told the same."""
        first, *others = map(self._told, options)
        assert all(told == first for told in others)

    def _told(self, options: dict[str, Any]) -> list[object]:
        driver = Driver(
            **words(),
            num_blocks=self.num_blocks,
            token_budget=self.budget,
            num_seen=self.num_seen,
            cost=self.cost,
            policy=RESERVING if self.reserves else CHUNKED,
            **options,
        )
        told = play(driver, self.specs, self.places)
        assert all(num_tokens <= self.budget for _, num_tokens in driver.runner.batches)
        return told


DRAFTED_PLAYS = st.builds(
    Play,
    requests(),
    st.sampled_from([64, 34, 24]),
    BUDGETS,
    PLACES,
    COSTS,
    st.sampled_from([1, 2, 3, None]),
    st.booleans(),
)


def drafting(
    num_seen: int | None = None, *, num_blocks: int = 64, block_size: int = 4, **options: object
) -> Driver:
    """Return a step loop with a draft model that sees the `num_seen` last tokens; None: all, as the model."""
    given: dict[str, object] = {"cost": FREE_DRAFTS, "draft_cost": CHEAP_DRAFTS, **options}
    draft = FakeRunner(num_blocks, block_size, VOCAB, num_seen)
    return Driver(num_blocks=num_blocks, block_size=block_size, draft=draft, **given)  # type: ignore[arg-type]


def drafted(driver: Driver) -> tuple[int, int]:
    """Return how many tokens were drafted, and how many of them accepted."""
    reports = driver.reports
    return sum(report.drafted_tokens for report in reports), sum(report.accepted_drafts for report in reports)


def check_move(source: Driver, target: Driver, alone: Driver, request: SequenceSpec, num_turns: int) -> None:
    """Move a choice after some turns; its tokens and text are those of one that was not moved."""
    alone.finish(Decode(request))
    running(source, request, num_turns)
    source.turn(StopAndCopy(7, ((0, 70),)))
    target.finish(Receive(resumed(source, request, 0, 70), ReceiveKind.STOPPED))
    fetch(source, target, 70, 70)
    assert source.rows(7) + target.rows(70) == alone.rows(7)
    assert source.text(7) + target.text(70) == alone.text(7)
