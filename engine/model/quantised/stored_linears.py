"""Reads the whole-numbered weights of quantised checkpoints, without the packages that wrote them.

For a linear layer of N outputs and K inputs, G of which share a scale, a checkpoint holds instead of `weight`

    compressed-tensors   pack-quantized    weight_packed  int32 [N, K * bits / 32], the first number in the
                                           lowest bits, each 2^(bits - 1) above its value
                                           weight_shape   int64 [2], N and K
                         int-quantized     weight         int8 [N, K]
                         float-quantized   weight         float8_e4m3fn [N, K]
                         all               weight_scale   [N, K / G]; of float8 perhaps one number
                                           weight_zero_point, if asymmetric: [N, K / G] of int8, or packed by
                                           outputs, int32 [N * bits / 32, K / G]
                                           input_scale and input_zero_point, which are not used: activations
                                           stay in floats
    AWQ                  qweight  int32 [K, N / 8], eight outputs in the order of AWQ_ORDER
                         qzeros   int32 [K / G, N / 8] likewise;  scales [K / G, N]
    GPTQ                 qweight  int32 [K * bits / 32, N], the first input in the lowest bits
                         qzeros   int32 [K / G, N * bits / 32], each word less ONES;  scales [K / G, N]
                         g_idx    int32 [K], the group of each input

and its `bias`, if it has one. Other layers are stored as usual. Numbers of 4 bits are computed as they are
stored, and so are those of 8. Float8 is expanded to the model's dtype. Where inputs are not in the order of
their groups (GPTQ's `desc_act`), weights are put in that order, and inputs when the layer computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from engine.errors import ModelRefused
from engine.model.quantised.whole_linears import GroupedLinear, Int8Linear, WholeLinear
from kernels.native.panels import packed, unpacked

WORD_BITS = 32
ONES = {4: 0x11111111, 8: 0x01010101}
"""The word of bits with a 1 in each place. Where GPTQ subtracts it, a zero of 0 borrows from the next one."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output, of eight, that each nibble of a word belongs to, the lowest first."""
Shapes = Mapping[str, tuple[int, ...]]
"""The shape of every tensor of a checkpoint."""


