"""Sampling equals transformers' processors, draws what it says, and looks at nobody but its own row."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.logits_process import MinNewTokensLengthLogitsProcessor

from engine.sampling import sampler
from engine.sampling.logit_filters import keep_min_p, keep_top_k, keep_top_p
from engine.sampling.sampler import Sampled, uniforms
from engine.sampling.sampling_table import SamplingTable
from scheduling.request import SamplingParams, StopRules, leaves_a_token

VOCAB = 40
CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a batch, with all that its token may depend on."""

    params: SamplingParams
    choice: int = 0
    prompt: tuple[int, ...] = (1, 2, 2)
    output: tuple[int, ...] = ()
    min_tokens: int = 0
    banned: tuple[int, ...] = ()
    logits_seed: int = 0

    def logits(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.logits_seed)
        return torch.randn(VOCAB, generator=generator, dtype=torch.float64) * 3


def draw(rows: list[Row], dtype: torch.dtype = torch.float64) -> Sampled:
    table = SamplingTable(len(rows), VOCAB, CPU)
    for place, row in enumerate(rows):
        table.set(
            place,
            row.params,
            row.choice,
            prompt_token_ids=row.prompt,
            output_token_ids=row.output,
            min_tokens=row.min_tokens,
            banned=row.banned,
        )
        table.banned_now[place] = table.bad_words[place].banned_after(row.output)
    logits = torch.stack([row.logits() for row in rows]).to(dtype)
    before = logits.clone()
    sampled = sampler.draw(logits, table, np.array([len(row.output) for row in rows])).wait()
    assert torch.equal(logits, before)
    return sampled


def _apply(processor: Any, scores: torch.Tensor, tokens: torch.Tensor | None = None) -> torch.Tensor:
    # transformers annotates tensors by classes that no tensor has.
    warped: torch.Tensor = processor(tokens, scores)
    return warped


def reference(row: Row) -> int:
    """The same with transformers' processors, one row at a time, and a sum in plain Python."""
    params, length = row.params, len(row.prompt)
    processors = LogitsProcessorList()
    if params.allowed_token_ids:
        processors.append(PrefixConstrainedLogitsProcessor(lambda *_: list(params.allowed_token_ids), 1))
    if params.logit_bias:
        processors.append(SequenceBiasLogitsProcessor([[[token], bias] for token, bias in params.logit_bias]))
    processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    tokens = torch.tensor([[*row.prompt, *row.output]])
    scores = _apply(processors, row.logits().unsqueeze(0), tokens)
    for token in set(row.output):
        scores[0, token] -= params.presence_penalty + params.frequency_penalty * row.output.count(token)
    processors = LogitsProcessorList()
    if row.min_tokens and row.banned:
        ends = list(row.banned)
        processors.append(MinNewTokensLengthLogitsProcessor(length, row.min_tokens, ends, device="cpu"))
    scores = _apply(processors, scores, tokens)
    if params.bad_words:
        # It leaves alone what is as long as all tokens are: one more at the beginning, which is in no word.
        no_bad_words = NoBadWordsLogitsProcessor([list(word) for word in params.bad_words])
        scores = _apply(no_bad_words, scores, torch.tensor([[VOCAB, *row.output]]))
    processors = LogitsProcessorList()
    if params.temperature == 0:
        return int(scores.argmax())
    processors.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        processors.append(MinPLogitsWarper(params.min_p))
    weights = torch.softmax(_apply(processors, scores, tokens)[0], dim=-1).tolist()
    noise = uniforms(
        *(np.array([value], dtype=np.uint64) for value in (params.seed, row.choice, len(row.output)))
    )
    return bisect.bisect_right(list(itertools.accumulate(weights)), float(noise[0]))


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7, 30.0]),
    top_k=st.sampled_from([0, 1, 3, 20, VOCAB, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 1.5, -0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.9, -0.4]),
    # transformers refuses a bias of token 0.
    logit_bias=st.dictionaries(st.integers(1, VOCAB - 1), st.floats(-9, 9).filter(bool), max_size=3).map(
        lambda bias: tuple(bias.items())
    ),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.sampled_from([None, 0, 3]),
    allowed_token_ids=st.just(()) | st.sets(st.integers(0, VOCAB - 1), min_size=1, max_size=9).map(tuple),
    # A few tokens, so that outputs hold what comes before the last.
    bad_words=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
)
TOKENS = st.lists(st.integers(0, VOCAB - 1) | st.integers(1, 5), max_size=8).map(tuple)
ROWS = st.builds(
    Row,
    params=PARAMS,
    choice=st.integers(0, 15),
    prompt=TOKENS.filter(bool),
    output=TOKENS,
    min_tokens=st.integers(0, 8),
    banned=st.sets(st.integers(0, VOCAB - 1), max_size=3).map(tuple),
    logits_seed=st.integers(0, 10_000),
).filter(lambda row: leaves_a_token(row.params, StopRules(9, row.min_tokens, (), row.banned), (), VOCAB))


