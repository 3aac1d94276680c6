"""Models of GGUF files are those that transformers computes with the numbers which the files stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.model import load_model
from engine.model.quantised.gguf_blocks import groups_of
from engine.model.quantised.whole_linears import GroupedEmbedding, GroupedLinear
from gguf_model.folder import folder_of
from gguf_model.tensor_types import TYPES
from kernels.native import ops
from kernels.native.panels import fits
from tests import model_zoo
from tests.engine.model.quantised.int8_models import CPU, logits_of, stock_logits
from tests.gguf_files import DEQUANTISED, Kind, random_blocks, write

GROUPED = [Kind(number) for number, each in TYPES.items() if not each.is_float]
FLOATS = [Kind.F32, Kind.F16, Kind.BF16]


def linear_of(rows: np.ndarray[Any, Any], kind: Kind, dtype: torch.dtype = torch.float32) -> GroupedLinear:
    groups = groups_of(torch.from_numpy(rows), TYPES[kind])
    shared = groups.numbers, groups.scale, None, None
    return GroupedLinear(*shared, offset=groups.offset, bits=groups.bits, dtype=dtype)


@settings(deadline=None)
@given(
    kind=st.sampled_from(GROUPED), rows=st.integers(1, 40), blocks=st.integers(1, 3), seed=st.integers(0, 999)
)
def test_blocks_stand_for_the_numbers_of_the_reference(kind: Kind, rows: int, blocks: int, seed: int) -> None:
    stored = random_blocks(kind, rows, blocks * TYPES[kind].block, seed)
    expected = torch.from_numpy(gguf.dequantize(stored, kind))
    linear = linear_of(stored, kind)
    assert torch.equal(linear.expanded(slice(None)), expected)
    token_ids = torch.tensor([rows - 1, 0])
    assert torch.equal(GroupedEmbedding(linear)(token_ids), expected[token_ids])


@settings(deadline=None)
@given(
    kind=st.sampled_from(GROUPED), rows=st.integers(1, 40), count=st.integers(1, 20), seed=st.integers(0, 99)
)
def test_native_products_are_those_of_the_numbers_of_the_reference(
    kind: Kind, rows: int, count: int, seed: int
) -> None:
    if not fits(256, torch.float32):
        pytest.skip("no library was built")
    stored = random_blocks(kind, rows, 256, seed)
    expected = torch.from_numpy(gguf.dequantize(stored, kind)).double()
    # Products with unit vectors are the weights themselves.
    units = torch.eye(256)
    assert torch.equal(ops.linear(units, linear_of(stored, kind).panels(), None).t().double(), expected)
    x = torch.randn((count, 256), generator=torch.Generator().manual_seed(seed))
    product = ops.linear(x, linear_of(stored, kind).panels(), None).double()
    torch.testing.assert_close(product, x.double() @ expected.t(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("fused", [False, True], ids=["stock", "fused"])
@pytest.mark.parametrize("kind", [*FLOATS, *GROUPED], ids=lambda kind: kind.name)
def test_logits_are_those_of_the_numbers_in_every_format(tmp_path: Path, kind: Kind, fused: bool) -> None:
    source = model_zoo.build(
        "llama", tmp_path / "source", hidden_size=256, intermediate_size=512, head_dim=64
    )
    file = write(source, tmp_path, kind)
    model = load_model(folder_of(file, tmp_path / "cache"), torch.float32, CPU, fused=fused)
    if kind in FLOATS:
        assert model.quantised is None
    else:
        assert model.quantised is not None
        assert model.quantised.num_layers == 4 * 7 + 1
    torch.testing.assert_close(logits_of(model), stock_logits(tmp_path / DEQUANTISED), rtol=1e-4, atol=1e-4)


def test_formats_that_differ_are_computed_in_one_call(tmp_path: Path) -> None:
    # As in files of Q4_K_M.
    larger = ("attn_v", "ffn_down", "token_embd")

    def kind_of(name: str) -> Kind:
        return Kind.Q6_K if any(part in name for part in larger) else Kind.Q4_K

    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    source = model_zoo.build("llama", tmp_path / "source", **sizes)
    file = write(source, tmp_path, kind_of)
    model = load_model(folder_of(file, tmp_path / "cache"), torch.float32, CPU, fused=True)
    assert model.fusion.is_native == fits(256, torch.float32)
    torch.testing.assert_close(logits_of(model), stock_logits(tmp_path / DEQUANTISED), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first", GROUPED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("second", GROUPED, ids=lambda kind: kind.name)
def test_outputs_side_by_side_keep_their_weights(first: Kind, second: Kind) -> None:
    above, below = random_blocks(first, 5, 512), random_blocks(second, 3, 512, seed=1)
    one, other = linear_of(above, first), linear_of(below, second)
    assert one.is_like(other)
    both = one.with_outputs_of([other], None).expanded(slice(None))
    expected = [gguf.dequantize(above, first), gguf.dequantize(below, second)]
    assert torch.equal(both, torch.from_numpy(np.concatenate(expected)))


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# Files have no kinds of layers: these are those of every Gemma.
GEMMA: dict[str, Any] = {"tie_word_embeddings": True, "layer_types": None, "num_hidden_layers": 7}
OF_ARCHITECTURE: dict[str, dict[str, Any]] = {
    "llama_tied": {},
    "llama_rope": {"rope_scaling": LLAMA3},
    "granite": {},
    "qwen2": {},
    "qwen3": {},
    "phi3": {},
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "olmo2": {},
}


@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q8_0, Kind.Q4_1], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", OF_ARCHITECTURE)
def test_logits_are_those_of_the_numbers_in_every_architecture(tmp_path: Path, name: str, kind: Kind) -> None:
    source = model_zoo.build(name, tmp_path / "source", **OF_ARCHITECTURE[name])
    file = write(source, tmp_path, kind)
    model = load_model(folder_of(file, tmp_path / "cache"), torch.float32, CPU, fused=True)
    torch.testing.assert_close(logits_of(model), stock_logits(tmp_path / DEQUANTISED), rtol=1e-4, atol=1e-4)
