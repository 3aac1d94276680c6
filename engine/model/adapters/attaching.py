"""Puts adapters beside the linear layers of a loaded model, which may have been fused."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine.errors import AdapterRefused
from engine.model.adapters.checkpoint import AdapterFiles
from engine.model.adapters.layers import AdaptedLinear, AdapterStep
from engine.model.fusion import NativeSequence, fused_place
from engine.model.quantised.int8_weights import Int8Linear
from kernels.native.adapters import AdapterParts, AdapterWeights

Sizes = Mapping[str, tuple[int, int]]
"""(inputs, outputs) of a model's linear layers, by their names before fusion."""


class Adapters:
    """The adapters of a model: the slot of each in the layers' stacks, and the step under way."""

    def __init__(self, files: Sequence[AdapterFiles]) -> None:
        self.slots = {
            digest: slot for slot, digest in enumerate(dict.fromkeys(each.digest for each in files))
        }
        """By digest."""
        self.digests = {each.name: each.digest for each in files}
        """By name."""
        self.ranks = {each.name: each.rank for each in files}
        """By name."""
        self.step = AdapterStep()


def linear_sizes(module: Any) -> dict[str, tuple[int, int]]:
    """Return the linear layers of a loaded `...ForCausalLM` that can be adapted.

    The layer that makes the logits cannot be: it computes few of a step's rows.
    """
    logits = module.get_output_embeddings()
    sizes: dict[str, tuple[int, int]] = {}
    for name, each in module.named_modules():
        if isinstance(each, nn.Linear | Int8Linear) and each is not logits:
            sizes[name] = (each.weight.shape[1], each.weight.shape[0])
        elif isinstance(each, Conv1D):
            sizes[name] = (each.weight.shape[0], each.weight.shape[1])
    return sizes


def check_fits(adapter: AdapterFiles, sizes: Sizes) -> None:
    """Raise AdapterRefused if an adapter was made for other layers than those of these sizes."""
    for layer, (down, up) in adapter.matrices.items():
        if layer not in sizes:
            names = sorted({name.rpartition(".")[2] for name in sizes})
            raise AdapterRefused(
                adapter.name,
                adapter.path,
                layer,
                "is no linear layer of the base model that can be adapted",
                f"the model's {', '.join(names)}",
            )
        inputs, outputs = sizes[layer]
        if (down.shape[1], up.shape[0]) != (inputs, outputs):
            raise AdapterRefused(
                adapter.name,
                adapter.path,
                layer,
                f"maps {down.shape[1]} inputs to {up.shape[0]} outputs",
                f"{inputs} to {outputs}, as the base model's does",
            )


@torch.no_grad()
def attach(
    module: Any, files: Sequence[AdapterFiles], sizes: Sizes, dtype: torch.dtype, device: torch.device
) -> Adapters:
    """Put adapters into a model, in place. `sizes` are those of the layers before they were fused.

    Raises AdapterRefused for an adapter that does not fit the model.
    """
    for adapter in files:
        check_fits(adapter, sizes)
    adapters, contents = Adapters(files), {adapter.digest: adapter for adapter in files}
    by_slot = [contents[digest] for digest in adapters.slots]
    layers = sorted({layer for adapter in by_slot for layer in adapter.matrices})
    weights: dict[str, list[AdapterWeights]] = defaultdict(list)
    for layer in layers:
        path, first = fused_place(module, layer, sizes)
        weights[path].append(_stacked(layer, first, by_slot, sizes[layer], dtype, device))
    for path, own in weights.items():
        module.set_submodule(path, AdaptedLinear(module.get_submodule(path), own, adapters.step))
    for name, each in module.named_modules():
        if isinstance(each, NativeSequence):
            each.adapt(_native_parts(module, name, weights), adapters.step.blocks)
    return adapters


def _native_parts(module: Any, name: str, paths: Iterable[str]) -> dict[tuple[int, str], AdapterParts]:
    """Return the adapters of the layers of a `NativeSequence`, which has this name."""
    inside = re.compile(rf"{re.escape(name)}\.layers\.(\d+)\.(?:attention|mlp)\.(\w+)")
    matches = ((inside.fullmatch(path), path) for path in paths)
    return {
        (int(match[1]), match[2]): module.get_submodule(path).parts
        for match, path in matches
        if match is not None
    }


def _stacked(
    layer: str,
    first: int,
    files: Sequence[AdapterFiles],
    size: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> AdapterWeights:
    most = max(adapter.rank for adapter in files)
    down, up = (torch.zeros(len(files), most, length, dtype=dtype, device=device) for length in size)
    ranks = torch.zeros(len(files), dtype=torch.int64)
    for slot, adapter in enumerate(files):
        if layer in adapter.matrices:
            own_down, own_up = adapter.matrices[layer]
            down[slot, : adapter.rank] = own_down.to(device, dtype)
            up[slot, : adapter.rank] = _scaled(own_up, adapter.scale).t().to(device, dtype)
            ranks[slot] = adapter.rank
    return AdapterWeights(first, down, up, ranks)


def _scaled(up: Tensor, scale: float) -> Tensor:
    """Return B times the scale, rounded once, when it takes the model's dtype."""
    return up.double() * scale
