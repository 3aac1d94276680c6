"""Layers on a CPU, with weights in the order in which products read them.

Weights are rearranged once, at load. They are replaced, so no memory is added. `kernels.native` multiplies
panels, in float32, and in bfloat16 where the processor does. Elsewhere oneDNN multiplies bfloat16: it gets
weights in its own order, which it would otherwise make in every product. In float32 a product of one row by
oneDNN's order takes a seventh longer than as torch has it, so without native ops nothing is packed.

Where all weights of the decoder layers are panels, `kernels.native` computes these layers in one call, which
passes through Python once a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.attention.attention import RotatingStep
from engine.model.attention.dry_run import LayerFacts
from engine.model.fusion.modules import (
    Attention,
    GatedMlp,
    Layer,
    LayerSequence,
    Norm,
    Product,
    Rotation,
    Scale,
)
from engine.model.fusion.structure import activation_of, is_gated, misfit
from engine.model.quantised.whole_linears import WholeEmbedding, WholeLinear
from kernels.launch import MAX_HEAD_DIM
from kernels.native import ops
from kernels.native.adapters import AdapterBlocks, AdapterParts
from kernels.native.group import Group
from kernels.native.layers import LayerWeights, LinearWeight, NativeLayers, NormWeight, Seconds
from kernels.native.ops import MAX_GROUP
from kernels.native.panels import WHOLE_GRAIN, Panels, fits, rows_of, to_panels

_ops = torch.ops.mkldnn
"""The ops that code of torch's own compiler calls; torch has no public names for them."""
TYPICAL_ROWS = 32
"""The number of rows for which oneDNN chooses the order; it suits 1 row and 256 as well as their own does."""


class PanelLinear(nn.Module):
    """A linear layer that native ops compute. A row's bits depend on that row alone."""

    bias: Tensor | None

    def __init__(self, panels: Panels, bias: Tensor | None, order: Tensor | None = None) -> None:
        """Take a weight in panels, its bias [outputs] or None, and an order of inputs."""
        super().__init__()
        _hold(self, panels)
        self.panels = panels
        self.order = order
        self.register_buffer("bias", bias)
        self.inputs = panels.inputs
        self.outputs = panels.outputs

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply [..., inputs] to [..., outputs]."""
        rows = hidden.reshape(-1, self.inputs)
        if self.order is not None:
            rows = rows.index_select(1, self.order)
        elif rows.stride(1) != 1:
            rows = rows.contiguous()
        product = ops.linear(rows, self.panels, self.bias)
        return product.view(*hidden.shape[:-1], self.outputs)


class PanelEmbedding(nn.Module):
    """An embedding that shares the panels of a linear layer."""

    def __init__(self, panels: Panels, dtype: torch.dtype, factor: float = 1.0) -> None:
        """Take panels, the model's dtype, and what rows are multiplied by."""
        super().__init__()
        _hold(self, panels)
        self.panels = panels
        self.embedding_dim = panels.inputs
        self._factor = factor
        self._dtype = dtype

    def forward(self, token_ids: Tensor) -> Tensor:
        """Embed [...] to [..., embedding_dim]."""
        rows = rows_of(self.panels, token_ids.reshape(-1), self._dtype)
        if self._factor != 1.0:
            rows *= self._factor
        return rows.view(*token_ids.shape, self.embedding_dim)


def _hold(module: nn.Module, panels: Panels) -> None:
    """Count the memory of panels as the module's."""
    for name in ("numbers", "scales", "zeros", "offsets"):
        module.register_buffer(name, getattr(panels, name))


