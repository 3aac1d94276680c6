"""Settings of engines that are measured on a CPU."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.model.model import DTYPES
from engine.settings import EngineSettings
from scheduling.policies import DEFAULT

BLOCK_SIZE = 16


def cpu_settings(model: Path, dtype: str, num_tokens: int, *, max_num_seqs: int) -> EngineSettings:
    """Return settings with KV blocks for `num_tokens`, and otherwise the defaults of a worker."""
    return EngineSettings(
        model=model,
        dtype=DTYPES[dtype],
        device=torch.device("cpu"),
        block_size=BLOCK_SIZE,
        num_blocks=num_tokens // BLOCK_SIZE,
        kv_memory_mb=None,
        max_num_seqs=max_num_seqs,
        token_budget=256,
        policy=DEFAULT,
    )
