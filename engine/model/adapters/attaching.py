"""Puts adapters beside the linear layers of a loaded model, which may have been fused."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine.errors import AdapterRefused
from engine.model.adapters.checkpoint import AdapterFiles
from engine.model.adapters.layers import AdaptedLinear, AdapterStep
from engine.model.fusion import NativeSequence, fused_place
from engine.model.parallel.adapter_share import AdapterShare
from engine.model.quantised.whole_linears import WholeLinear
from kernels.native.adapters import MAX_RANK, AdapterParts, AdapterWeights

_MEBIBYTE = 1024 * 1024
Sizes = Mapping[str, tuple[int, int]]
"""(inputs, outputs) of a model's linear layers, by their names before fusion."""


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """Memory for adapters that are loaded while the model serves."""

    num_bytes: int
    rank: int
    """The largest rank of an adapter."""


@dataclass(frozen=True, slots=True)
class AdaptableLinears:
    """The linear layers of a process that can be adapted, before any is fused."""

    sizes: Sizes
    whole_sizes: Sizes
    """Those of the whole model, which adapters are made for."""
    share: AdapterShare
    """The share of an adapter that belongs to these layers."""


class Adapters:
    """The adapters of a model: the stacks beside its layers, by slot, and the step under way."""

    def __init__(self, num_slots: int, rank: int, linears: AdaptableLinears) -> None:
        self.num_slots = num_slots
        self.rank = rank
        """The largest rank of an adapter."""
        self.step = AdapterStep()
        self.digests: dict[str, str] = {}
        """Those of the adapters that were attached at the start, by name."""
        self.ranks: dict[str, int] = {}
        """The ranks of these, by name."""
        self.slots: dict[str, int] = {}
        """The slots of these, by digest."""
        self._linears = linears
        self._weights: dict[str, AdapterWeights] = {}
        """By the layers' names before fusion."""

    def add_layer(self, layer: str, first: int, dtype: torch.dtype, device: torch.device) -> AdapterWeights:
        """Make the stacks of a layer, without adapters; its outputs begin at `first` of those of a module."""
        shape, size = (self.num_slots, self.rank), self._linears.sizes[layer]
        down, up = (torch.zeros(*shape, length, dtype=dtype, device=device) for length in size)
        weights = AdapterWeights(first, down, up, torch.zeros(self.num_slots, dtype=torch.int64))
        self._weights[layer] = weights
        return weights

    def check(self, files: AdapterFiles) -> None:
        """Raise AdapterRefused for an adapter that no slot can hold."""
        if files.rank > self.rank:
            accepted = f"1 to {self.rank}, the --lora-rank of this worker"
            raise AdapterRefused(files.name, files.path, "r", f"is {files.rank}", accepted)
        check_fits(files, self._linears.whole_sizes)

    @torch.no_grad()
    def write(self, slot: int, files: AdapterFiles) -> None:
        """Put an adapter in a slot that no step reads. Raises AdapterRefused for one that cannot be there.

        Another thread may compute steps meanwhile.
        """
        self.check(files)
        for layer, weights in self._weights.items():
            pair = files.matrices.get(self._linears.share.whole_name(layer))
            if pair is not None:
                pair = self._linears.share.take(layer, *pair)
            _fill(weights, slot, pair, files.scale)


def linear_sizes(module: Any) -> dict[str, tuple[int, int]]:
    """Return the linear layers of a loaded `...ForCausalLM` that can be adapted.

    The layer that makes the logits cannot be: it computes few of a step's rows.
    """
    logits = module.get_output_embeddings()
    sizes: dict[str, tuple[int, int]] = {}
    for name, each in module.named_modules():
        if isinstance(each, WholeLinear) and each is not logits:
            sizes[name] = (each.inputs, each.outputs)
        elif isinstance(each, nn.Linear) and each is not logits:
            sizes[name] = (each.in_features, each.out_features)
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


