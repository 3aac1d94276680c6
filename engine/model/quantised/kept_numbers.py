"""Keeps the numbers of rounded weights, so that the next start need not read and round those weights.

first start   the checkpoint's floats ──▶ rounded (`rounding`) ──▶ written to a file
later ones    everything but those floats is read from the checkpoint, and the numbers from the file
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.model.quantised.stored_linears import with_layers_replaced
from engine.model.quantised.whole_linears import GroupedLinear, Int8Linear, WholeLinear

TENSORS = ("weight", "scale", "zero")


class KeptNumbers(Protocol):
    """Keeps the layers of one checkpoint in one dtype, by their names and without their biases."""

    def read(self) -> Mapping[str, WholeLinear] | None:
        """Return the layers; None if none are kept, or none that can be used."""
        ...

    def write(self, linears: Mapping[str, WholeLinear]) -> None:
        """Keep the layers, if that is possible."""
        ...


KeptOf = Callable[[Path, torch.dtype], KeptNumbers]
"""Returns what keeps the layers of the checkpoint in a folder."""


class BiasOnly(nn.Module):
    """Takes the place of a linear layer while a checkpoint is read, of which only the bias is wanted."""

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.bias = linear.bias  # type: ignore[assignment]  # that of a linear layer
        # Some models fill the weights of their layers before a checkpoint's are there.
        self.register_buffer("weight", torch.empty(0), persistent=False)


def loader_of_the_rest(directory: Path, names: Collection[str]) -> tuple[Any, dict[str, Any]]:
    """Return a model class that loads a checkpoint without the weights of these layers, and its arguments."""
    library: Any = transformers
    config = library.AutoConfig.from_pretrained(directory, local_files_only=True)
    model_class = library.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    loaded = with_layers_replaced(model_class, names, lambda model, name: BiasOnly(model.get_submodule(name)))
    # transformers would report each of the weights that it leaves out.
    known = getattr(model_class, "_keys_to_ignore_on_load_unexpected", None) or ()
    loaded._keys_to_ignore_on_load_unexpected = [*known, r"\.weight$"]  # noqa: SLF001 -- how transformers names it
    return loaded, {"config": config}


def put_back(model: nn.Module, linears: Mapping[str, WholeLinear]) -> None:
    """Put the layers into a model that `loader_of_the_rest` has loaded."""
    for name, linear in linears.items():
        bias = model.get_submodule(name).bias
        linear.bias = bias.data if isinstance(bias, torch.Tensor) else None
        model.set_submodule(name, linear)


def rounded(model: nn.Module) -> dict[str, WholeLinear]:
    """Return the layers of a model that were rounded."""
    return {name: module for name, module in model.named_modules() if isinstance(module, WholeLinear)}


def tensors_of(linears: Mapping[str, WholeLinear]) -> dict[str, Tensor]:
    """Return the tensors of layers, by the layer's name and their own."""
    return {
        f"{name}.{leaf}": tensor
        for name, linear in linears.items()
        for leaf in TENSORS
        if (tensor := getattr(linear, leaf)) is not None
    }


def save(tensors: dict[str, Tensor], path: Path, key: str) -> None:
    """Write tensors to a file that belongs to a key. Raises OSError."""
    try:
        save_file(tensors, path, {"key": key})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def load(path: Path, key: str, dtype: torch.dtype) -> dict[str, WholeLinear]:
    """Return the layers of `tensors_of` in a file that belongs to a key, for a model of this dtype.

    Raises OSError, and ValueError for a file that is not whole, or belongs to another key.
    """
    layers: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("key") != key:
                raise ValueError("it belongs to another model")
            for name in file.keys():  # noqa: SIM118 -- it is no mapping
                layer, _, leaf = name.rpartition(".")
                layers.setdefault(layer, {})[leaf] = file.get_tensor(name)
        return {name: _linear(tensors, dtype) for name, tensors in layers.items()}
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"it cannot be read: {error}") from error


def _linear(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> WholeLinear:
    weight, scale = tensors["weight"], tensors["scale"]
    if scale.ndim == 1:
        return Int8Linear(weight, scale, None)
    return GroupedLinear(weight, scale, tensors["zero"], None, bits=4, dtype=dtype)