@settings(max_examples=200)
@given(st.lists(ROWS, min_size=1, max_size=8))
def test_every_row_draws_what_transformers_processors_leave(rows: list[Row]) -> None:
    assert draw(rows).token_ids.tolist() == [reference(row) for row in rows]


@settings(max_examples=60)
@given(st.lists(ROWS, min_size=2, max_size=8), st.randoms())
def test_a_token_does_not_depend_on_the_batch(rows: list[Row], random: object) -> None:
    together = draw(rows)
    alone = [draw([row]) for row in rows]
    assert together.token_ids.tolist() == [answer.token_ids[0] for answer in alone]
    backwards = draw(rows[::-1])
    assert together.token_ids.tolist() == backwards.token_ids.tolist()[::-1]


@pytest.mark.parametrize("top_k", [1, 2, 5, VOCAB, 500])
def test_top_k_keeps_ties_as_transformers_does(top_k: int) -> None:
    logits = torch.randint(0, 6, (20, VOCAB)).double()
    ours = keep_top_k(logits, torch.full((20, 1), top_k))
    assert torch.equal(ours, _apply(TopKLogitsWarper(top_k), logits))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("share", [1e-9, 0.1, 0.5, 0.9, 0.999, 1.0])
def test_top_p_and_min_p_equal_transformers(share: float, dtype: torch.dtype) -> None:
    logits = torch.randn(50, VOCAB, dtype=dtype) * 4
    shares = torch.full((50, 1), share, dtype=dtype)
    assert torch.equal(keep_top_p(logits, shares), _apply(TopPLogitsWarper(share), logits))
    assert torch.equal(keep_min_p(logits, shares), _apply(MinPLogitsWarper(share), logits))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=12),
        SamplingParams(temperature=1.5, top_p=0.8),
        SamplingParams(temperature=1.2, min_p=0.05),
    ],
    ids=["plain", "top_k", "top_p", "min_p"],
)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    """Seeds are fixed, so the statistic is too: this cannot fail by chance."""
    row = Row(params)
    scores = row.logits().unsqueeze(0) / params.temperature
    if params.top_k:
        scores = _apply(TopKLogitsWarper(params.top_k), scores)
    if params.top_p < 1:
        scores = _apply(TopPLogitsWarper(params.top_p), scores)
    if params.min_p:
        scores = _apply(MinPLogitsWarper(params.min_p), scores)
    probabilities = torch.softmax(scores[0], dim=-1).numpy()
    count = 20_000
    rows = [Row(dataclasses.replace(params, seed=seed)) for seed in range(count)]
    drawn = np.bincount(draw(rows).token_ids, minlength=VOCAB)
    assert drawn[probabilities == 0].sum() == 0
    # Rare tokens together in one bin: the chi-square approximation wants at least five in each.
    is_common = probabilities * count >= 5
    observed = [*drawn[is_common], drawn[~is_common].sum()]
    expected = [*(probabilities[is_common] * count), probabilities[~is_common].sum() * count]
    if expected[-1] == 0:
        observed.pop(), expected.pop()
    assert stats.chisquare(observed, expected, sum_check=False).pvalue > 0.001


def test_every_token_with_weight_can_be_drawn_and_none_without() -> None:
    row = Row(SamplingParams(temperature=100.0, logit_bias=((0, -1e5), (VOCAB - 1, -1e5))))
    rows = [
        dataclasses.replace(row, params=dataclasses.replace(row.params, seed=seed)) for seed in range(3000)
    ]
    assert set(draw(rows).token_ids.tolist()) == set(range(1, VOCAB - 1))


def test_a_temperature_close_to_zero_is_nearly_greedy() -> None:
    row = Row(SamplingParams(temperature=5e-324))
    assert draw([row]).token_ids.tolist() == [int(row.logits().argmax())]


def test_a_row_without_any_token_left_draws_one_all_the_same() -> None:
    row = Row(SamplingParams(temperature=1.0, top_p=0.9), min_tokens=3, banned=tuple(range(VOCAB)))
    assert 0 <= draw([row]).token_ids[0] < VOCAB


