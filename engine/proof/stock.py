"""Runs stock transformers, with its own attention and no paging, and measures its own rounding errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.model.attention.attention import ATTENTION
from engine.model.model import ModelFacts
from engine.proof.layers import Layers, decoder_layers, rounded_differently, watched
from engine.proof.sequences import Sequences
from engine.proof.tolerance import distances

LOGITS = "the logits"
OWN = "eager"
"""transformers' name for a model's own attention, as it is written down: without masks or soft caps that
another implementation leaves out."""
NUM_MOVED = 2
NUM_RUNS = 1 + NUM_MOVED

Outputs = dict[str, Tensor]
"""Rows [total, width] of all sequences: what each decoder layer adds, by its name, and then LOGITS."""


@dataclass(frozen=True, slots=True)
class Stock:
    """The outputs of transformers for `sequences`, and how far rounding moves each row, [total] by name."""

    sequences: Sequences
    outputs: Outputs
    noise: dict[str, Tensor]
    is_mixture: bool
    """Whether the model has experts."""


@torch.inference_mode()
def run_stock(module: Any, facts: ModelFacts, sequences: Sequences, step_done: Callable[[], None]) -> Stock:
    """Compute sequences by the model's own attention; `module` is as transformers loaded it.

    Calls `step_done` NUM_RUNS times.
    """
    layers = decoder_layers(facts, module)
    with own_experts(module), _own_attention(module):
        outputs = _compute(module, layers, sequences)
        step_done()
        noise = {name: torch.zeros(len(rows), dtype=torch.float64) for name, rows in outputs.items()}
        for seed in range(NUM_MOVED):
            with rounded_differently(layers, seed):
                moved = _compute(module, layers, sequences)
            for name, rows in outputs.items():
                noise[name] = torch.maximum(noise[name], distances(moved[name], rows))
            step_done()
    return Stock(sequences, outputs, noise, _has_experts(module))


def _has_experts(module: Any) -> bool:
    return any("expert" in f"{name} {type(part).__name__}".lower() for name, part in module.named_modules())


@contextmanager
def own_experts(module: Any) -> Iterator[None]:
    """Let the model use its own loop over experts, if it has any."""
    experts = getattr(module.config, "_experts_implementation", None)
    if experts is None:
        yield
        return
    module.set_experts_implementation(OWN)
    try:
        yield
    finally:
        module.set_experts_implementation(experts)


@contextmanager
def _own_attention(module: Any) -> Iterator[None]:
    module.set_attn_implementation(OWN)
    try:
        yield
    finally:
        module.set_attn_implementation(ATTENTION)


def _compute(module: Any, layers: Layers, sequences: Sequences) -> Outputs:
    """Compute each sequence alone and whole."""
    device = next(module.parameters()).device
    logits = []
    with watched(layers) as added:
        for tokens, positions in zip(sequences.token_ids, sequences.positions, strict=True):
            own = {"input_ids": tokens[None].to(device), "position_ids": positions[None].to(device)}
            logits.append(module(**own, use_cache=False).logits[0].cpu())
    return {name: torch.cat(rows) for name, rows in added.items()} | {LOGITS: torch.cat(logits)}
