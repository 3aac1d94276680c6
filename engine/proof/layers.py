"""Watches what the decoder layers of a transformers model add to the hidden states, and moves their input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import ModelRefused
from engine.model.model import ModelFacts

Layers = dict[str, nn.Module]
"""The decoder layers by name, in order."""


def decoder_layers(facts: ModelFacts, module: Any) -> Layers:
    """Return a model's decoder layers, of which each attends once, or each equally often.

    Raises ModelRefused if it has no such list.
    """
    lists = {name: part for name, part in module.named_modules() if isinstance(part, nn.ModuleList)}
    for times in (1, 2):
        for name, part in lists.items():
            if len(part) * times == facts.num_layers:
                return {f"{name}.{index}": layer for index, layer in enumerate(part)}
    raise ModelRefused(
        facts.directory, "the layers", "are in no list", f"a ModuleList of {facts.num_layers} decoder layers"
    )


@contextmanager
def watched(layers: Layers) -> Iterator[dict[str, list[Tensor]]]:
    """Yield a dictionary that gets what each layer adds, [tokens, width] for each of its calls."""
    added: dict[str, list[Tensor]] = {name: [] for name in layers}

    def watch(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            left = output[0] if isinstance(output, tuple) else output
            added[name].append((left.double() - _hidden(args, kwargs).double())[0].cpu())

        return hook

    handles = [layer.register_forward_hook(watch(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        yield added
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def rounded_differently(layers: Layers, seed: int) -> Iterator[None]:
    """Move every number that enters a layer by at most one unit in its last place.

    In float64 it is the last place of float32, which many models round norms, rotations or softmax to.
    """
    generator = torch.Generator().manual_seed(seed)

    def move(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden = _hidden(args, kwargs)
        steps = torch.rand(hidden.shape, generator=generator, dtype=torch.float64) * 2 - 1
        unit = max(torch.finfo(hidden.dtype).eps, torch.finfo(torch.float32).eps)
        moved = hidden.double() * (1 + unit * steps.to(hidden.device))
        moved = moved.to(hidden.dtype)
        return ((moved, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": moved})

    handles = [layer.register_forward_pre_hook(move, with_kwargs=True) for layer in layers.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden
