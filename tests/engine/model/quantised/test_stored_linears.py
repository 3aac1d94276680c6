"""Checkpoints that others quantised mean what the weights mean that theirs stand for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.errors import ModelRefused
from engine.model.model import load_model
from engine.model.quantised.rounding import quantise
from engine.model.quantised.stored_linears import ONES, numbers_of
from tests import model_zoo
from tests.engine.model.quantised.int8_models import CPU, expected_logits, load_int8, logits_of, stock_logits
from tests.engine.model.quantised.test_checkpoint import config

GROUP = 32
Tensors = dict[str, Tensor]
Numbers = tuple[Tensor, Tensor, Tensor]
"""Numbers [N, K] without a sign, scales and zeros [N, K / GROUP]."""


def words_of(numbers: Tensor, bits: int) -> Tensor:
    """[R, C] without a sign -> int32 [R, ceil(C * bits / 32)], as the formats' descriptions have it."""
    per_word, rows = 32 // bits, []
    for row in numbers.tolist():
        padded = row + [0] * (-len(row) % per_word)
        words = [
            sum(value << bits * place for place, value in enumerate(padded[begin : begin + per_word]))
            for begin in range(0, len(padded), per_word)
        ]
        rows.append([word - (1 << 32) if word >= 1 << 31 else word for word in words])
    return torch.tensor(rows, dtype=torch.int32)


def rounded(weight: Tensor, bits: int, *, is_symmetric: bool) -> Numbers:
    """Round a weight [N, K] in groups."""
    groups, most = weight.view(len(weight), -1, GROUP), 2**bits - 1
    if is_symmetric:
        scale = groups.abs().amax(2) / (2 ** (bits - 1) - 1)
        zero = torch.full_like(scale, 2 ** (bits - 1))
    else:
        low, high = groups.amin(2).clamp_max(0), groups.amax(2).clamp_min(0)
        scale = (high - low) / most
        zero = (-low / scale).round()
    scale = scale.half().float()
    numbers = ((groups / scale[..., None]).round() + zero[..., None]).clamp(0, most)
    return numbers.flatten(1).int(), scale, zero.int()


