"""A quantised checkpoint is accepted only if every field says what is understood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelRefused
from engine.model.quantised.checkpoint import check_quantised

DIRECTORY = Path("/models/some")
FP8_KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


def config(**changes: Any) -> dict[str, Any]:
    """Return a config as LLM Compressor writes it for W8A16; changes may name fields of group or weights."""
    weights = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "channel",
        "group_size": None,
        "dynamic": False,
        "actorder": None,
        "observer": "minmax",
    }
    group: dict[str, Any] = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
    }
    whole: dict[str, Any] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "transform_config": {},
    }
    for name, value in changes.items():
        next(place for place in (weights, group, whole) if name in place)[name] = value
    return whole


@pytest.mark.parametrize(
    "found",
    [
        None,
        False,
        config(),
        config(format="int-quantized"),
        config(format="int-quantized", input_activations={"num_bits": 8, "dynamic": True}),
        config(format="float-quantized", type="float"),
        config(num_bits=4, strategy="group", group_size=128),
        config(num_bits=4, symmetric=False, actorder="static"),
        {"quant_method": "awq", "bits": 4, "version": "GEMM"},
        {"quant_method": "gptq", "bits": 8, "desc_act": True},
        config(sparsity_config={"format": "dense"}),
        {key: value for key, value in config().items() if key != "quantization_status"},
    ],
)
def test_forms_that_are_understood_are_accepted(found: object) -> None:
    check_quantised(DIRECTORY, found)


@pytest.mark.parametrize(
    ("found", "field", "accepted"),
    [
        ({"quant_method": "mxfp4"}, ".quant_method", "compressed-tensors, awq, gptq"),
        ("fp8", ".quant_method", "compressed-tensors, awq, gptq"),
        ({"quant_method": "awq", "bits": 8}, ".bits", "4"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, ".version", "gemm"),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, ".zero_point", "True"),
        ({"quant_method": "gptq", "bits": 3}, ".bits", "4, 8"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, ".checkpoint_format", "gptq, g"),
        (config(format="marlin-24"), ".format", "pack-quantized, int-quantized, float-quantized"),
        (config(quantization_status="frozen"), ".quantization_status", "compressed, absent"),
        (config(kv_cache_scheme=FP8_KV), ".kv_cache_scheme", "absent"),
        (config(sparsity_config={"format": "sparse-bitmask"}), ".sparsity_config.format", "dense, absent"),
        (config(transform_config={"config_groups": {"R1": 1}}), ".transform_config.config_groups", "{}, ab"),
        (config(config_groups={}), ".config_groups", "there"),
        (config(output_activations={"num_bits": 8}), ".config_groups.group_0.output_activations", "absent"),
        (config(num_bits=3), ".config_groups.group_0.weights.num_bits", "8, 4"),
        (config(type="float"), ".config_groups.group_0.weights.type", "int"),
        (config(strategy="block"), ".config_groups.group_0.weights.strategy", "channel, group"),
        (config(dynamic=True), ".config_groups.group_0.weights.dynamic", "False, absent"),
        (
            config(actorder="group"),
            ".config_groups.group_0.weights.actorder",
            "False, absent, static, weight",
        ),
        (config(weights=None), ".config_groups.group_0.weights.num_bits", "8, 4"),
    ],
)
def test_anything_else_is_refused_by_its_field(found: object, field: str, accepted: str) -> None:
    with pytest.raises(ModelRefused, match=f"accepted: {accepted}") as refused:
        check_quantised(DIRECTORY, found)
    assert refused.value.field == f"quantization_config{field}"