class StoredLinear(nn.Module):
    """Takes the place of a linear layer while the tensors of the checkpoint are read."""

    bias: nn.Parameter | None

    def __init__(
        self,
        linear: nn.Linear,
        tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
        *,
        zeros_are_whole: bool,
    ) -> None:
        """`tensors` are the shape and the dtype of each tensor that the checkpoint has of the layer.

        GPTQ's zeros are stored as they are if `zeros_are_whole` (`gptq_v2`), and otherwise less ONES.
        """
        super().__init__()
        self.outputs, self.inputs = linear.weight.shape
        self.dtype = linear.weight.dtype
        self._zeros_are_whole = zeros_are_whole
        for name, (shape, dtype) in tensors.items():
            self.register_buffer(name, torch.empty(shape, dtype=dtype))
        self.bias = linear.bias

    def unpacked(self, device: torch.device) -> nn.Module:
        """Return the layer that computes. Raises ValueError, with what is wrong, if tensors do not fit."""
        bias = None if self.bias is None else self.bias.data.to(device)
        held = {name: tensor.to(device) for name, tensor in self.named_buffers()}
        if "qweight" in held:
            return self._of_columns(held, bias)
        if held.get("weight", held["weight_scale"]).dtype == torch.float8_e4m3fn:
            return self._of_floats(held, bias)
        return self._of_rows(held, bias)

    def _of_floats(self, held: dict[str, Tensor], bias: Tensor | None) -> nn.Linear:
        scale = held["weight_scale"].float()
        weight = (held["weight"].float() * (scale if scale.ndim == 2 else scale.view(-1, 1))).to(self.dtype)
        linear = nn.Linear(self.inputs, self.outputs, bias=bias is not None, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias, requires_grad=False)
        return linear

    def _of_rows(self, held: dict[str, Tensor], bias: Tensor | None) -> WholeLinear:
        """compressed-tensors: outputs come first, and numbers have a sign."""
        scale, zero = held["weight_scale"].float(), held.get("weight_zero_point")
        words = held.get("weight_packed")
        bits, weight = 8, held.get("weight")
        if words is not None:
            stated = tuple(held["weight_shape"].tolist())
            if stated != (self.outputs, self.inputs):
                raise ValueError(f"weight_shape is {stated}; accepted: {(self.outputs, self.inputs)}")
            bits = bits_of(words.shape[1], self.inputs, "weight_packed")
            weight = numbers_of(words, self.inputs, bits)
            if zero is not None:
                zero = numbers_of(zero.t(), self.outputs, bits).t()
        if weight is None:
            raise ValueError(f"it has {', '.join(held)}; accepted: weight or weight_packed as well")
        if bits == 8 and words is not None:
            weight, zero = _signed(weight), None if zero is None else _signed(zero)
        if bits == 8 and zero is None and scale.shape[1] == 1:
            return Int8Linear(weight, scale[:, 0].to(self.dtype), bias)
        return self._grouped(weight, scale, zero, bias, bits)

    def _of_columns(self, held: dict[str, Tensor], bias: Tensor | None) -> WholeLinear:
        """AWQ and GPTQ: inputs come first, and numbers have no sign."""
        scale, words, zeros = held["scales"].float().t(), held["qweight"], held["qzeros"]
        order = None
        if "g_idx" in held:
            bits = bits_of(words.shape[0], self.inputs, "qweight")
            weight = numbers_of(words.t(), self.inputs, bits)
            zeros = zeros if self._zeros_are_whole else zeros + ONES[bits]
            zero = numbers_of(zeros, self.outputs, bits).t().short()
            weight, order = _in_order(weight, held["g_idx"].long(), scale.shape[1])
        else:
            bits = bits_of(words.shape[1], self.outputs, "qweight")
            if bits != 4:
                raise ValueError(f"qweight has numbers of {bits} bits; accepted: 4")
            weight, zero = (_awq_numbers(each, self.outputs).t().short() for each in (words, zeros))
        if bits == 8:
            weight, zero = (weight.short() - 128).to(torch.int8), zero - 128
        linear = self._grouped(weight, scale, zero, bias, bits)
        linear.order = order
        return linear

    def _grouped(
        self, weight: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None, bits: int
    ) -> GroupedLinear:
        groups = scale.shape[1]
        if self.inputs % groups or self.inputs // groups % 2:
            raise ValueError(f"{groups} groups of {self.inputs} inputs; accepted: groups of an even number")
        if (scale.shape[0], *weight.shape) != (self.outputs, self.outputs, self.inputs):
            shapes = f"numbers {tuple(weight.shape)} and scales {tuple(scale.shape)}"
            raise ValueError(f"{shapes}; accepted: those of {self.outputs} outputs, {self.inputs} inputs")
        stored = packed(weight.to(torch.uint8)) if bits == 4 else weight.to(torch.int8)
        zero = None if zero is None else zero.to(torch.int8).contiguous()
        return GroupedLinear(stored.contiguous(), scale.contiguous(), zero, bias, bits=bits, dtype=self.dtype)