def stood_for(numbers: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    groups = numbers.view(len(numbers), -1, GROUP) - zero[..., None]
    return (groups * scale[..., None]).flatten(1)


def w8a16(form: str) -> Callable[[str, Tensor], tuple[Tensors, Tensor]]:
    def stored(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        numbers, scale = quantise(weight)
        tensors = {f"{name}.weight_scale": scale[:, None].contiguous()}
        if form == "pack-quantized":
            tensors[f"{name}.weight_packed"] = words_of(numbers.int() + 128, 8)
            tensors[f"{name}.weight_shape"] = torch.tensor(numbers.shape)
        else:
            tensors[f"{name}.weight"] = numbers
        return tensors, numbers * scale[:, None]

    return stored


def grouped(bits: int, *, is_symmetric: bool) -> Callable[[str, Tensor], tuple[Tensors, Tensor]]:
    def stored(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        numbers, scale, zero = rounded(weight, bits, is_symmetric=is_symmetric)
        tensors = {
            f"{name}.weight_packed": words_of(numbers, bits),
            f"{name}.weight_shape": torch.tensor(numbers.shape),
            f"{name}.weight_scale": scale.half(),
        }
        if not is_symmetric:
            tensors[f"{name}.weight_zero_point"] = words_of(zero.t(), bits).t().contiguous()
        return tensors, stood_for(numbers, scale, zero)

    return stored


def float8(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    scale = (weight.abs().amax(1, keepdim=True) / 448).float()
    numbers = (weight / scale).to(torch.float8_e4m3fn)
    return {f"{name}.weight": numbers, f"{name}.weight_scale": scale}, numbers.float() * scale


def awq(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    numbers, scale, zero = rounded(weight, 4, is_symmetric=False)

    def interleaved(columns: Tensor) -> Tensor:
        """The nibbles of a word, from the lowest, are the outputs 0, 2, 4, 6, 1, 3, 5 and 7."""
        return words_of(columns.view(len(columns), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1), 4)

    tensors = {
        f"{name}.qweight": interleaved(numbers.t()),
        f"{name}.qzeros": interleaved(zero.t()),
        f"{name}.scales": scale.t().contiguous().half(),
    }
    return tensors, stood_for(numbers, scale, zero)


def gptq(
    bits: int, *, is_ordered: bool = True, is_new: bool = False
) -> Callable[[str, Tensor], tuple[Tensors, Tensor]]:
    def stored(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        inputs = weight.shape[1]
        order = (
            torch.arange(inputs)
            if is_ordered
            else torch.randperm(inputs, generator=torch.Generator().manual_seed(1))
        )
        numbers, scale, zero = rounded(weight[:, order], bits, is_symmetric=False)
        own = order.argsort()
        tensors = {
            f"{name}.qweight": words_of(numbers[:, own], bits).t().contiguous(),
            f"{name}.qzeros": words_of(zero.t(), bits) - (0 if is_new else ONES[bits]),
            f"{name}.scales": scale.t().contiguous().half(),
            f"{name}.g_idx": (own // GROUP).int(),
        }
        return tensors, stood_for(numbers, scale, zero)[:, own]

    return stored


def group_config(bits: int, *, symmetric: bool) -> dict[str, Any]:
    return config(num_bits=bits, symmetric=symmetric, strategy="group", group_size=GROUP)


W8A8 = config(
    format="int-quantized",
    input_activations={"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
)
GPTQ = {"quant_method": "gptq", "group_size": GROUP, "checkpoint_format": "gptq"}
FORMS: dict[str, tuple[dict[str, Any], Callable[[str, Tensor], tuple[Tensors, Tensor]]]] = {
    "w8a16": (config(), w8a16("pack-quantized")),
    "w8a8": (W8A8, w8a16("int-quantized")),
    "w4a16": (group_config(4, symmetric=True), grouped(4, is_symmetric=True)),
    "w4a16_asymmetric": (group_config(4, symmetric=False), grouped(4, is_symmetric=False)),
    "w8_groups": (group_config(8, symmetric=False), grouped(8, is_symmetric=False)),
    "fp8": (config(format="float-quantized", type="float"), float8),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, awq),
    "gptq": (GPTQ | {"bits": 4}, gptq(4)),
    "gptq_v2": (GPTQ | {"bits": 4, "checkpoint_format": "gptq_v2"}, gptq(4, is_new=True)),
    "gptq_8_bits": (GPTQ | {"bits": 8}, gptq(8)),
    "gptq_desc_act": (GPTQ | {"bits": 4, "desc_act": True}, gptq(4, is_ordered=False)),
}


def compress(source: Path, target: Path, form: str) -> Path:
    """Make a copy in `target`/quantised whose linear layers, but the last, are quantised, and one of floats.

    The one in `target`/float has the weights that the quantised ones stand for.
    """
    quantisation, stored = FORMS[form]
    tensors = load_file(source / "model.safetensors")
    floats = dict(tensors)
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        own, weight = stored(name.removesuffix(".weight"), tensors.pop(name).float())
        tensors |= own
        floats[name] = weight.contiguous()
    changed = json.loads((source / "config.json").read_text()) | {"quantization_config": quantisation}
    for folder, held in (("quantised", tensors), ("float", floats)):
        shutil.copytree(source, target / folder)
        save_file(held, target / folder / "model.safetensors", metadata={"format": "pt"})
    (target / "quantised" / "config.json").write_text(json.dumps(changed))
    return target


@pytest.mark.parametrize("fused", [False, True], ids=["stock", "fused"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["llama", "qwen2"])  # the second has biases
def test_logits_are_those_of_the_weights_it_stands_for(
    tmp_path: Path, name: str, form: str, fused: bool
) -> None:
    made = compress(model_zoo.build(name, tmp_path / "source"), tmp_path, form)
    model = load_model(made / "quantised", torch.float32, CPU, fused=fused)
    if form == "fp8":
        assert model.quantised is None
    else:
        assert model.quantised is not None
        assert model.quantised.num_layers == 4 * 7
    torch.testing.assert_close(logits_of(model), stock_logits(made / "float"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["w8a16", "w4a16_asymmetric", "awq", "gptq_desc_act"])
def test_they_are_read_in_bfloat16(tmp_path: Path, form: str) -> None:
    made = compress(model_zoo.build("llama", tmp_path / "source"), tmp_path, form)
    model = load_model(made / "quantised", torch.bfloat16, CPU, fused=True)
    torch.testing.assert_close(logits_of(model).float(), stock_logits(made / "float"), rtol=0.1, atol=0.3)


def test_int8_of_others_has_the_bits_of_ours(tmp_path: Path) -> None:
    source = model_zoo.build("llama", tmp_path / "source")
    logits = logits_of(load_model(compress(source, tmp_path, "w8a16") / "quantised", torch.float32, CPU))
    assert torch.equal(logits, logits_of(load_int8(source)))
    torch.testing.assert_close(logits, expected_logits(source), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("count", [1, 4, 33])
def test_words_hold_the_first_number_in_the_lowest_bits(bits: int, count: int) -> None:
    numbers = torch.randint(0, 2**bits, (5, count))
    assert torch.equal(numbers_of(words_of(numbers, bits), count, bits).int(), numbers.int())


PROJECTION = "model.layers.1.mlp.up_proj"


def spoilt(directory: Path, name: str, tensor: Tensor | None) -> Path:
    """Put another tensor under this name, or none."""
    tensors = load_file(directory / "model.safetensors")
    del tensors[name]
    save_file(tensors | ({} if tensor is None else {name: tensor}), directory / "model.safetensors")
    return directory


@pytest.mark.parametrize(
    ("form", "tensor", "value", "sentence"),
    [
        ("w8a16", "weight_packed", None, "cannot be read"),
        ("w8a16", "weight_shape", torch.tensor([96, 63]), r"weight_shape is \(96, 63\); accepted: \(96, 64"),
        ("w8a16", "weight_packed", torch.zeros(96, 15, dtype=torch.int32), "15 words for 64 numbers"),
        ("w4a16", "weight_scale", torch.zeros(96, 3).half(), "3 groups of 64 inputs"),
        (
            "w4a16",
            "weight_scale",
            torch.zeros(90, 2).half(),
            r"scales \(90, 2\); accepted: those of 96 outputs",
        ),
        ("awq", "qweight", torch.zeros(64, 11, dtype=torch.int32), "11 words for 96 numbers"),
        ("awq", "qzeros", None, "qzeros"),
        (
            "gptq",
            "g_idx",
            torch.zeros(64, dtype=torch.int32),
            "groups of .64, 0. inputs; accepted: all of one",
        ),
        ("gptq", "g_idx", torch.full((64,), 7, dtype=torch.int32), "g_idx has groups of"),
    ],
)
def test_a_checkpoint_that_lacks_something_is_refused(
    tmp_path: Path, form: str, tensor: str, value: Tensor | None, sentence: str
) -> None:
    made = compress(model_zoo.build("llama", tmp_path / "source"), tmp_path, form) / "quantised"
    with pytest.raises(ModelRefused, match=sentence):
        load_model(spoilt(made, f"{PROJECTION}.{tensor}", value), torch.float32, CPU)


def test_float64_is_refused(tmp_path: Path) -> None:
    made = compress(model_zoo.build("llama", tmp_path / "source"), tmp_path, "w8a16")
    with pytest.raises(
        ValueError, match=r"dtype is torch.float64 with int8 weights; accepted: float32 or bf"
    ):
        load_model(made / "quantised", torch.float64, CPU)
