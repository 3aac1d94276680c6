"""Observes what each layer of a loaded model asks of attention, by one step without a pool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import ModelRefused
from engine.model.attention.attention import LayerOrder
from kernels.paged_attention.arguments import Softmax

DRY_RUN_TOKENS = 2
STEP_ERRORS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""Errors of a model's own code that takes its input for something else."""


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """The heads of all layers, and each layer's softmax."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    softmaxes: tuple[Softmax, ...]


class _Step:
    """Stands in for a step: records what each layer asks for and returns zeros."""

    def __init__(self) -> None:
        self.order = LayerOrder()
        self.shapes: set[tuple[int, int, int, int]] = set()
        self.softmaxes: list[Softmax] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, softmax: Softmax) -> Tensor:
        self.order.enter(layer)
        self.shapes.add((query.shape[1], key.shape[1], key.shape[2], value.shape[2]))
        self.softmaxes.append(softmax)
        return torch.zeros_like(query)


def dry_run(directory: Path, module: Any, device: torch.device) -> LayerFacts:
    """Run one step. Raises ModelRefused unless every layer attends once, all with the same heads."""
    step = _Step()
    tokens = torch.zeros(1, DRY_RUN_TOKENS, dtype=torch.int64, device=device)
    positions = torch.arange(DRY_RUN_TOKENS, device=device)[None]
    rows = torch.tensor([DRY_RUN_TOKENS - 1], device=device)
    try:
        with torch.inference_mode():
            logits = module(
                input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=rows, step=step
            ).logits
    except (AssertionError, TypeError) as error:
        raise _bypassed(directory, str(error)) from error
    except STEP_ERRORS as error:
        raise uncomputable(directory, "a step", error) from error
    num_layers = getattr(module.config, "num_hidden_layers", None)
    if step.order.next_layer != num_layers:
        raise _bypassed(directory, f"{step.order.next_layer} of {num_layers} layers called it")
    if logits.shape[:2] != (1, 1):
        raise ModelRefused(directory, "logits", f"have shape {list(logits.shape)}", "only the rows asked for")
    (num_q_heads, num_kv_heads, head_dim, value_dim), *others = step.shapes
    if others or value_dim != head_dim or num_q_heads % num_kv_heads:
        raise ModelRefused(
            directory, "attention heads", f"are {sorted(step.shapes)}", "the same sizes in all layers"
        )
    return LayerFacts(num_q_heads, num_kv_heads, head_dim, tuple(step.softmaxes))


def uncomputable(directory: Path, what: str, error: Exception) -> ModelRefused:
    """Return the refusal of a model whose own code fails."""
    return ModelRefused(
        directory,
        what,
        f"cannot be computed ({type(error).__name__}: {error})",
        "a model that takes tokens, and the position of each",
    )


def _bypassed(directory: Path, found: str) -> ModelRefused:
    return ModelRefused(
        directory,
        "attention",
        f"does not go through the attention function ({found})",
        "one call for each layer",
    )
