"""Settings of small engines, for tests of how they are built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.building.settings import EngineSettings


def small_settings(model: Path, **other: Any) -> EngineSettings:
    """Return settings for a CPU in float32, with as many blocks as fit, but for `other` ones."""
    small = EngineSettings(
        model=model,
        dtype=torch.float32,
        device=torch.device("cpu"),
        block_size=16,
        num_blocks=None,
        kv_memory_mb=None,
        max_num_seqs=4,
        token_budget=32,
        policy="slack",
    )
    return replace(small, **other)
