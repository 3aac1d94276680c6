"""Choose the files of a model that are needed, by the names that it has."""

from __future__ import annotations

import enum
import json
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from runtime.hub.names import HubModel
from runtime.hub.refusals import HubRefused

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_FACTS = (
    CONFIG,
    TOKENIZER,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
)
GGUF = (".gguf",)
_OTHER_FORMATS = (".gguf", ".bin", ".pt", ".pth", ".onnx", ".h5", ".msgpack")


class Scope(enum.StrEnum):
    """How much of a model a process needs."""

    FACTS = "facts"
    """Config, tokenizer and chat template: all that routers and timed workers need."""
    ALL = "all"
    """The weights too."""


def first_files(model: HubModel, names: Collection[str], scope: Scope) -> list[str]:
    """Return the files that are fetched first: small ones, with the index of the weights if there is one.

    `names` are those of all files of the model. Raises `HubRefused` for a model that no worker could serve.
    A GGUF file has everything in it, so it is fetched alone, whatever the scope.
    """
    if model.file:
        if model.file not in names:
            raise HubRefused(
                str(model), f"it has no {model.file}{_some(names, GGUF)}", "accepted: one that it has"
            )
        return [model.file]
    for name in (CONFIG, TOKENIZER):
        if name not in names:
            accepted = "accepted: a causal model with both files, or a GGUF file as ORG/NAME:FILE.gguf"
            raise HubRefused(str(model), f"it has no {name}{_some(names, GGUF)}", accepted)
    if scope is Scope.ALL and WEIGHTS not in names and INDEX not in names:
        found = f"it has no {WEIGHTS} and no {INDEX}{_some(names, _OTHER_FORMATS)}"
        accepted = "accepted: a model whose weights are safetensors, or a GGUF file as ORG/NAME:FILE.gguf"
        raise HubRefused(str(model), found, accepted)
    first = [name for name in _FACTS if name in names]
    return [*first, INDEX] if scope is Scope.ALL and INDEX in names else first


def weight_files(model: HubModel, names: Collection[str], index: Path) -> list[str]:
    """Return the files with the weights. `index` is where the index is, if the model has one."""
    if INDEX not in names:
        return [WEIGHTS]
    needed = shards(model, index)
    for name in needed:
        if name not in names:
            raise HubRefused(
                str(model), f"its {INDEX} names {name!r}, which it does not have", "accepted: its own files"
            )
    return needed


def shards(model: HubModel, index: Path) -> list[str]:
    """Return the files that an index names. Raises `HubRefused` for one that is broken, or names others."""
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        if not all(map(_is_inside, names)):
            raise ValueError("it names files outside of the model")
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise HubRefused(
            str(model), f"its {INDEX} cannot be read ({error})", "accepted: a JSON object with a weight_map"
        ) from error
    return names


def _some(names: Collection[str], endings: tuple[str, ...]) -> str:
    """Return, in brackets, some of the files with these endings."""
    found = sorted(name for name in names if name.lower().endswith(endings))
    return f" (it has {', '.join(found[:3])})" if found else ""


def _is_inside(name: str) -> bool:
    """Return whether a file's name stays within the folder of its model."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
