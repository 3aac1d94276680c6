"""int8 weights mean what the weights they stand for mean, in every family and any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine import int8_weights
from engine.int8_weights import Int8Linear, quantise
from engine.model import Model, load_model
from engine.model_runner import ModelRunner
from engine.quantisation import Quantisation
from engine.sameness import prove_sameness
from tests import model_zoo
from tests.engine.ragged import Piece, make_batch, poisoned_pool, shuffled_tables

CPU = torch.device("cpu")
PROMPT = list(range(3, 40))
BLOCK_SIZE = 4


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @lru_cache
    def directory(name: str) -> Path:
        return model_zoo.build(name, tmp_path_factory.mktemp(name))

    return directory


def load_int8(directory: Path, dtype: torch.dtype = torch.float32, *, deterministic: bool = False) -> Model:
    return load_model(directory, dtype, CPU, deterministic=deterministic, quantisation=Quantisation.INT8)


def logits_of(model: Model) -> Tensor:
    (table,), _ = shuffled_tables([len(PROMPT)], BLOCK_SIZE, 0)
    runner = ModelRunner(model, poisoned_pool(model, BLOCK_SIZE, 160))
    return runner.forward(make_batch([Piece(0, PROMPT, table)], BLOCK_SIZE))[0]


def expected_logits(directory: Path) -> Tensor:
    """Of transformers' own model, each of whose linear layers but the last holds what int8 makes of it."""
    library: Any = transformers
    model = library.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    for module in model.modules():
        if isinstance(module, (nn.Linear, Conv1D)) and module is not model.get_output_embeddings():
            weight = module.weight.data.t() if isinstance(module, Conv1D) else module.weight.data
            quantised, scale = quantise(weight)
            weight.copy_(quantised * scale[:, None])
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([PROMPT])).logits[0, -1]
    return logits


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
@pytest.mark.parametrize("num_rows", [1, int8_weights.PACKED_MAX_ROWS, int8_weights.PACKED_MAX_ROWS + 1, 40])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=str)
def test_a_product_is_that_of_the_weights_it_stands_for(
    monkeypatch: pytest.MonkeyPatch, num_inputs: int, num_rows: int, dtype: torch.dtype, tolerance: float
) -> None:
    """bfloat16 keeps 8 bits of what comes out, and of what is scaled."""
    monkeypatch.setattr(int8_weights, "CHUNK_ELEMENTS", 200)  # of 21 outputs, the last chunk has fewer
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


def test_all_linear_layers_hold_a_byte_a_weight_and_nothing_else_does(zoo: Callable[[str], Path]) -> None:
    model = load_int8(zoo("llama"))
    held = {name: tensor.dtype for name, tensor in model.module.state_dict().items() if tensor.ndim == 2}
    assert {name for name, dtype in held.items() if dtype == torch.float32} == {
        "model.embed_tokens.weight",
        "lm_head.weight",
    }
    assert model.quantised is not None
    assert model.quantised.num_layers == len(held) - 2 == 4 * 7
    linears = sum(t.numel() for t in model.module.state_dict().values() if t.dtype == torch.int8)
    scales = sum(t.numel() for name, t in model.module.state_dict().items() if name.endswith("scale"))
    assert model.quantised.bytes_before - model.quantised.bytes_after == 3 * linears - 4 * scales


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_a_deterministic_model_may_be_quantised(
    zoo: Callable[[str], Path], name: str, dtype: torch.dtype
) -> None:
    same = load_int8(zoo(name), dtype, deterministic=True)
    prove_sameness(ModelRunner(same, poisoned_pool(same, BLOCK_SIZE, 160)))
    # The highest tolerance is bfloat16's, where products of other heights are rounded otherwise.
    torch.testing.assert_close(logits_of(same), logits_of(load_int8(zoo(name), dtype)), rtol=0.1, atol=0.3)


def test_what_int8_products_do_not_take_is_refused(zoo: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match=r"int8 in torch.float64 on cpu; accepted: float32 or bfloat16"):
        load_int8(zoo("llama"), torch.float64)
