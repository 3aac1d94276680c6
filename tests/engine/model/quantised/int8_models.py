"""Models with int8 weights, and transformers' own with the float weights that those stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine.execution.model_runner import ModelRunner
from engine.model.model import Model, load_model
from engine.model.quantised.quantisation import Quantisation
from engine.model.quantised.rounding import quantise
from tests.engine.ragged import Piece, make_batch, poisoned_pool, shuffled_tables

CPU = torch.device("cpu")
PROMPT = list(range(3, 40))
BLOCK_SIZE = 4


def load_int8(directory: Path, dtype: torch.dtype = torch.float32, *, deterministic: bool = False) -> Model:
    return load_model(directory, dtype, CPU, deterministic=deterministic, quantisation=Quantisation.INT8)


def logits_of(model: Model) -> Tensor:
    (table,), _ = shuffled_tables([len(PROMPT)], BLOCK_SIZE, 0)
    runner = ModelRunner(model, poisoned_pool(model, BLOCK_SIZE, 160))
    return runner.forward(make_batch([Piece(0, PROMPT, table)], BLOCK_SIZE))[0]


def stock_logits(directory: Path, change: Callable[[Any], None] | None = None) -> Tensor:
    """Return the logits of transformers' own model in float32, whose weights `change` has changed."""
    library: Any = transformers
    model = library.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    if change is not None:
        change(model)
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([PROMPT])).logits[0, -1]
    return logits


def expected_logits(directory: Path) -> Tensor:
    """Return transformers' own model with the weights int8 stands for in all linear layers but the last."""

    def change(model: Any) -> None:
        for module in model.modules():
            if isinstance(module, (nn.Linear, Conv1D)) and module is not model.get_output_embeddings():
                weight = module.weight.data.t() if isinstance(module, Conv1D) else module.weight.data
                quantised, scale = quantise(weight)
                weight.copy_(quantised * scale[:, None])

    return stock_logits(directory, change)