class PackedLinear(nn.Module):
    """A linear layer in bfloat16 that oneDNN computes."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Weight [out, in], bias [out] or None."""
        super().__init__()
        self._packed = _ops._reorder_linear_weight(weight, TYPICAL_ROWS)  # noqa: SLF001
        self.register_buffer("bias", bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply [..., in] to [..., out]."""
        product: Tensor = _ops._linear_pointwise(hidden, self._packed, self.bias, "none", [], "")  # noqa: SLF001
        return product


@torch.inference_mode()
def pack_linears(model: nn.Module) -> None:
    """Replace the linear layers of a model on a CPU for which there is a faster order, one after the other.

    An embedding that shares a weight is replaced too. A weight that anything else shares is left as it is.
    """
    _pack_whole(model)
    for names in modules_by_weight(model):
        modules = [model.get_submodule(name) for name in names]
        linears = [module for module in modules if type(module) is nn.Linear]
        others = [module for module in modules if type(module) is not nn.Linear]
        if len(linears) != 1:
            continue
        weight, bias = linears[0].weight, linears[0].bias
        if fits(weight.shape[1], weight.dtype) and all(type(module) is nn.Embedding for module in others):
            panels = to_panels(weight)
            for name, module in zip(names, modules, strict=True):
                is_linear = module is linears[0]
                model.set_submodule(
                    name, PanelLinear(panels, bias) if is_linear else PanelEmbedding(panels, weight.dtype)
                )
        elif not others and packs(weight):
            model.set_submodule(names[0], PackedLinear(weight, bias))


def _pack_whole(model: nn.Module) -> None:
    named = list(model.named_modules())
    embeddings = {
        id(each.weight): (name, each.factor) for name, each in named if isinstance(each, WholeEmbedding)
    }
    for name, module in named:
        if isinstance(module, WholeLinear) and is_native_linear(module):
            panels = module.panels()
            model.set_submodule(name, PanelLinear(panels, module.bias, module.order))
            if id(module.weight) in embeddings:
                place, factor = embeddings[id(module.weight)]
                model.set_submodule(place, PanelEmbedding(panels, module.dtype, factor))


def is_native_linear(module: nn.Linear | WholeLinear) -> bool:
    """Return whether native ops multiply a linear layer's weights on this processor."""
    if isinstance(module, WholeLinear):
        return module.inputs % WHOLE_GRAIN == 0 and fits(module.inputs, module.dtype)
    return fits(module.in_features, module.weight.dtype)


def packs(weight: Tensor) -> bool:
    """Return whether oneDNN multiplies a weight faster in its own order, on this processor."""
    if not (torch._C._has_mkldnn and _ops._is_mkldnn_bf16_supported()):  # noqa: SLF001
        return False
    return weight.dtype == torch.bfloat16


def modules_by_weight(model: nn.Module) -> list[list[str]]:
    """Return the names of the modules that have each weight of two dimensions."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, module in model.named_modules():
        for weight in module.parameters(recurse=False):
            if weight.ndim == 2:
                names[id(weight)].append(name)
    return list(names.values())


class NativeSequence(nn.Module):
    """All decoder layers in one native call.

    It replaces a `LayerSequence`, whose modules it keeps for their weights.
    """

    def __init__(self, stock: LayerSequence) -> None:
        """`stock` is one that `is_native` accepts."""
        super().__init__()
        self.layers = stock.layers
        self._adapted_rows: Callable[[], AdapterBlocks | None] = _no_rows
        self._kinds = tuple(sorted(set(stock.kinds)))
        weights = [
            _weights(layer, self._kinds.index(kind))
            for layer, kind in zip(stock.layers, stock.kinds, strict=True)
        ]
        first: Any = stock.layers[0]
        self._native = NativeLayers(weights, first.attention.output.outputs, first.attention.head_split[0])

    def forward(
        self, hidden: Tensor, residual: Tensor, rotations: Mapping[str, Rotation], step: RotatingStep
    ) -> Tensor:
        """Add to `residual`, whose norm is `hidden` [T, H]; return the norm of the sum, in its place.

        Only rows that make logits are defined then, unless `compute_all` was called.
        """
        self._native.run(
            hidden,
            residual,
            [rotations[kind] for kind in self._kinds],
            step.paged(len(self.layers)),
            self._adapted_rows(),
        )
        return hidden

    def adapt(
        self, parts: Mapping[tuple[int, str], AdapterParts], rows: Callable[[], AdapterBlocks | None]
    ) -> None:
        """Add adapters to linear layers, by layer and name (`qkv`, `output`, `gate_up` or `down`).

        `rows` returns the rows that have one in the step under way.
        """
        for (index, name), own in parts.items():
            self._native.set_adapters(index, name, own)
        self._adapted_rows = rows

    def join(self, group: Group) -> None:
        """Add up what each layer adds to the residual with the parts of other processes."""
        self._native.join(group)

    def compute_all(self) -> None:
        """Compute all rows, whichever make logits, for a stage of a pipeline that is not the last."""
        self._native.compute_all()

    def count_time(self, seconds: Seconds | None) -> None:
        """Add the time of steps to `seconds` from now on; None: no longer."""
        self._native.count_time(seconds)


def _no_rows() -> None:
    return None


def can_be_native(module: Any, layers: LayerFacts) -> bool:
    """Return whether native ops could compute all layers of a `...ForCausalLM`, once fused, and its head."""
    if misfit(module, layers) or not _can_attend(layers):
        return False
    activation = activation_of(module.config)
    if not all(is_gated(layer.mlp, activation) for layer in module.model.layers):
        return False
    linears = [each for each in module.modules() if isinstance(each, Product)]
    return all(is_native_linear(each) and getattr(each, "order", None) is None for each in linears)


def is_native(sequence: LayerSequence, layers: LayerFacts) -> bool:
    """Return whether the parts of all layers, whose weights are packed, are those that native layers have."""
    return _can_attend(layers) and all(_is_native_layer(layer) for layer in sequence.layers)


def _can_attend(layers: LayerFacts) -> bool:
    group = layers.num_q_heads // layers.num_kv_heads
    return group <= MAX_GROUP and layers.head_dim <= MAX_HEAD_DIM


def _is_native_layer(layer: Any) -> bool:
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(mlp, GatedMlp):
        return False
    linears = attention.qkv, attention.output, mlp.gate_up, mlp.down
    return all(isinstance(linear, PanelLinear) and linear.order is None for linear in linears)


def _weights(layer: Any, rotation: int) -> LayerWeights:
    assert isinstance(layer, Layer)
    attention: Attention = layer.attention
    mlp: Any = layer.mlp
    norms = attention.norms
    heads = [
        None if weight is None else NormWeight(weight, norms.eps, norms.unit_offset)
        for weight in (norms.query, norms.key)
    ]
    return LayerWeights(
        qkv=_linear(attention.qkv),
        output=_linear(attention.output),
        gate_up=_linear(mlp.gate_up),
        down=_linear(mlp.down),
        query_norm=heads[0],
        key_norm=heads[1],
        after_attention=_norm_or_none(layer.after_attention),
        attention_factor=_factor(layer.after_attention),
        mlp_norm=_norm(layer.mlp_norm),
        after_mlp=_norm_or_none(layer.after_mlp),
        mlp_factor=_factor(layer.after_mlp),
        next_norm=_norm(layer.next_norm),
        softmax=attention.softmax,
        rotation=rotation,
        activation=mlp.activation,
    )


def _linear(linear: Any) -> LinearWeight:
    return LinearWeight(linear.panels, linear.bias)


def _norm(norm: Norm) -> NormWeight:
    return NormWeight(norm.weight, norm.eps, norm.unit_offset)


def _norm_or_none(after: nn.Module) -> NormWeight | None:
    return _norm(after) if isinstance(after, Norm) else None


def _factor(after: nn.Module) -> float:
    return after.factor if isinstance(after, Scale) else 1.0
