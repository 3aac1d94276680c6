"""Checkpoints written by the package of compressed-tensors stand for the weights that it reads of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams
from torch import Tensor

from engine.model.model import load_model
from tests import model_zoo
from tests.engine.model.quantised.int8_models import CPU

TOKENS_OF_8_BITS = QuantizationArgs(num_bits=8, strategy="token", dynamic=True)
GROUPS = {"strategy": "group", "group_size": 32}
SCHEMES: dict[str, dict[str, QuantizationArgs]] = {
    "w8a16": {"weights": QuantizationArgs(num_bits=8, strategy="channel")},
    "w8a16_groups": {"weights": QuantizationArgs(num_bits=8, **GROUPS)},
    "w8a16_asymmetric": {"weights": QuantizationArgs(num_bits=8, symmetric=False, **GROUPS)},
    "w4a16": {"weights": QuantizationArgs(num_bits=4, **GROUPS)},
    "w4a16_channel": {"weights": QuantizationArgs(num_bits=4, strategy="channel")},
    "w4a16_asymmetric": {"weights": QuantizationArgs(num_bits=4, symmetric=False, **GROUPS)},
    "w8a8": {
        "weights": QuantizationArgs(num_bits=8, strategy="channel"),
        "input_activations": TOKENS_OF_8_BITS,
    },
    "w8a8_static": {
        "weights": QuantizationArgs(num_bits=8, strategy="channel"),
        "input_activations": QuantizationArgs(num_bits=8, strategy="tensor", symmetric=False),
    },
    "fp8": {
        "weights": QuantizationArgs(num_bits=8, type="float", strategy="tensor"),
        "input_activations": QuantizationArgs(num_bits=8, type="float", strategy="tensor"),
    },
    "fp8_dynamic": {
        "weights": QuantizationArgs(num_bits=8, type="float", strategy="channel"),
        "input_activations": QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True),
    },
}


def write(source: Path, target: Path, scheme: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Write a checkpoint by the package; return the weights that the package reads of it, by their names."""
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    group = QuantizationScheme(targets=["Linear"], **SCHEMES[scheme])
    config = QuantizationConfig(config_groups={"group_0": group}, ignore=["lm_head"])
    apply_quantization_config(model, config, show_progress=False)
    layers = {name: each for name, each in model.named_modules() if hasattr(each, "quantization_scheme")}
    for layer in layers.values():
        observe(layer)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(target)
    compressor.update_config(str(target))
    model_zoo.save_tokenizer(target)
    compressor.decompress_model(model)
    return {name: layer.weight.detach() for name, layer in layers.items()}


def observe(layer: Any) -> None:
    """Give a linear layer scales and zero points by the extremes of its weights, as LLM Compressor does."""
    args = layer.quantization_scheme.weights
    sizes = {"tensor": (1, -1), "channel": (layer.out_features, -1)}
    groups = layer.weight.detach().view(*sizes.get(args.strategy, (layer.out_features, -1, 32)))
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    layer.weight_scale.data.copy_(scale.view(layer.weight_scale.shape))
    layer.weight_zero_point.data.copy_(zero.view(layer.weight_zero_point.shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_are_those_that_the_package_reads(
    tmp_path: Path, scheme: str, dtype: torch.dtype, without_native: None
) -> None:
    """Scales are of the dtype of the weights, and to it the package rounds what it reads.

    Native ops round once more where there is a zero: they add what it stands for instead of subtracting it.
    """
    weights = write(model_zoo.build("llama", tmp_path / "source"), tmp_path / "written", scheme, dtype)
    model = load_model(tmp_path / "written", torch.float32, CPU)
    assert len(weights) == 4 * 7
    for name, weight in weights.items():
        layer = model.module.get_submodule(name)
        read = layer(torch.eye(weight.shape[1])).t()
        assert torch.equal(read.to(dtype), weight), name
