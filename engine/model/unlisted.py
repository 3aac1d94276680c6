"""Refuses architectures off the list that cannot be served, by what their configuration says.

It comes before weights are read. What passes still has to be proven (`engine.proof`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)

from engine.errors import ModelRefused
from engine.model.allow_list import Config
from engine.model.attention.dry_run import LayerFacts

FULL, WINDOW = "full_attention", "sliding_attention"
LAYER_TYPES = (FULL, WINDOW)
"""The kinds of layers whose state is keys and values of every position, or of a window of positions."""
_KINDS = ("layer_types", "layers_block_type")
"""Fields that name the kind of each layer."""
_LAYER_PARTS = ("attn_config", "ffn_config")
"""Configs within a config that belong to the one text model."""


def check_unlisted(directory: Path, config: Config) -> None:
    """Raise ModelRefused, naming the field that is not accepted, for an architecture off the list."""
    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING and config.get("auto_map"):
        raise ModelRefused(
            directory, "auto_map", f"names code ({config['auto_map']})", "absent, since no such code is run"
        )
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        known = f"a causal language model that transformers {transformers.__version__} has"
        raise ModelRefused(directory, "model_type", f"is {model_type!r}", known)
    for field, found, accepted in _misfits(read_whole_config(directory)):
        raise ModelRefused(directory, field, found, accepted)


def read_whole_config(directory: Path) -> Any:
    """Return a config with the defaults of fields that config.json leaves out."""
    library: Any = transformers
    try:
        return library.AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # configs check themselves by errors of several libraries
        raise ModelRefused(
            directory, "config.json", f"cannot be read ({error})", "what transformers' save_pretrained writes"
        ) from error


def check_windows(directory: Path, config: Any, layers: LayerFacts) -> None:
    """Raise ModelRefused if a layer's attention is not told the window that the config gives the layer.

    The model then applies it by a mask, which paged attention does not see.
    """
    expected = _windows(config, len(layers.softmaxes))
    for index, (window, softmax) in enumerate(zip(expected, layers.softmaxes, strict=True)):
        if softmax.sliding_window != window:
            raise ModelRefused(
                directory,
                "sliding_window",
                f"is {window} in layer {index}, whose attention is told {softmax.sliding_window}",
                "the same window in both",
            )


def _windows(config: Any, num_layers: int) -> list[int | None]:
    """Return each layer's window by the config; a window as long as the context is none."""
    window = getattr(config, "sliding_window", None)
    if window is None or window >= config.max_position_embeddings:
        return [None] * num_layers
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        uses = getattr(config, "use_sliding_window", True)
        return [window if uses else None] * num_layers
    return [window if kind == WINDOW else None for kind in kinds]


def _misfits(config: Any) -> Iterator[tuple[str, str, str]]:
    """Yield fields that are not accepted: the field, the value found, what would be accepted."""
    if getattr(config, "is_encoder_decoder", False):
        yield "is_encoder_decoder", "is True", "a model that has only a decoder"
    yield from _other_kinds(config)
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if getattr(model_class, "_is_stateful", False):
        yield (
            "model_type",
            f"is {config.model_type!r}, which keeps a recurrent state",
            "keys and values alone",
        )
    if not getattr(model_class, "_supports_attention_backend", False):
        yield (
            "model_type",
            f"is {config.model_type!r}, whose attention does not go through transformers' AttentionInterface",
            "a model that calls it in every layer",
        )
    parts = [name for name in config.sub_configs if name not in _LAYER_PARTS]
    if parts:
        yield (
            parts[0],
            "is the config of one part of several",
            "a checkpoint of the text model alone, with its own config.json",
        )
    if getattr(config, "attention_chunk_size", None) is not None:
        yield (
            "attention_chunk_size",
            f"is {config.attention_chunk_size}",
            "absent: attention to all positions, or to a sliding window",
        )
    if getattr(config, "num_kv_shared_layers", None):
        yield "num_kv_shared_layers", f"is {config.num_kv_shared_layers}", "0: every layer has its own KV"


def _other_kinds(config: Any) -> Iterator[tuple[str, str, str]]:
    for field in _KINDS:
        kinds = getattr(config, field, None)
        if not isinstance(kinds, list | tuple):
            continue
        others = [kind for kind in kinds if kind not in (*LAYER_TYPES, "attention")]
        if others:
            yield field, f"has {others[0]!r}", ", ".join(LAYER_TYPES)
