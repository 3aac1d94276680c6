"""Deterministic models: every bit of every family is the same in any company, and means what stock means."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.calibration.determinism_check import check_determinism, same_bits
from engine.errors import NotDeterministic
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.deterministic.row_tiles import TiledProduct
from engine.model.model import load_model
from engine.sampling.sampler import draw_each
from engine.sampling.sampling_table import SamplingTable
from kernels.native.build import Target
from scheduling.request import SamplingParams
from tests import model_zoo
from tests.engine.ragged import Piece, generate_greedily, make_batch, poisoned_pool, shuffled_tables

CPU = torch.device("cpu")
BLOCK_SIZE = 4
# Across the border of a tile of positions, within one tile, and a few tokens.
LENGTHS = (139, 30, 6)
NUM_ROWS = 7


def runner_for(
    directory: Path, dtype: torch.dtype = torch.float32, *, deterministic: bool, fused: bool = False
) -> ModelRunner:
    model = load_model(directory, dtype, CPU, deterministic=deterministic, fused=fused)
    return ModelRunner(model, poisoned_pool(model, BLOCK_SIZE, 160))


def prompts(seed: int = 3) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, model_zoo.VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


def expect(runner: ModelRunner, tokens: list[list[int]]) -> list[Tensor]:
    """Logits of every position: each sequence alone, in one chunk."""
    answers = []
    for token in tokens:
        (table,), _ = shuffled_tables([len(token)], BLOCK_SIZE, 0)
        batch = make_batch([Piece(0, token, table)], BLOCK_SIZE)
        answers.append(runner.forward(replace(batch, logit_rows=torch.arange(len(token)))).clone())
    return answers


def logits_of_cuts(
    runner: ModelRunner, tokens: list[list[int]], rng: random.Random
) -> list[dict[int, Tensor]]:
    """By position, of the last token of each chunk; how chunks are cut, and who shares a step, is drawn."""
    tables, _ = shuffled_tables([len(token) for token in tokens], BLOCK_SIZE, rng.randrange(1000))
    found: list[dict[int, Tensor]] = [{} for _ in tokens]
    left = dict(enumerate(tokens))
    while left:
        company = rng.sample(sorted(left), rng.randint(1, len(left)))
        pieces = []
        for which in company:
            # The last tokens come one by one, as decodes do.
            size = 1 if len(left[which]) <= 3 else min(rng.choice((1, 5, 30, 70)), len(left[which]) - 3)
            begin = len(tokens[which]) - len(left[which])
            pieces.append(Piece(begin, left[which][:size], tables[which]))
        for which, piece, logits in zip(
            company, pieces, runner.forward(make_batch(pieces, BLOCK_SIZE)), strict=True
        ):
            found[which][piece.start + len(piece.tokens) - 1] = logits.clone()
            left[which] = left[which][len(piece.tokens) :]
            if not left[which]:
                del left[which]
    return found


def assert_same(found: list[dict[int, Tensor]], expected: list[Tensor]) -> None:
    for by_position, rows in zip(found, expected, strict=True):
        for position, logits in by_position.items():
            assert same_bits(logits, rows[position]), f"position {position} of {len(rows)} differs"


@pytest.mark.parametrize("family", model_zoo.CASES)
def test_chunks_and_company_change_no_bit(family: str, zoo: Callable[[str], Path]) -> None:
    runner = runner_for(zoo(family), deterministic=True)
    tokens = prompts()
    expected = expect(runner, tokens)
    for seed in range(2):
        assert_same(logits_of_cuts(runner, tokens, random.Random(seed)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "llama_tied", "qwen2_window", "qwen3", "gemma3_text", "granite"])
def test_native_layers_change_no_bit(
    family: str, dtype: torch.dtype, zoo: Callable[[str], Path], target: Target
) -> None:
    runner = runner_for(zoo(family), dtype, deterministic=True, fused=True)
    # In bfloat16 only processors that multiply it have native layers; tiles are what the test above is about.
    assert runner.model.fusion.is_native == (dtype == torch.float32 or target.has_bf16)
    tokens = prompts()
    expected = expect(runner, tokens)
    assert_same(logits_of_cuts(runner, tokens, random.Random(1)), expected)
    assert check_determinism(runner)


def test_experts_are_computed_in_tiles_though_native_ops_are_there(zoo: Callable[[str], Path]) -> None:
    runner = runner_for(zoo("mixtral"), deterministic=True, fused=True)
    assert not runner.model.is_fused
    assert check_determinism(runner)


def test_without_the_mode_company_does_change_bits(zoo: Callable[[str], Path], without_native: None) -> None:
    runner = runner_for(zoo("llama"), deterministic=False)
    tokens = prompts()
    expected = expect(runner, tokens)
    with pytest.raises(AssertionError, match="differs"):
        assert_same(logits_of_cuts(runner, tokens, random.Random(0)), expected)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "mixtral", "qwen3_moe", "gpt2"])
def test_tiles_mean_what_stock_transformers_means(family: str, zoo: Callable[[str], Path]) -> None:
    runner = runner_for(zoo(family), torch.float64, deterministic=True)
    asked = [tokens[:40] for tokens in prompts(seed=4)]
    for prompt, (tokens, logits) in zip(asked, generate_greedily(runner, asked, 6, 11), strict=True):
        stock = model_zoo.stock_generate(zoo(family), prompt, 6)
        assert tokens == stock.tokens
        # transformers' Gemma 2 rounds its softmax to float32 (ours does not).
        tolerance = 1e-4 if family == "gemma2" else 1e-9
        torch.testing.assert_close(logits, stock.logits, rtol=0, atol=tolerance)


def test_the_proof_tells_workers_apart_by_their_weights(tmp_path: Path, zoo: Callable[[str], Path]) -> None:
    other = model_zoo.build("llama", tmp_path / "other", seed=2)
    digests = []
    for directory, block_size in ((zoo("llama"), 16), (zoo("llama"), 4), (other, 16)):
        model = load_model(directory, torch.float32, CPU, deterministic=True)
        digests.append(check_determinism(ModelRunner(model, KVPool(model.block_layout(block_size), 160))))
    assert digests[0] == digests[1] != digests[2]


def test_the_proof_refuses_what_is_not_deterministic(
    zoo: Callable[[str], Path], without_native: None
) -> None:
    with pytest.raises(NotDeterministic, match=r"rows of \d+ .* when computed"):
        check_determinism(runner_for(zoo("llama"), deterministic=False))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 400), st.sampled_from([16, 96, 250, 257]), st.integers(1, 130), st.data())
def test_a_product_s_row_does_not_depend_on_its_neighbours(
    num_rows: int, inner: int, outer: int, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    product = TiledProduct.of_weight(torch.randn(outer, inner, generator=generator), None)
    rows = torch.randn(num_rows, inner, generator=generator)
    begin = data.draw(st.integers(0, num_rows - 1))
    end = data.draw(st.integers(begin + 1, num_rows))
    assert same_bits(product(rows[begin:end]), product(rows)[begin:end])


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(NUM_ROWS)), st.integers(3, 300))
def test_a_row_is_sampled_alone(order: list[int], vocab: int) -> None:
    logits = torch.randn(NUM_ROWS, vocab, generator=torch.Generator().manual_seed(vocab))
    told = [row % 3 for row in range(NUM_ROWS)]

    def draw(rows: list[int]) -> list[tuple[int, float, list[float]]]:
        table = SamplingTable(len(rows), vocab, CPU)
        for place, row in enumerate(rows):
            way = SamplingParams(temperature=0.7 * (row % 2), top_p=0.9, seed=row, logprobs=told[row])
            table.set(place, way, 0, prompt_token_ids=[1], output_token_ids=[], min_tokens=0, banned=())
        drawn = draw_each(logits[rows], table, np.zeros(len(rows), dtype=np.int64)).wait()
        assert drawn.logprobs is not None
        tops = drawn.logprobs.top_logprobs.tolist()
        return [
            (int(token), float(chosen), top[: told[row]])
            for row, token, chosen, top in zip(
                rows, drawn.token_ids, drawn.logprobs.chosen, tops, strict=True
            )
        ]

    assert draw(order) == [draw([row])[0] for row in order]
