"""The architectures that are served by name: those whose logits were shown to equal transformers' own.

Others might load and generate fluent but wrong text: ALiBi models never call the attention function, some
RoPE types depend on the longest position of the whole batch, a quantised checkpoint needs kernels for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine.errors import ModelRefused
from engine.model.quantised.checkpoint import check_quantised
from model_output.text.model_files import FileUnusable, read_object

ARCHITECTURES = (
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_oss",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "opt",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
)
# `dynamic` and `longrope` choose their frequencies by the longest sequence of a step, whichever it is.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

Config = dict[str, Any]


def is_listed(config: Config) -> bool:
    """Return whether a model is served without a proof of its own."""
    return config.get("model_type") in ARCHITECTURES


def read_config(directory: Path, *, unlisted: bool = False) -> Config:
    """Read a model's config.json; with `unlisted`, other architectures are accepted too.

    Raises ModelRefused, naming the first field that is not accepted.
    """
    if not directory.is_dir():
        accepted = (
            "a model directory with config.json, a GGUF file, or a model of the hub as ORG/NAME or "
            "ORG/NAME@REVISION"
        )
        raise ModelRefused(directory, "the path", "is not a directory", accepted)
    path = directory / "config.json"
    try:
        config = read_object(path)
    except FileNotFoundError:
        raise ModelRefused(
            directory, "config.json", "is missing", "a model directory with config.json"
        ) from None
    except FileUnusable as error:
        raise ModelRefused(directory, "config.json", error.found, error.accepted) from error
    if not unlisted and not is_listed(config):
        accepted = f"{', '.join(ARCHITECTURES)}; --prove-model tries others"
        raise ModelRefused(directory, "model_type", f"is {config.get('model_type')!r}", accepted)
    _check(directory, config)
    return config


def _check(directory: Path, config: Config) -> None:
    for field, rope_type in _rope_types(config):
        if rope_type not in ROPE_TYPES:
            raise ModelRefused(directory, field, f"is {rope_type!r}", ", ".join(ROPE_TYPES))
    check_quantised(directory, config.get("quantization_config"))
    for field, (acceptable, accepted) in _FIELDS.items():
        if not acceptable(config.get(field)):
            raise ModelRefused(directory, field, f"is {config[field]!r}", accepted)


def _rope_types(config: Config) -> Iterator[tuple[str, object]]:
    """Yield every RoPE type with its field: one for the model, or one for each kind of layer."""
    for field in ("rope_scaling", "rope_parameters"):
        rope = config.get(field) or {}
        kinds = {field: rope} | {
            f"{field}.{kind}": value for kind, value in rope.items() if isinstance(value, dict)
        }
        for place, values in kinds.items():
            for key in ("rope_type", "type"):
                if key in values:
                    yield f"{place}.{key}", values[key]


def _absent(value: object) -> bool:
    return value is None or value is False


_FIELDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "use_bidirectional_attention": (_absent, "causal attention (false or absent)"),
    # GPT-2's upcast attention bypasses the attention function.
    "reorder_and_upcast_attn": (_absent, "false or absent"),
    "is_encoder_decoder": (_absent, "false or absent"),
    "add_cross_attention": (_absent, "false or absent"),
}
