"""Reads int8 weights as compressed-tensors stores them, without that package.

For a linear layer of N outputs and K inputs a checkpoint holds, instead of `weight`,

    pack-quantized   weight_packed  int32 [N, ceil(K / 4)], four weights each, the first in the lowest byte,
                                    each 128 above its value
                     weight_shape   int64 [2], N and K
    int-quantized    weight         int8 [N, K]
    both             weight_scale   [N, 1]

and its `bias`, if it has one. Other layers are stored as usual. Scales are rounded to the model's dtype if a
checkpoint has them in a wider one.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from engine.errors import ModelRefused
from engine.model.quantised.whole_linears import Int8Linear

OFFSET = 128
PER_WORD = 4
_SCALE = ".weight_scale"


class StoredLinear(nn.Module):
    """Takes the place of a linear layer while the tensors of the checkpoint are read."""

    weight_scale: Tensor
    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear, *, is_packed: bool) -> None:
        super().__init__()
        self.shape = outputs, inputs = tuple(linear.weight.shape)
        if is_packed:
            words = torch.empty(outputs, -(-inputs // PER_WORD), dtype=torch.int32)
            self.register_buffer("weight_packed", words)
            self.register_buffer("weight_shape", torch.empty(2, dtype=torch.int64))
        else:
            self.register_buffer("weight", torch.empty(outputs, inputs, dtype=torch.int8))
        self.register_buffer("weight_scale", torch.empty(outputs, 1, dtype=linear.weight.dtype))
        self.bias = linear.bias
        self._is_packed = is_packed

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape that the checkpoint states, since packed words do not show it."""
        return tuple(self.get_buffer("weight_shape").tolist()) if self._is_packed else self.shape

    def unpacked(self, device: torch.device) -> Int8Linear:
        weight = self.get_buffer("weight_packed" if self._is_packed else "weight").to(device)
        if self._is_packed:
            weight = unpack(weight, self.shape[1])
        bias = None if self.bias is None else self.bias.data.to(device)
        return Int8Linear(weight, self.weight_scale[:, 0].to(device), bias)


def unpack(words: Tensor, num_inputs: int) -> Tensor:
    """Unpack int32 [N, ceil(K / 4)] to int8 [N, K]."""
    unsigned = words.contiguous().view(torch.uint8)[:, :num_inputs]
    return unsigned.bitwise_xor(OFFSET).view(torch.int8)


def quantised_layers(tensor_names: Collection[str]) -> dict[str, bool]:
    """Return the layers whose weights are quantised, by name; True if they are packed into words."""
    layers = [name.removesuffix(_SCALE) for name in tensor_names if name.endswith(_SCALE)]
    return {layer: f"{layer}.weight_packed" in tensor_names for layer in layers}


def loader(directory: Path, tensor_names: Collection[str]) -> tuple[Any, dict[str, Any]]:
    """Return a model class that can load this quantised checkpoint, and its extra arguments."""
    library: Any = transformers
    config = library.AutoConfig.from_pretrained(directory, local_files_only=True)
    # Otherwise transformers would require the compressed-tensors package.
    del config.quantization_config
    model_class = library.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return _with_stored_linears(model_class, quantised_layers(tensor_names)), {"config": config}


def _with_stored_linears(model_class: Any, layers: dict[str, bool]) -> Any:
    """Return a subclass whose models have a StoredLinear in the place of each of these layers.

    They are replaced while the model is constructed, so no float weights are allocated for them.
    """

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, *args, **kwargs)
        for name, is_packed in layers.items():
            linear = self.get_submodule(name)
            if not isinstance(linear, nn.Linear):
                raise TypeError(f"{name} is quantised but not a linear layer")
            self.set_submodule(name, StoredLinear(linear, is_packed=is_packed))

    return type(
        model_class.__name__, (model_class,), {"__init__": init, "__module__": model_class.__module__}
    )


@torch.inference_mode()
def unpack_linears(directory: Path, model: nn.Module, device: torch.device) -> None:
    """Replace every StoredLinear by an Int8Linear on `device`, one after the other."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, StoredLinear):
            continue
        if module.stored_shape != module.shape:
            raise ModelRefused(
                directory, f"{name}.weight_shape", f"is {module.stored_shape}", f"{module.shape}"
            )
        model.set_submodule(name, module.unpacked(device))
