"""What an earlier start rounded the weights of linear layers to, so that the next one need not read them.

first start   the checkpoint's floats ──▶ rounded (`rounding`) ──▶ written where numbers are kept
later ones    everything but those floats is read; the numbers are taken from there
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from torch import nn

from engine.model.quantised.stored_linears import with_layers_replaced
from engine.model.quantised.whole_linears import WholeLinear


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
    loaded = with_layers_replaced(model_class, names, lambda _, linear: BiasOnly(linear))
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
