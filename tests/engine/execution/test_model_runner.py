"""Paged, ragged, chunked forward passes against transformers' own `generate`, in float64."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.model import Model, load_model
from kernels.paged_attention.arguments import Softmax
from tests import model_zoo
from tests.engine.ragged import Piece, generate_greedily, make_batch, poisoned_pool, shuffled_tables

CPU = torch.device("cpu")
NUM_TOKENS = 10


def make_prompts(*lengths: int) -> list[list[int]]:
    rng = random.Random(2)
    return [[rng.randrange(3, model_zoo.VOCAB_SIZE) for _ in range(length)] for length in lengths]


def load(directory: Path) -> Model:
    return load_model(directory, torch.float64, CPU)


def runner_for(directory: Path, block_size: int, num_blocks: int = 160) -> ModelRunner:
    model = load(directory)
    return ModelRunner(model, poisoned_pool(model, block_size, num_blocks))


def tolerance(name: str) -> float:
    # transformers' Gemma 2 rounds its softmax to float32 (ours does not); everything else is float64's noise.
    return 1e-4 if name == "gemma2" else 1e-9


def assert_equal_to_stock(
    runner: ModelRunner, name: str, directory: Path, prompts: list[list[int]], chunk: int
) -> None:
    got = generate_greedily(runner, prompts, NUM_TOKENS, chunk)
    for prompt, (tokens, logits) in zip(prompts, got, strict=True):
        want = model_zoo.stock_generate(directory, prompt, NUM_TOKENS)
        assert tokens == want.tokens
        torch.testing.assert_close(logits, want.logits, rtol=0, atol=tolerance(name))


@pytest.mark.parametrize("name", model_zoo.CASES)
def test_ragged_chunks_and_decodes_equal_stock_generate(name: str, zoo: Callable[[str], Path]) -> None:
    directory = zoo(name)
    prompts = make_prompts(11, 23, 5)
    assert_equal_to_stock(runner_for(directory, block_size=4), name, directory, prompts, chunk=8)


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("name", ["llama_rope", "mistral", "gemma2", "gpt_oss", "gpt2"])
def test_long_contexts_over_many_blocks_equal_stock_generate(
    name: str, block_size: int, zoo: Callable[[str], Path]
) -> None:
    directory = zoo(name)
    prompts = make_prompts(190, 3, 66)
    assert_equal_to_stock(runner_for(directory, block_size), name, directory, prompts, chunk=33)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_the_chunk_size_does_not_matter(chunk: int, zoo: Callable[[str], Path]) -> None:
    directory = zoo("qwen2_window")
    prompts = make_prompts(40, 9)
    assert_equal_to_stock(runner_for(directory, 16), "qwen2_window", directory, prompts, chunk)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "phi3"])
def test_the_kernels_path_equals_stock_generate(name: str, zoo: Callable[[str], Path]) -> None:
    """The path of a GPU; here each op runs its reference, as it always does in float64."""
    directory = zoo(name)
    runner = runner_for(directory, block_size=4)
    runner._rows = None
    assert_equal_to_stock(runner, name, directory, make_prompts(11, 23, 5), chunk=8)


def without(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutate the engine: no layer honours `field` any more."""
    names = [each.name for each in dataclasses.fields(Softmax)]

    def forgetful(*values: object) -> Softmax:
        arguments: dict[str, Any] = dict(zip(names, values, strict=True)) | {field: None}
        return Softmax(**arguments)

    monkeypatch.setattr("engine.model.attention.attention.Softmax", forgetful)


FEATURES = [
    (name, field)
    for name, case in model_zoo.CASES.items()
    for field, present in (("sliding_window", case.window), ("softcap", case.softcap), ("sinks", case.sinks))
    if present
]


@pytest.mark.parametrize(("name", "field"), FEATURES)
def test_forgetting_a_feature_would_be_noticed(
    name: str, field: str, zoo: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = zoo(name)
    runner = runner_for(directory, block_size=4)
    without(field, monkeypatch)
    [prompt] = make_prompts(23)
    [(tokens, logits)] = generate_greedily(runner, [prompt], NUM_TOKENS, chunk=8)
    want = model_zoo.stock_generate(directory, prompt, NUM_TOKENS)
    assert tokens != want.tokens
    assert (logits[0] - want.logits[0]).abs().max() > 1e-2


def test_logits_come_for_the_rows_asked_for_and_no_others(zoo: Callable[[str], Path]) -> None:
    directory = zoo("llama")
    runner = runner_for(directory, block_size=4)
    [prompt] = make_prompts(9)
    [table], _ = shuffled_tables([9], 4, seed=1)
    batch = dataclasses.replace(make_batch([Piece(0, prompt, table)], 4), logit_rows=torch.tensor([2, 5, 8]))
    with torch.inference_mode():
        want = model_zoo.load_stock(directory)(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(runner.forward(batch), want[[2, 5, 8]], rtol=0, atol=1e-9)


def test_a_step_may_ask_for_no_logits(zoo: Callable[[str], Path]) -> None:
    runner = runner_for(zoo("gpt_oss"), block_size=4)
    batch = make_batch([Piece(0, [5, 6, 7], [9])], 4)
    no_rows = dataclasses.replace(batch, logit_rows=torch.empty(0, dtype=torch.int64))
    assert runner.forward(no_rows).shape == (0, model_zoo.VOCAB_SIZE)
    assert not runner.pool.tensor[9, :, :, :3].isnan().any()


def test_a_token_without_a_slot_leaves_the_pool_alone(zoo: Callable[[str], Path]) -> None:
    runner = runner_for(zoo("llama"), block_size=4)
    batch = make_batch([Piece(0, [5], [7]), Piece(0, [6], [9])], 4)
    runner.pool.tensor[7] = 1.0
    batch.slot_mapping[0] = -1
    runner.forward(batch)
    assert (runner.pool.tensor[7] == 1.0).all()
    written = ~runner.pool.tensor.isnan().any(dim=-1).any(dim=-1)
    assert written.nonzero()[:, [0, 3]].unique(dim=0).tolist() == [[7, 0], [7, 1], [7, 2], [7, 3], [9, 0]]


def test_stale_nans_in_a_block_s_tail_do_no_harm(zoo: Callable[[str], Path]) -> None:
    """A block that failed its verification is used again as it is."""
    directory = zoo("llama")
    prompts = make_prompts(5, 30)
    assert_equal_to_stock(runner_for(directory, block_size=16), "llama", directory, prompts, chunk=30)


def test_a_model_that_skips_a_layer_is_caught_in_the_step(zoo: Callable[[str], Path]) -> None:
    runner = runner_for(zoo("llama"), block_size=4)
    decoder: Any = runner.model.module.model
    del decoder.layers[3]
    with pytest.raises(AssertionError, match="3 of 4 layers attended"):
        runner.forward(make_batch([Piece(0, [5], [7])], 4))


def test_a_pool_of_another_layout_is_refused(zoo: Callable[[str], Path]) -> None:
    model = load(zoo("llama"))
    other = dataclasses.replace(model.block_layout(4), head_dim=8)
    with pytest.raises(ValueError, match=r"pool is .*head_dim=8.*; accepted: .*head_dim=16"):
        ModelRunner(model, KVPool(other, 4))