def bits_of(words: int, numbers: int, name: str) -> int:
    """Return the bits of each of `numbers` numbers in so many words. Raises ValueError but for 8 and 4."""
    for bits in (8, 4):
        if words == -(-numbers * bits // WORD_BITS):
            return bits
    raise ValueError(f"{name} has {words} words for {numbers} numbers; accepted: numbers of 4 or 8 bits")


def numbers_of(words: Tensor, count: int, bits: int) -> Tensor:
    """Unpack int32 [..., W] to uint8 [..., count], the first number from the lowest bits."""
    unsigned = words.contiguous().view(torch.uint8)
    return (unsigned if bits == 8 else unpacked(unsigned))[..., :count]


def _awq_numbers(words: Tensor, count: int) -> Tensor:
    """Unpack int32 [..., count / 8] to uint8 [..., count]."""
    places = torch.tensor(AWQ_ORDER, device=words.device).argsort()
    return numbers_of(words, count, 4).view(len(words), -1, 8)[:, :, places].flatten(1)


def _signed(numbers: Tensor) -> Tensor:
    return numbers.contiguous().bitwise_xor(128).view(torch.int8)


def _in_order(weight: Tensor, group_of: Tensor, groups: int) -> tuple[Tensor, Tensor | None]:
    """Return the weight with its inputs in the order of their groups; None if they are."""
    counts = torch.bincount(group_of, minlength=groups)
    if len(counts) != groups or (counts != len(group_of) // groups).any():
        raise ValueError(f"g_idx has groups of {counts.tolist()[:8]} inputs; accepted: all of one size")
    order = group_of.argsort(stable=True)
    if torch.equal(order, torch.arange(len(order), device=order.device)):
        return weight, None
    return weight[:, order], order


def loader(directory: Path, config: Mapping[str, Any], shapes: Shapes) -> tuple[Any, dict[str, Any]]:
    """Return a model class that can load this quantised checkpoint, and its extra arguments."""
    library: Any = transformers
    stock = library.AutoConfig.from_pretrained(directory, local_files_only=True)
    # Otherwise transformers would require the packages that wrote it.
    del stock.quantization_config
    model_class = library.MODEL_FOR_CAUSAL_LM_MAPPING[type(stock)]
    found = config["quantization_config"]
    layers, dtype_of = stored_layers(shapes), _dtypes(found)

    def stored(model: nn.Module, name: str) -> StoredLinear:
        linear = model.get_submodule(name)
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"{name} is quantised but not a linear layer")
        own = {leaf: (shape, dtype_of(leaf)) for leaf, shape in layers[name].items()}
        return StoredLinear(linear, own, zeros_are_whole=found.get("checkpoint_format") == "gptq_v2")

    return with_layers_replaced(model_class, layers, stored), {"config": stock}


def with_layers_replaced(
    model_class: Any, names: Collection[str], replace: Callable[[nn.Module, str], nn.Module]
) -> Any:
    """Return a subclass whose models have what `replace` returns in the place of each of these layers.

    It gets the model and the layer's name, one after the other.

    They are replaced while the model is constructed, so no float weights are allocated for them.
    """

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, *args, **kwargs)
        for name in names:
            self.set_submodule(name, replace(self, name))

    return type(
        model_class.__name__, (model_class,), {"__init__": init, "__module__": model_class.__module__}
    )


_SCALES = (".weight_scale", ".scales")
_DTYPES = {
    "weight_packed": torch.int32,
    "weight_shape": torch.int64,
    "weight_scale": torch.float32,
    "input_scale": torch.float32,
    "input_zero_point": torch.int8,
    "qweight": torch.int32,
    "qzeros": torch.int32,
    "scales": torch.float32,
    "g_idx": torch.int32,
}


def stored_layers(shapes: Shapes) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the tensors of each layer whose weights are quantised, by the layer's name."""
    layers = {name.removesuffix(end) for name in shapes for end in _SCALES if name.endswith(end)}
    found: dict[str, dict[str, tuple[int, ...]]] = {layer: {} for layer in layers}
    for name, shape in shapes.items():
        layer, _, leaf = name.rpartition(".")
        if layer in found and leaf != "bias":
            found[layer][leaf] = shape
    return found


def _dtypes(config: Mapping[str, Any]) -> Callable[[str], torch.dtype]:
    """Return the function from a tensor's name to its dtype."""
    form = config.get("format")
    given = dict(_DTYPES)
    given["weight"] = torch.float8_e4m3fn if form == "float-quantized" else torch.int8
    given["weight_zero_point"] = torch.int32 if form == "pack-quantized" else torch.int8

    def of(leaf: str) -> torch.dtype:
        if leaf not in given:
            raise TypeError(f"a quantised layer has {leaf}; accepted: {', '.join(given)}")
        return given[leaf]

    return of


@torch.inference_mode()
def unpack_linears(directory: Path, model: nn.Module, device: torch.device) -> None:
    """Replace every StoredLinear by a layer that computes, on `device`, one after the other."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, StoredLinear):
            continue
        try:
            linear = module.unpacked(device)
            if isinstance(linear, GroupedLinear) and device.type != "cpu":
                raise ValueError(
                    f"groups of inputs on {device}; accepted: on a CPU, or a scale for each output"
                )
            model.set_submodule(name, linear)
        except (ValueError, KeyError) as error:
            raise ModelRefused(directory, name, f"cannot be read ({error})", "tensors of one form") from error
