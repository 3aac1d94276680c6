"""The type of weights and KV that a device and a checkpoint get, and how exact bfloat16 is on a CPU."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.calibration import dtype as dtypes
from engine.calibration.dtype import choose_for_cpu, resolve_dtype
from engine.execution.model_runner import ModelRunner
from engine.model.model import load_model
from kernels.native.loader import processor_features
from tests import model_zoo
from tests.engine.ragged import Piece, make_batch, poisoned_pool, shuffled_tables

CPU, GPU = torch.device("cpu"), torch.device("cuda")
NATIVE, PLAIN = ("avx2", "avx512_bf16"), ("avx2", "avx512_f")
ARM_NATIVE, ARM_PLAIN = ("neon", "dot", "bf16"), ("neon", "dot")
PROMPTS = 12


@pytest.fixture
def features(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take another processor's features, and no limits from the environment."""
    monkeypatch.setattr(dtypes, "processor_features", lambda: request.param)
    for name in dtypes.LIMITS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("features", "config", "chosen"),
    [
        (NATIVE, {"dtype": "bfloat16"}, torch.bfloat16),
        (NATIVE, {"torch_dtype": "bfloat16"}, torch.bfloat16),
        (NATIVE, {"dtype": "float16"}, torch.float32),
        (NATIVE, {}, torch.float32),
        (PLAIN, {"dtype": "bfloat16"}, torch.float32),
        (ARM_NATIVE, {"dtype": "bfloat16"}, torch.bfloat16),
        (ARM_PLAIN, {"dtype": "bfloat16"}, torch.float32),
        ((), {"dtype": "bfloat16"}, torch.float32),
    ],
    indirect=["features"],
    ids=str,
)
@pytest.mark.usefixtures("features")
def test_a_cpu_takes_bfloat16_only_where_it_is_fast_and_exact(
    config: dict[str, str], chosen: torch.dtype
) -> None:
    assert resolve_dtype(None, CPU, config).dtype == chosen


def test_a_gpu_takes_bfloat16_and_a_flag_decides_first() -> None:
    assert resolve_dtype(None, GPU, {"dtype": "float16"}).dtype == torch.bfloat16
    assert resolve_dtype(torch.float32, GPU, {}).dtype == torch.float32
    assert resolve_dtype(torch.bfloat16, CPU, {"dtype": "float32"}).dtype == torch.bfloat16
    assert resolve_dtype(torch.bfloat16, CPU, {}).reason == "--dtype asks for it"


@pytest.mark.parametrize(
    ("environment", "uses"),
    [
        ({}, True),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, True),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, False),
        ({"ONEDNN_MAX_CPU_ISA": "avx512_core"}, False),
        ({"ATEN_CPU_CAPABILITY": "avx2"}, False),
    ],
    ids=str,
)
def test_an_environment_can_keep_products_from_the_processor(environment: dict[str, str], uses: bool) -> None:
    chosen = choose_for_cpu("bfloat16", NATIVE, environment).dtype
    assert chosen == (torch.bfloat16 if uses else torch.float32)


@pytest.mark.parametrize(
    ("checkpoint", "features", "environment", "sentence"),
    [
        ("bfloat16", NATIVE, {}, "bfloat16: the checkpoint's, and this processor multiplies it"),
        ("bfloat16", PLAIN, {}, "float32: this processor has no bfloat16 products"),
        (
            "bfloat16",
            NATIVE,
            {"ATEN_CPU_CAPABILITY": "avx2"},
            "float32: ATEN_CPU_CAPABILITY=avx2 keeps torch from bfloat16 products",
        ),
        ("float16", NATIVE, {}, "float32: bfloat16 would round the checkpoint, which is in float16"),
        ("float32", PLAIN, {}, "float32: the checkpoint's"),
    ],
    ids=str,
)
def test_a_choice_says_its_reason(
    checkpoint: str, features: tuple[str, ...], environment: dict[str, str], sentence: str
) -> None:
    choice = choose_for_cpu(checkpoint, features, environment)
    assert f"{choice.name}: {choice.reason}" == sentence


@pytest.mark.skipif(not hasattr(torch.cpu, "get_capabilities"), reason="this torch cannot tell")
def test_this_processor_s_features_are_known() -> None:
    """Both kinds of processor name theirs, so an empty set would hide what this one can do."""
    assert processor_features()


def rms(error: Tensor) -> float:
    return float(error.double().square().mean().sqrt())


@torch.inference_mode()
@pytest.mark.parametrize("name", model_zoo.CASES)
def test_bfloat16_is_as_exact_as_stock_bfloat16(name: str, tmp_path: Path) -> None:
    """Compare both with float64 on the same rounded weights.

    By medians: where a router of experts chooses others, all logits of that prompt move.
    """
    directory = model_zoo.build(name, tmp_path)
    stock = copy.deepcopy(model_zoo.load_stock(directory)).to(torch.bfloat16)
    exact = copy.deepcopy(stock).to(torch.float64)
    model = load_model(directory, torch.bfloat16, CPU)
    rng = random.Random(3)
    prompts = [[rng.randrange(3, model_zoo.VOCAB_SIZE) for _ in range(9 + 3 * n)] for n in range(PROMPTS)]
    tables, num_blocks = shuffled_tables([len(prompt) for prompt in prompts], 16, seed=3)
    runner = ModelRunner(model, poisoned_pool(model, 16, num_blocks))
    pieces = [Piece(0, prompt, table) for prompt, table in zip(prompts, tables, strict=True)]
    ours, theirs = [], []
    for prompt, logits in zip(prompts, runner.forward(make_batch(pieces, 16)), strict=True):
        ids = torch.tensor([prompt])
        truth = exact(ids, use_cache=False).logits[0, -1]
        ours.append(rms(logits - truth))
        theirs.append(rms(stock(ids, use_cache=False).logits[0, -1] - truth))
    # Both round at each operation, in another order: the same errors, up to chance.
    assert sorted(ours)[PROMPTS // 2] <= 1.5 * sorted(theirs)[PROMPTS // 2]
