"""Adapters beside fused, packed and 8-bit layers compute what they do beside the model's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.adapters.checkpoint import read_adapter
from engine.model.attention.step_batch import NO_ADAPTER, StepBatch, adapter_rows
from engine.model.model import Model, load_model
from engine.model.quantised.quantisation import Quantisation
from kernels.native.ops import computes
from tests.adapters import write_adapter
from tests.model_zoo import build

CPU = torch.device("cpu")
SIZE, LENGTH = 16, 12
NATIVE_FAMILIES = ["llama", "qwen2", "qwen3", "gemma2", "phi3", "granite", "mixtral"]
SLOTS = [0, NO_ADAPTER, 1, 1, 0]
"""The adapters of five sequences."""


def logits(model: Model, slots: Sequence[int] = SLOTS) -> Tensor:
    """Compute prompts of known tokens, one for each slot; return the logits of their last tokens."""
    num_seqs = len(slots)
    pool = KVPool(model.block_layout(SIZE), num_seqs)
    tables = torch.arange(num_seqs)[:, None]
    batch = StepBatch.of_chunks([(0, LENGTH)] * num_seqs, tables, SIZE, lambda at: at * 7 % 90 + 3, CPU)
    rows = adapter_rows(np.repeat(np.array(slots, dtype=np.int64), LENGTH), CPU)
    return ModelRunner(model, pool).forward(replace(batch, adapters=rows)).clone()


def adapters_of(base: Path) -> list[Path]:
    return [write_adapter(base, base / f"adapter-{seed}", seed=seed, rank=2 + 2 * seed) for seed in (0, 1)]


def apart(got: Tensor, want: Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("name", NATIVE_FAMILIES)
def test_fused_layers_compute_the_same_with_adapters(name: str, tmp_path: Path) -> None:
    assert computes(CPU, torch.float32), "native ops are built"
    base = build(name, tmp_path / name)
    files = [read_adapter(path.name, path) for path in adapters_of(base)]
    want = logits(load_model(base, torch.float64, CPU, adapters=files))
    fused = load_model(base, torch.float32, CPU, fused=True, adapters=files)
    plain = load_model(base, torch.float32, CPU, adapters=files)
    assert fused.fusion.replaced
    assert fused.fusion.is_native is (name != "mixtral")
    assert apart(logits(fused), want) < 1e-3
    assert apart(logits(plain), want) < 1e-3


def test_steps_without_adapters_have_the_bits_of_the_base(tmp_path: Path) -> None:
    base = build("llama", tmp_path / "llama")
    files = [read_adapter(path.name, path) for path in adapters_of(base)]
    without = [NO_ADAPTER] * 5
    for fused in (False, True):
        adapted = load_model(base, torch.float32, CPU, fused=fused, adapters=files)
        plain = load_model(base, torch.float32, CPU, fused=fused)
        assert torch.equal(logits(adapted, without), logits(plain, without))


def test_int8_weights_stand_beside_adapters(tmp_path: Path) -> None:
    base = build("llama", tmp_path / "llama")
    files = [read_adapter(path.name, path) for path in adapters_of(base)]
    model = load_model(base, torch.float32, CPU, quantisation=Quantisation.INT8, adapters=files)
    want = load_model(base, torch.float64, CPU, adapters=files)
    assert apart(logits(model), logits(want)) < 0.1
    assert apart(logits(model, [NO_ADAPTER] * 5), logits(want)) > 0.5
