"""int8 weights mean what the weights they stand for mean, in every family and any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.calibration.determinism_check import check_determinism
from engine.execution.model_runner import ModelRunner
from engine.model.model import load_model
from engine.model.quantised.quantisation import Quantisation
from engine.model.quantised.rounding import quantise
from engine.model.quantised.whole_linears import PACKED_MAX_ROWS, Int8Linear
from kernels.native.loader import library
from tests.engine.model.quantised.int8_models import BLOCK_SIZE, expected_logits, load_int8, logits_of
from tests.engine.ragged import poisoned_pool


def test_a_weight_is_off_by_half_a_step_at_most() -> None:
    weight = torch.randn(50, 33, generator=torch.Generator().manual_seed(1))
    weight[7] = 0
    quantised, scale = quantise(weight)
    assert quantised.dtype == torch.int8
    assert quantised.abs().amax(1)[[0, 49]].tolist() == [127, 127]
    assert not quantised[7].any()
    assert ((quantised * scale[:, None] - weight).abs() <= scale[:, None] * 0.5001).all()
    opposite, same_scale = quantise(-weight)
    assert torch.equal(opposite, -quantised)
    assert torch.equal(same_scale, scale)


@pytest.mark.parametrize("num_inputs", [33, 64])
@pytest.mark.parametrize("num_rows", [1, PACKED_MAX_ROWS, PACKED_MAX_ROWS + 1, 40])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=str)
def test_a_product_is_that_of_the_weights_it_stands_for(
    monkeypatch: pytest.MonkeyPatch, num_inputs: int, num_rows: int, dtype: torch.dtype, tolerance: float
) -> None:
    """bfloat16 keeps 8 bits of what comes out, and of what is scaled."""
    monkeypatch.setattr(
        "engine.model.quantised.whole_linears.CHUNK_ELEMENTS", 200
    )  # of 21 outputs, the last chunk has fewer
    generator = torch.Generator().manual_seed(num_rows)
    weight, bias = torch.randn(21, num_inputs, generator=generator), torch.randn(21, generator=generator)
    quantised, scale = quantise(weight.to(dtype))
    rows = torch.randn(num_rows, num_inputs, generator=generator).to(dtype)
    bias = bias.to(dtype)
    layer = Int8Linear(quantised, scale, bias)
    expected = rows.double() @ (quantised.double() * scale.double()[:, None]).t() + bias.double()
    error = (layer(rows[None])[0].double() - expected).abs().max() / expected.abs().max()
    assert error < tolerance


@pytest.mark.parametrize("name", ["llama", "llama_tied", "gpt2", "opt", "phi3", "gemma2", "mixtral"])
def test_logits_are_those_of_the_weights_it_stands_for(zoo: Callable[[str], Path], name: str) -> None:
    torch.testing.assert_close(
        logits_of(load_int8(zoo(name))), expected_logits(zoo(name)), rtol=1e-4, atol=1e-4
    )


def test_all_linear_layers_hold_a_byte_a_weight_and_nothing_else_does(
    zoo: Callable[[str], Path], without_native: None
) -> None:
    model = load_int8(zoo("llama"))
    held = {name: tensor.dtype for name, tensor in model.module.state_dict().items() if tensor.ndim == 2}
    assert {name for name, dtype in held.items() if dtype == torch.float32} == {
        "model.embed_tokens.weight",
        "lm_head.weight",
    }
    tensors = model.module.state_dict()
    linears = sum(tensor.numel() for tensor in tensors.values() if tensor.dtype == torch.int8)
    scales = sum(tensor.numel() for name, tensor in tensors.items() if name.endswith("scale"))
    assert model.quantised is not None
    assert model.quantised.num_layers == len(held) - 2 == 4 * 7
    assert model.quantised.float_bytes - model.quantised.num_bytes == 3 * linears - 4 * scales
    assert model.quantised.num_float_experts == 0


def test_experts_stay_and_are_counted(zoo: Callable[[str], Path]) -> None:
    quantised = load_int8(zoo("mixtral")).quantised
    assert quantised is not None
    assert (quantised.num_layers, quantised.num_float_experts) == (4 * 4, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_a_deterministic_model_may_be_quantised(
    zoo: Callable[[str], Path], name: str, dtype: torch.dtype
) -> None:
    same = load_int8(zoo(name), dtype, deterministic=True)
    check_determinism(ModelRunner(same, poisoned_pool(same, BLOCK_SIZE, 160)))
    # The highest tolerance is bfloat16's, where products of other heights are rounded otherwise.
    torch.testing.assert_close(logits_of(same), logits_of(load_int8(zoo(name), dtype)), rtol=0.1, atol=0.3)


def test_a_deterministic_int8_model_is_fused(
    zoo: Callable[[str], Path],
) -> None:
    cpu, int8 = torch.device("cpu"), Quantisation.INT8
    model = load_model(zoo("llama"), torch.float32, cpu, deterministic=True, fused=True, quantisation=int8)
    assert model.is_fused == (library() is not None)
    check_determinism(ModelRunner(model, poisoned_pool(model, BLOCK_SIZE, 160)))


def test_what_int8_products_do_not_take_is_refused(zoo: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match=r"dtype is torch.float64 with int8 weights; accepted: float32"):
        load_int8(zoo("llama"), torch.float64)


def test_sameness_on_a_gpu_is_refused(zoo: Callable[[str], Path]) -> None:
    device, int8 = torch.device("cuda"), Quantisation.INT8
    with pytest.raises(ValueError, match="deterministic with int8 weights on cuda; accepted: on a CPU"):
        load_model(zoo("llama"), torch.bfloat16, device, deterministic=True, quantisation=int8)
