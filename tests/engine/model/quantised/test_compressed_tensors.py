"""Checkpoints that others quantised mean what the weights mean that theirs stand for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.errors import ModelRefused
from engine.model.model import load_model
from engine.model.quantised.compressed_tensors import unpack
from engine.model.quantised.rounding import quantise
from tests import model_zoo
from tests.engine.model.quantised.int8_models import CPU, expected_logits, load_int8, logits_of
from tests.engine.model.quantised.test_checkpoint import config

FORMATS = ("pack-quantized", "int-quantized")


def pack(weight: Tensor) -> Tensor:
    """int8 [N, K] -> int32 [N, ceil(K / 4)], as the format's description has it: byte by byte."""
    rows = []
    for row in weight.tolist():
        padded = row + [-128] * (-len(row) % 4)
        words = [
            sum((value + 128) << 8 * place for place, value in enumerate(padded[begin : begin + 4]))
            for begin in range(0, len(padded), 4)
        ]
        rows.append([word - (1 << 32) if word >= 1 << 31 else word for word in words])
    return torch.tensor(rows, dtype=torch.int32)


def compress(source: Path, target: Path, form: str) -> Path:
    """A copy whose linear layers, but the last, are quantised."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        weight, scale = quantise(tensors.pop(name))
        if form == "pack-quantized":
            tensors[f"{name}_packed"] = pack(weight)
            tensors[f"{name}_shape"] = torch.tensor(weight.shape)
        else:
            tensors[name] = weight
        tensors[f"{name}_scale"] = scale[:, None].contiguous()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    changed = json.loads((target / "config.json").read_text()) | {"quantization_config": config(format=form)}
    (target / "config.json").write_text(json.dumps(changed))
    return target


def change(directory: Path, name: str, tensor: Tensor | None) -> None:
    """Another tensor under this name, or none."""
    tensors = load_file(directory / "model.safetensors")
    del tensors[name]
    save_file(tensors | ({} if tensor is None else {name: tensor}), directory / "model.safetensors")


@pytest.mark.parametrize("num_inputs", [1, 4, 33])
def test_words_hold_four_weights_the_first_in_the_lowest_byte(num_inputs: int) -> None:
    weight = torch.randint(-128, 128, (5, num_inputs), dtype=torch.int8)
    assert torch.equal(unpack(pack(weight), num_inputs), weight)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["llama", "qwen2"])  # the second has biases
def test_logits_are_those_of_the_weights_it_stands_for(tmp_path: Path, name: str, form: str) -> None:
    source = model_zoo.build(name, tmp_path / "float")
    model = load_model(compress(source, tmp_path / "int8", form), torch.float32, CPU)
    assert model.quantised is not None
    assert model.quantised.num_layers == 4 * 7
    logits = logits_of(model)
    torch.testing.assert_close(logits, expected_logits(source), rtol=1e-4, atol=1e-4)
    assert torch.equal(logits, logits_of(load_int8(source)))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compressed")
    return compress(model_zoo.build("llama", folder / "float"), folder / "int8", "pack-quantized")


PROJECTION = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("tensor", "value", "sentence"),
    [
        (f"{PROJECTION}.weight_packed", None, f"missing_keys .{PROJECTION}.weight"),
        (
            f"{PROJECTION}.weight_shape",
            torch.tensor([96, 63]),
            r"weight_shape is \(96, 63\); accepted: \(96, 64",
        ),
        (f"{PROJECTION}.weight_packed", torch.zeros(96, 15, dtype=torch.int32), "cannot be loaded"),
    ],
)
def test_a_checkpoint_that_lacks_something_is_refused(
    original: Path, tmp_path: Path, tensor: str, value: Tensor | None, sentence: str
) -> None:
    spoilt = Path(shutil.copytree(original, tmp_path / "spoilt"))
    change(spoilt, tensor, value)
    with pytest.raises(ModelRefused, match=sentence):
        load_model(spoilt, torch.float32, CPU)


def test_float64_is_refused(original: Path) -> None:
    with pytest.raises(
        ValueError, match=r"dtype is torch.float64 with int8 weights; accepted: float32 or bf"
    ):
        load_model(original, torch.float64, CPU)
