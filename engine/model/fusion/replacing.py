"""Replaces the layers of a loaded model one after another, each compared with what it replaces."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from engine.kv.kv_pool import BlockLayout, KVPool
from engine.model.attention.dry_run import LayerFacts
from engine.model.fusion.cpu_layers import NativeSequence, is_native, pack_linears
from engine.model.fusion.modules import Decoder, LayerSequence
from engine.model.fusion.probe import LAYER_TOLERANCES, MODEL_TOLERANCES, Probe, check_same
from engine.model.fusion.structure import StockRotary, activation_of, fused_layer, fused_norm, misfit

PROBE_BLOCK = 16


@dataclass(frozen=True, slots=True)
class FusionReport:
    """How many modules of each class were replaced by fused ones; if none, the reason."""

    replaced: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    is_native: bool = False
    """Whether native ops compute all layers on a CPU; each row then has its bits from that row alone."""

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.replaced.items()))
        return f"replaced {counts}" if counts else f"nothing replaced: {self.reason}"


NOT_FUSED = FusionReport(reason="not asked for")


@torch.no_grad()
def fuse(module: Any, layers: LayerFacts, *, native: bool = True) -> FusionReport:
    """Fuse the parts that fit of a loaded `...ForCausalLM`, in place; `layers` were observed by a dry run.

    On a CPU linear layers are packed, and layers run in one native call if that fits them and `native`.

    At most one layer's weights are in memory twice. Raises FusionDiffers if a fused part differs from its
    original; the module cannot be used then.
    """
    reason = misfit(module, layers)
    if reason:
        return FusionReport(reason=reason)
    before = _classes(module)
    weight, embedding = module.model.norm.weight, module.model.embed_tokens
    layout = BlockLayout(
        len(layers.softmaxes), PROBE_BLOCK, layers.num_kv_heads, layers.head_dim, weight.dtype
    )
    pool = KVPool(layout, 2, weight.device)
    try:
        probe = Probe(pool, len(embedding.weight), embedding.embedding_dim)
        embedded, logits = probe.before_layers(module), probe.logits(module)
        module.model = _fused_decoder(module.model, module.config, layers, probe)
        if weight.device.type == "cpu":
            pack_linears(module)
            if native and is_native(module.model.layers, layers):
                module.model.layers = NativeSequence(module.model.layers)
        check_same("the embedding", probe.embedded(module.model), embedded, LAYER_TOLERANCES[weight.dtype])
        check_same("the model's output", probe.logits(module), logits, MODEL_TOLERANCES[weight.dtype])
    finally:
        pool.close()
    is_whole = isinstance(module.model.layers, NativeSequence)
    return FusionReport(dict(before - _classes(module)), is_native=is_whole)


def _fused_decoder(stock: Any, config: Any, layers: LayerFacts, probe: Probe) -> Decoder:
    rotary = StockRotary(stock, config)
    rotations = rotary.tables(config.max_position_embeddings)
    in_probe = rotations(probe.positions)
    tolerance = LAYER_TOLERANCES[stock.norm.weight.dtype]
    norms = [fused_norm(norm) for norm in (*(layer.input_layernorm for layer in stock.layers), stock.norm)]
    for index, kind in enumerate(rotary.kinds):
        want = probe.added_by_stock(stock.layers[index], index, rotary(probe.positions, kind))
        layer = fused_layer(stock.layers[index], index, layers, activation_of(config), norms[index + 1])
        got = probe.added_by_fused(layer, index, norms[index], in_probe[kind])
        check_same(f"layer {index}", got, want, tolerance)
        stock.layers[index] = layer
        _release_cached(stock.embed_tokens.weight.device)
    factor = getattr(stock, "embedding_multiplier", 1.0)
    sequence = LayerSequence(stock.layers, rotary.kinds)
    return Decoder(stock.embed_tokens, factor, rotations, norms[0], sequence)


def _release_cached(device: torch.device) -> None:
    """Give the originals' memory back: its pieces do not fit the next layer's products, nor the KV pool."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _classes(module: nn.Module) -> Counter[str]:
    return Counter(type(each).__name__ for each in module.modules())
