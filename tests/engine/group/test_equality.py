"""Several processes compute together what one computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.execution.model_runner import ModelRunner
from engine.model.quantised.quantisation import Quantisation
from kernels.native import loader
from tests import model_zoo
from tests.engine.group_driver import grouped, whole
from tests.engine.ragged import generate_greedily

NUM_TOKENS, CHUNK = 10, 8
RNG = random.Random(2)
PROMPTS = [[RNG.randrange(3, model_zoo.VOCAB_SIZE) for _ in range(length)] for length in (11, 23, 5)]


def assert_equal(split: ModelRunner, one: ModelRunner, tolerance: float) -> None:
    got, want = (generate_greedily(runner, PROMPTS, NUM_TOKENS, CHUNK) for runner in (split, one))
    for (tokens, logits), (expected_tokens, expected_logits) in zip(got, want, strict=True):
        assert tokens == expected_tokens
        torch.testing.assert_close(logits, expected_logits, rtol=0, atol=tolerance)
    # Blocks have the same content, so any worker may go on with them.
    assert split.pool.layout == one.pool.layout
    if one.pool.layout.stored is None:
        torch.testing.assert_close(split.pool.tensor, one.pool.tensor, rtol=0, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", model_zoo.CASES)
def test_two_processes_compute_what_one_does(name: str, zoo: Callable[[str], Path]) -> None:
    # The norm over OLMo 2's heads is in float32, and two parts of it are added in another order than all.
    tolerance = 1e-4 if name == "olmo2" else 1e-9
    with grouped(zoo(name), torch.float64, 2) as split:
        assert_equal(split, whole(zoo(name), torch.float64), tolerance)


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_four_processes_compute_what_one_does(name: str, zoo: Callable[[str], Path]) -> None:
    with grouped(zoo(name), torch.float64, 4) as split:
        assert_equal(split, whole(zoo(name), torch.float64), 1e-9)


@pytest.mark.parametrize("name", ["llama", "llama_tied", "phi3", "gemma2", "granite", "mixtral", "gpt_oss"])
def test_fused_layers_of_two_processes_compute_what_those_of_one_do(
    name: str, zoo: Callable[[str], Path]
) -> None:
    # Logits are about 10 here, so this is some 100 times float32's rounding.
    with grouped(zoo(name), torch.float32, 2, fused=True) as split:
        one = whole(zoo(name), torch.float32, fused=True)
        assert split.model.fusion.is_native == one.model.fusion.is_native
        assert_equal(split, one, 1e-4)


@pytest.mark.parametrize(
    ("quantisation", "tolerance"),
    # A key or value near the middle between two steps of 8 bits may be rounded to either.
    [
        (Quantisation.INT8, 1e-4),
        (Quantisation.INT8_LOGITS8, 1e-4),
        (Quantisation.INT8_KV8, 0.1),
        (Quantisation.KVFP8, 0.1),
    ],
)
@pytest.mark.parametrize("name", ["llama", "llama_tied", "phi3", "gpt_oss", "gpt2"])
def test_weights_and_kv_in_8_bits_are_cut_like_others(
    name: str, quantisation: Quantisation, tolerance: float, zoo: Callable[[str], Path]
) -> None:
    options: dict[str, Any] = {"fused": True, "quantisation": quantisation}
    with grouped(zoo(name), torch.float32, 2, **options) as split:
        assert_equal(split, whole(zoo(name), torch.float32, **options), tolerance)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_processes_meet_without_native_ops(
    name: str, zoo: Callable[[str], Path], without_native: None
) -> None:
    assert loader.library() is None
    with grouped(zoo(name), torch.float64, 2) as split:
        assert_equal(split, whole(zoo(name), torch.float64), 1e-9)


def test_each_process_may_have_several_threads(zoo: Callable[[str], Path]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with grouped(zoo("llama"), torch.float32, 2, fused=True) as split:
            assert_equal(split, whole(zoo("llama"), torch.float32, fused=True), 1e-4)
    finally:
        torch.set_num_threads(before)


def test_many_steps_use_the_same_memory_in_turns(zoo: Callable[[str], Path]) -> None:
    with grouped(zoo("llama"), torch.float64, 2) as split:
        one = whole(zoo("llama"), torch.float64)
        [(tokens, _)] = generate_greedily(split, [PROMPTS[1] * 4], 40, chunk=3)
        assert tokens == generate_greedily(one, [PROMPTS[1] * 4], 40, chunk=3)[0][0]
