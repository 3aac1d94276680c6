"""4-bit weights mean what the weights they stand for mean, with native ops and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from engine.calibration.determinism_check import check_determinism
from engine.execution.model_runner import ModelRunner
from engine.model.model import load_model
from engine.model.quantised.quantisation import Quantisation
from engine.model.quantised.rounding import GROUP, quantise, quantise_groups
from engine.model.quantised.whole_linears import GroupedLinear
from kernels.native.panels import packed, unpacked
from tests.engine.model.quantised.int8_models import BLOCK_SIZE, CPU, logits_of, stock_logits
from tests.engine.ragged import poisoned_pool
from tests.model_zoo import build

INT4 = Quantisation.INT4


def stood_for(weight: Tensor) -> Tensor:
    """Return what 4 bits of a weight stand for, or 8 bits where its inputs are no multiple of GROUP."""
    if weight.shape[1] % GROUP:
        numbers, scale = quantise(weight)
        return numbers * scale[:, None]
    return GroupedLinear(*quantise_groups(weight), None, bits=4, dtype=weight.dtype).expanded(slice(None))


@given(st.integers(0, 99), st.sampled_from([-1.0, 0.0, 1.0]))
def test_a_weight_is_off_by_half_a_step_at_most(seed: int, middle: float) -> None:
    weight = torch.randn(9, 3 * GROUP, generator=torch.Generator().manual_seed(seed)) + middle
    weight[7, :GROUP] = 0
    numbers, scale, zero = quantise_groups(weight)
    assert (numbers.dtype, zero.dtype, scale.shape) == (torch.uint8, torch.int8, (9, 3))
    steps = scale.repeat_interleave(GROUP, 1)
    # A whole step where the range does not begin at a step, as zero is one.
    assert ((stood_for(weight) - weight).abs() <= steps * 1.0001).all()
    assert ((stood_for(weight) - weight).abs() <= steps * 0.5001).float().mean() > 0.95
    assert not stood_for(weight)[7, :GROUP].any()


def test_what_is_packed_is_unpacked() -> None:
    numbers = torch.arange(64, dtype=torch.uint8).remainder(16).view(2, 32)
    assert torch.equal(unpacked(packed(numbers)), numbers)
    assert packed(numbers)[0, 0] == 0x10


def expected_logits(directory: Path) -> Tensor:
    """Return the logits of transformers' own model with the weights that 4 bits stand for."""

    def change(model: Any) -> None:
        for module in model.modules():
            if isinstance(module, nn.Linear) and module is not model.get_output_embeddings():
                module.weight.data.copy_(stood_for(module.weight.data))

    return stock_logits(directory, change)


@pytest.mark.parametrize("fused", [False, True], ids=["stock", "fused"])
@pytest.mark.parametrize("name", ["llama", "llama_tied", "qwen3", "phi3", "gemma2", "mixtral"])
def test_logits_are_those_of_the_weights(zoo: Callable[[str], Path], name: str, fused: bool) -> None:
    model = load_model(zoo(name), torch.float32, CPU, quantisation=INT4, fused=fused)
    torch.testing.assert_close(logits_of(model), expected_logits(zoo(name)), rtol=1e-4, atol=1e-4)


def test_without_native_ops_the_logits_are_the_same(zoo: Callable[[str], Path], without_native: None) -> None:
    model = load_model(zoo("llama"), torch.float32, CPU, quantisation=INT4)
    assert any(isinstance(module, GroupedLinear) for module in model.module.modules())
    want = expected_logits(zoo("llama"))
    torch.testing.assert_close(logits_of(model), want, rtol=1e-4, atol=1e-4)


def test_half_a_byte_is_kept_of_a_weight(zoo: Callable[[str], Path]) -> None:
    quantised = load_model(zoo("llama"), torch.float32, CPU, quantisation=INT4).quantised
    assert quantised is not None
    assert quantised.num_layers == 4 * 7
    assert quantised.float_bytes - quantised.num_bytes > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fused", [False, True], ids=["stock", "fused"])
def test_a_deterministic_model_may_have_4_bits(
    zoo: Callable[[str], Path], dtype: torch.dtype, fused: bool
) -> None:
    model = load_model(zoo("llama"), dtype, CPU, deterministic=True, fused=fused, quantisation=INT4)
    check_determinism(ModelRunner(model, poisoned_pool(model, BLOCK_SIZE, 160)))


def test_parts_of_a_group_of_processes_are_whole_groups(tmp_path: Path) -> None:
    """64 inputs are one group, which cannot be divided."""
    from engine.model.parallel.part import Part

    with pytest.raises(ValueError, match="--tensor-parallel is 2; accepted: 1, by 1 groups of inputs"):
        load_model(build("llama", tmp_path / "llama"), torch.float32, CPU, quantisation=INT4, part=Part(0, 2))


def test_a_gpu_is_refused(zoo: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="int4 weights on cuda; accepted: on a CPU, or int8"):
        load_model(zoo("llama"), torch.bfloat16, torch.device("cuda"), quantisation=INT4)


def with_logits(directory: Path) -> Tensor:
    """Return the logits of transformers' own model with 8-bit weights at both of its ends as well."""

    def change(model: Any) -> None:
        layers = [each for each in model.modules() if type(each) in (nn.Linear, nn.Embedding)]
        for weight in {id(each.weight): each.weight for each in layers}.values():
            numbers, scale = quantise(weight.data)
            weight.data.copy_(numbers * scale[:, None])

    return stock_logits(directory, change)


@pytest.mark.parametrize("fused", [False, True], ids=["stock", "fused"])
@pytest.mark.parametrize("name", ["llama", "llama_tied", "qwen3"])
def test_both_ends_may_have_8_bits(zoo: Callable[[str], Path], name: str, fused: bool) -> None:
    model = load_model(zoo(name), torch.float32, CPU, quantisation=Quantisation.INT8_LOGITS8, fused=fused)
    torch.testing.assert_close(logits_of(model), with_logits(zoo(name)), rtol=1e-4, atol=1e-4)
    held = {
        tensor.dtype for tensor in model.module.state_dict().values() if tensor.ndim >= 2 and len(tensor) > 90
    }
    assert torch.float32 not in held
