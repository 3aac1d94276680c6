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
        config(sparsity_config={"format": "dense"}),
        {key: value for key, value in config().items() if key != "quantization_status"},
    ],
)
def test_int8_weights_with_a_scale_for_each_output_are_accepted(found: object) -> None:
    check_quantised(DIRECTORY, found)


@pytest.mark.parametrize(
    ("found", "field", "accepted"),
    [
        ({"quant_method": "mxfp4"}, ".quant_method", "compressed-tensors"),
        ("gptq", ".quant_method", "compressed-tensors"),
        (config(format="float-quantized"), ".format", "pack-quantized, int-quantized"),
        (config(quantization_status="frozen"), ".quantization_status", "compressed, absent"),
        (config(kv_cache_scheme=FP8_KV), ".kv_cache_scheme", "absent"),
        (config(sparsity_config={"format": "sparse-bitmask"}), ".sparsity_config.format", "dense, absent"),
        (config(transform_config={"config_groups": {"R1": 1}}), ".transform_config.config_groups", "{}, ab"),
        (config(config_groups={}), ".config_groups", "there"),
        (config(input_activations={"num_bits": 8}), ".config_groups.group_0.input_activations", "absent"),
        (config(num_bits=4), ".config_groups.group_0.weights.num_bits", "8"),
        (config(type="float"), ".config_groups.group_0.weights.type", "int"),
        (config(symmetric=False), ".config_groups.group_0.weights.symmetric", "True"),
        (config(strategy="group"), ".config_groups.group_0.weights.strategy", "channel"),
        (config(dynamic=True), ".config_groups.group_0.weights.dynamic", "False, absent"),
        (config(actorder="weight"), ".config_groups.group_0.weights.actorder", "False, absent"),
        (config(weights=None), ".config_groups.group_0.weights.num_bits", "8"),
    ],
)
def test_anything_else_is_refused_by_its_field(found: object, field: str, accepted: str) -> None:
    with pytest.raises(ModelRefused, match=f"accepted: {accepted}") as refused:
        check_quantised(DIRECTORY, found)
    assert refused.value.field == f"quantization_config{field}"
