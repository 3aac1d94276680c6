"""Models for a GPU whose rows do not depend on their neighbours: of what they are, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import engine.model.attention.attention
from engine.calibration.determinism_check import check_determinism
from engine.errors import ModelRefused
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import BlockLayout, KVPool
from engine.model.attention.attention import KernelAttention, LayerOrder
from engine.model.deterministic.invariant_rows import InvariantLinear, InvariantNorm, make_rows_invariant
from engine.model.model import load_model
from kernels.paged_attention.arguments import Softmax
from tests.engine.ragged import Piece, make_batch, poisoned_pool

CPU = torch.device("cpu")
BLOCK_SIZE = 16
TOKENS = [[5, 9, 7, 3, 11, 4], [8, 6, 12]]


def logits_of(runner: ModelRunner) -> Tensor:
    pieces = [Piece(0, tokens, [1 + place]) for place, tokens in enumerate(TOKENS)]
    return runner.forward(make_batch(pieces, BLOCK_SIZE)).clone()


# Weights that count from 0 and from 1, biases, norms of heads and of whole rows, LayerNorm, Conv1D.
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen2", "qwen3", "olmo2", "gpt2", "opt"])
def test_a_model_means_what_it_meant(family: str, zoo: Callable[[str], Path]) -> None:
    model = load_model(zoo(family), torch.float32, CPU)
    runner = ModelRunner(model, poisoned_pool(model, BLOCK_SIZE, 3))
    expected = logits_of(runner)
    make_rows_invariant(zoo(family), model.module)
    for module in model.module.modules():
        if list(module.parameters(recurse=False)):
            assert isinstance(module, (InvariantLinear, InvariantNorm, nn.Embedding, nn.LayerNorm))
    torch.testing.assert_close(logits_of(runner), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_mixtures_of_experts_are_refused(family: str, zoo: Callable[[str], Path]) -> None:
    model = load_model(zoo(family), torch.float32, CPU)
    with pytest.raises(ModelRefused, match="linear layers, norms and embeddings"):
        make_rows_invariant(zoo(family), model.module)


def test_a_decode_of_a_deterministic_model_is_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose kernel adds up a row in one order whatever its chunk; decodes have another order."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the decode kernel ran")

    monkeypatch.setattr(engine.model.attention.attention, "paged_decode", refuse)
    layout = BlockLayout(1, BLOCK_SIZE, 2, 16, torch.float32)
    pool = KVPool(layout, 3)
    batch = make_batch([Piece(0, [5], [1]), Piece(0, [6], [2])], BLOCK_SIZE)
    row = torch.ones(2, layout.num_kv_heads, layout.head_dim)
    softmax = Softmax(1.0)
    step = KernelAttention(pool, batch, LayerOrder(), span=64)
    assert torch.equal(step.attend(0, row, row, row, softmax), row)
    with pytest.raises(AssertionError, match="the decode kernel ran"):
        KernelAttention(pool, batch, LayerOrder()).attend(0, row, row, row, softmax)


def test_float64_is_refused_on_a_gpu(zoo: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match=r"deterministic in torch\.float64 on cuda; accepted"):
        load_model(zoo("llama"), torch.float64, torch.device("cuda"), deterministic=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3", "gpt2"])
def test_the_proof_holds_on_a_gpu(family: str, dtype: torch.dtype, zoo: Callable[[str], Path]) -> None:
    model = load_model(zoo(family), dtype, torch.device("cuda"), deterministic=True)
    runner = ModelRunner(model, KVPool(model.block_layout(BLOCK_SIZE), 64, model.device))
    assert check_determinism(runner) == check_determinism(runner)


def test_a_step_that_wants_no_logits_has_none() -> None:
    layer = InvariantLinear(torch.randn(7, 4), None)
    assert layer(torch.zeros(1, 0, 4)).shape == (1, 0, 7)