def attach(
    module: Any,
    files: Sequence[AdapterFiles],
    linears: AdaptableLinears,
    dtype: torch.dtype,
    device: torch.device,
) -> Adapters:
    """Put adapters into a model, in place.

    Raises AdapterRefused for an adapter that does not fit the model.
    """
    for adapter in files:
        check_fits(adapter, linears.whole_sizes)
    by_digest = {adapter.digest: adapter for adapter in files}
    adapters = Adapters(len(by_digest), max(adapter.rank for adapter in files), linears)
    adapted = {layer for adapter in files for layer in adapter.matrices}
    layers = [layer for layer in linears.sizes if linears.share.whole_name(layer) in adapted]
    _add_layers(module, adapters, layers, linears.sizes, dtype, device)
    for slot, (digest, adapter) in enumerate(by_digest.items()):
        adapters.write(slot, adapter)
        adapters.slots[digest] = slot
    adapters.digests = {adapter.name: adapter.digest for adapter in files}
    adapters.ranks = {adapter.name: adapter.rank for adapter in files}
    return adapters


def make_room(
    module: Any, room: AdapterRoom, linears: AdaptableLinears, dtype: torch.dtype, device: torch.device
) -> Adapters:
    """Prepare a model for adapters that are loaded later, in place; any of its linear layers may be adapted.

    Raises ValueError for room that is too small for one adapter, or a rank that is not served.
    """
    if room.rank > MAX_RANK:
        raise ValueError(f"--lora-rank is {room.rank}; accepted: 1 to {MAX_RANK}")
    slot_bytes = linears.share.most_features(linears.whole_sizes) * room.rank * dtype.itemsize
    if slot_bytes > room.num_bytes:
        least = -(-slot_bytes // _MEBIBYTE)
        raise ValueError(
            f"--lora-memory-mb is {room.num_bytes // _MEBIBYTE}; accepted: {least} or more, which one "
            f"adapter of rank {room.rank} (--lora-rank) takes"
        )
    adapters = Adapters(room.num_bytes // slot_bytes, room.rank, linears)
    _add_layers(module, adapters, linears.sizes, linears.sizes, dtype, device)
    return adapters


def _add_layers(
    module: Any,
    adapters: Adapters,
    layers: Iterable[str],
    sizes: Sizes,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    weights: dict[str, list[AdapterWeights]] = defaultdict(list)
    for layer in sorted(layers):
        path, first = fused_place(module, layer, sizes)
        weights[path].append(adapters.add_layer(layer, first, dtype, device))
    for path, own in weights.items():
        module.set_submodule(path, AdaptedLinear(module.get_submodule(path), own, adapters.step))
    for name, each in module.named_modules():
        if isinstance(each, NativeSequence):
            each.adapt(_native_parts(module, name, weights), adapters.step.blocks)


def _native_parts(module: Any, name: str, paths: Iterable[str]) -> dict[tuple[int, str], AdapterParts]:
    """Return the adapters of the layers of a `NativeSequence`, which has this name."""
    inside = re.compile(rf"{re.escape(name)}\.layers\.(\d+)\.(?:attention|mlp)\.(\w+)")
    matches = ((inside.fullmatch(path), path) for path in paths)
    return {
        (int(match[1]), match[2]): module.get_submodule(path).parts
        for match, path in matches
        if match is not None
    }


def _fill(weights: AdapterWeights, slot: int, pair: tuple[Tensor, Tensor] | None, scale: float) -> None:
    """Put the matrices of one adapter into the stacks of a layer; `pair` is None if it does not adapt it."""
    before = int(weights.ranks[slot])
    for stack in (weights.down, weights.up):
        stack[slot, :before] = 0  # all rows behind are 0
    weights.ranks[slot] = 0
    if pair is not None:
        down, up = pair
        rank = down.shape[0]
        weights.ranks[slot] = rank  # first: if copying fails, these rows are not 0
        weights.down[slot, :rank].copy_(down)
        weights.up[slot, :rank].copy_(_scaled(up, scale).t())


def _scaled(up: Tensor, scale: float) -> Tensor:
    """Return B times the scale, rounded once, when it takes the model's dtype."""
    return up.double() * scale
