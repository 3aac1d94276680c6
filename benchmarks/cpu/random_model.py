"""Llamas with random weights, so that a table can be printed without a download."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.gpu.bench import write_model
from benchmarks.gpu.sizes import Heads, ModelShape

MODELS = Path(__file__).parents[2] / ".baton" / "models"
SHAPE = ModelShape("random-llama-200m", 1024, 12, Heads(64, 16, 4), 2816, 32000, 4096, element_bytes=2)
WIDE = ModelShape("random-llama-500m", 2048, 8, Heads(128, 16, 2), 6144, 32000, 4096, element_bytes=2)
"""Eight query heads attend with each KV head, where SHAPE has four."""
SHAPES = {shape.name: shape for shape in (SHAPE, WIDE)}
SEED = 0


def random_model(shape: ModelShape = SHAPE, models: Path = MODELS) -> Path:
    """Return the folder of the checkpoint, in bfloat16. It is written if it does not exist."""
    folder = models / shape.name
    if folder.exists():
        return folder
    models.mkdir(parents=True, exist_ok=True)
    library: Any = transformers
    with tempfile.TemporaryDirectory(dir=models) as workspace:
        target = Path(workspace) / shape.name
        write_model(shape, target)
        config = library.AutoConfig.from_pretrained(target, local_files_only=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            model = library.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(target)
        target.rename(folder)
    return folder
