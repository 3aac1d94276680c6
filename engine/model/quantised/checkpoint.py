"""The quantised checkpoints that are served: int8 weights of compressed-tensors with a scale for each output.

LLM Compressor calls this W8A16. Fewer bits, 8-bit activations or scales for groups would be misread; each is
refused by the field that declares it. So is a `kv_cache_scheme`, with one scale for a tensor or a head, set
when the checkpoint was made: `--quantisation kv8` and `kvfp8` compute one for each token and head.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.errors import ModelRefused

PACKED = "pack-quantized"
PLAIN = "int-quantized"
METHOD = "compressed-tensors"

# Accepted fields of a group's weights; None stands for a field that is absent or null.
_WEIGHTS: dict[str, tuple[object, ...]] = {
    "num_bits": (8,),
    "type": ("int",),
    "symmetric": (True,),
    "strategy": ("channel",),
    "dynamic": (False, None),
    "actorder": (False, None),
}


def check_quantised(directory: Path, found: object) -> None:
    """Raise ModelRefused if a config.json has a `quantization_config` that is not served."""
    if found is None or found is False:
        return
    for field, value, accepted in _rules(found):
        if value not in accepted:
            names = ", ".join("absent" if choice is None else str(choice) for choice in accepted)
            raise ModelRefused(directory, f"quantization_config{field}", f"is {value!r}", names)


def _rules(found: object) -> Iterator[tuple[str, object, tuple[object, ...]]]:
    """Yield (field, found value, accepted values)."""
    config: dict[str, Any] = found if isinstance(found, dict) else {"quant_method": found}
    yield ".quant_method", config.get("quant_method"), (METHOD,)
    yield ".format", config.get("format"), (PACKED, PLAIN)
    yield ".quantization_status", config.get("quantization_status"), ("compressed", None)
    yield ".kv_cache_scheme", config.get("kv_cache_scheme"), (None,)
    yield ".sparsity_config.format", _of(config.get("sparsity_config"), "format"), ("dense", None)
    yield ".transform_config.config_groups", _of(config.get("transform_config"), "config_groups"), ({}, None)
    groups = config.get("config_groups")
    yield ".config_groups", "absent" if not groups else "there", ("there",)
    for name, group in (groups or {}).items():
        place = f".config_groups.{name}"
        yield f"{place}.format", _of(group, "format"), (config["format"], None)
        for activations in ("input_activations", "output_activations"):
            yield f"{place}.{activations}", _of(group, activations), (None,)
        for field, accepted in _WEIGHTS.items():
            yield f"{place}.weights.{field}", _of(_of(group, "weights"), field), accepted


def _of(mapping: object, key: str) -> object:
    return mapping.get(key) if isinstance(mapping, dict) else None
