"""A deep model that a shallow one drafts well for, made from the shallow one.

It has the layers of a model, and behind them copies of these whose effect is small. So its steps take as long
as those of a model of its size, and the model that it was made from mostly agrees with it, as a well trained
draft model does with its target. How well is a matter of `EFFECT`, and says nothing about other models.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

EFFECT = 0.05
"""The effect of a copy on the residual stream, as a share of the effect of the original."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""Weights through which a layer of the Llama family adds to the residual stream."""


def deepen(model: Path, directory: Path, num_layers: int) -> Path:
    """Write a model of so many layers to `directory`, made from a Llama model with fewer; return its path."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    num_own = config["num_hidden_layers"]
    directory.mkdir(parents=True, exist_ok=True)
    for file in model.glob("*token*.json"):
        shutil.copy(file, directory)
    for name in ("generation_config.json", "chat_template.jinja"):
        if (model / name).is_file():
            shutil.copy(model / name, directory)
    config["num_hidden_layers"] = num_layers
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = load_file(model / "model.safetensors")
    save_file(_deepened(weights, num_own, num_layers), directory / "model.safetensors", {"format": "pt"})
    return directory


def _deepened(weights: dict[str, Tensor], num_own: int, num_layers: int) -> dict[str, Tensor]:
    deep = dict(weights)
    for name, tensor in weights.items():
        found = _LAYER.fullmatch(name)
        if found is None:
            continue
        scaled = tensor * EFFECT if found[2] in _OUTPUTS else tensor
        for layer in range(num_own + int(found[1]), num_layers, num_own):
            deep[f"model.layers.{layer}.{found[2]}"] = scaled.clone()
    return deep
