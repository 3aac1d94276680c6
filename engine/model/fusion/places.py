"""Finds where a fused model computes what a linear layer of the stock model did."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.model.fusion.modules import Decoder, GatedMlp

_LAYER = re.compile(r"model\.layers\.(\d+)\.(self_attn|mlp)\.(.+)")
_MERGED = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "gate_up": ("gate_proj", "up_proj"),
}
_RENAMED = {"qkv_proj": "qkv", "o_proj": "output", "gate_up_proj": "gate_up", "down_proj": "down"}


def fused_place(module: Any, name: str, sizes: Mapping[str, tuple[int, int]]) -> tuple[str, int]:
    """Return the path of the module with the outputs of a stock linear layer, and the first of its outputs.

    `sizes` are (inputs, outputs) of all linear layers of the stock model. A layer that was not fused is
    where it was.
    """
    match = _LAYER.fullmatch(name)
    if not isinstance(getattr(module, "model", None), Decoder) or match is None:
        return name, 0
    index, part, child = match.groups()
    layer = f"model.layers.layers.{index}"
    if part == "mlp" and not isinstance(module.get_submodule(f"{layer}.mlp"), GatedMlp):
        return f"{layer}.mlp.module.{child}", 0
    fused_part = f"{layer}.attention" if part == "self_attn" else f"{layer}.mlp"
    for merged, names in _MERGED.items():
        if child in names:
            before = names[: names.index(child)]
            stem = name.removesuffix(child)
            return f"{fused_part}.{merged}", sum(sizes[f"{stem}{each}"][1] for each in before)
    return f"{fused_part}.{_RENAMED[child]}", 0