def test_broken_rows_are_told_and_others_draw_as_without_them() -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=3, presence_penalty=1.0, logprobs=1)
    rows = [Row(params, logits_seed=seed) for seed in range(5)]
    clean = draw(rows)
    table = SamplingTable(5, VOCAB, CPU)
    for place, row in enumerate(rows):
        table.set(
            place, row.params, 0, prompt_token_ids=row.prompt, output_token_ids=(), min_tokens=0, banned=()
        )
    logits = torch.stack([row.logits() for row in rows])
    logits[1, 7], logits[3] = float("nan"), float("-inf")
    sampled = sampler.draw(logits, table, np.zeros(5, dtype=np.int64)).wait()
    assert sampled.is_broken.tolist() == [False, True, False, True, False]
    assert sampled.logprobs is not None
    assert clean.logprobs is not None
    assert sampled.logprobs.rows.tolist() == list(range(5))
    for place in (0, 2, 4):
        assert sampled.token_ids[place] == clean.token_ids[place]
        assert sampled.logprobs.chosen[place] == clean.logprobs.chosen[place]
    # The next step reads them whatever they are.
    assert all(0 <= token < VOCAB for token in sampled.token_ids)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_greedy_takes_the_largest_logit_in_the_models_own_precision(dtype: torch.dtype) -> None:
    rows = [Row(SamplingParams(temperature=0.0), logits_seed=seed) for seed in range(20)]
    expected = [int(row.logits().to(dtype).argmax()) for row in rows]
    assert draw(rows, dtype).token_ids.tolist() == expected


def test_float64_logits_are_not_rounded() -> None:
    table = SamplingTable(1, 2, CPU)
    params = SamplingParams(temperature=0.0, logprobs=1)
    table.set(0, params, 0, prompt_token_ids=(0,), output_token_ids=(), min_tokens=0, banned=())
    logits = torch.tensor([[1.0, 1.0 + 1e-12]], dtype=torch.float64)
    sampled = sampler.draw(logits, table, np.zeros(1, dtype=np.int64)).wait()
    assert sampled.token_ids.tolist() == [1]
    assert sampled.logprobs is not None
    assert abs(sampled.logprobs.chosen[0] - torch.log_softmax(logits, dim=-1)[0, 1].item()) < 1e-15


def test_counts_follow_rows_that_move() -> None:
    params = SamplingParams(temperature=0.0, frequency_penalty=2.0, repetition_penalty=1.5)
    first = Row(params, prompt=(1,), output=(3, 3, 5), logits_seed=1)
    last = Row(params, prompt=(2, 9), output=(4, 4, 4), logits_seed=2)
    table = SamplingTable(2, VOCAB, CPU)
    for place, row in enumerate((first, last)):
        table.set(
            place,
            params,
            0,
            prompt_token_ids=row.prompt,
            output_token_ids=row.output,
            min_tokens=0,
            banned=(),
        )
    for _ in range(6):
        both = torch.stack([first.logits(), last.logits()])
        drawn = sampler.draw(both, table, np.zeros(2, dtype=np.int64)).wait().token_ids.tolist()
        assert drawn == [reference(first), reference(last)]
        first = dataclasses.replace(first, output=(*first.output, drawn[0]))
        last = dataclasses.replace(last, output=(*last.output, drawn[1]))
    table.move(1, 0)
    sampled = sampler.draw(last.logits().unsqueeze(0), table, np.zeros(1, dtype=np.int64)).wait()
    assert sampled.token_ids.tolist() == [reference(last)]


@pytest.mark.gpu
def test_plain_rows_come_from_a_gpu_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(0))
    logits[1, 3], logits[4, 0] = torch.nan, torch.inf
    table = SamplingTable(5, VOCAB, CPU)
    want = sampler.draw(logits, table, np.zeros(5, dtype=np.int64)).wait()
    monkeypatch.setattr(torch.Tensor, "cpu", None)
    got = sampler.draw(logits.cuda(), table, np.zeros(5, dtype=np.int64)).wait()
    assert got.is_broken.tolist() == want.is_broken.tolist() == [False, True, False, False, True]
    assert got.token_ids[[0, 2, 3]].tolist() == want.token_ids[[0, 2, 3]].tolist()


def test_the_choices_of_a_request_share_the_columns_of_its_edits() -> None:
    table = SamplingTable(4, 1024, CPU)
    params = SamplingParams(logit_bias=tuple((token_id, 1.0) for token_id in range(1024)))
    for choice in range(4):
        table.set(
            choice, params, choice, prompt_token_ids=(), output_token_ids=(), min_tokens=2, banned=(3, 9)
        )
    for columns in (table.bias, table.banned, table.bias_and_banned):
        assert all(column is columns[0] for column in columns)
    both = table.bias_and_banned[0]
    assert both.token_ids.tolist() == list(range(1024))
    assert both.values[[2, 3, 4, 9]].tolist() == [1.0, float("-inf"), 1.0, float("-inf")]
