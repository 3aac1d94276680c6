"""Whether weights and KV blocks fit into the memory of a machine or container, before they are loaded.

Without these checks the kernel would kill the worker half way through its start, without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engine.calibration.dtype import checkpoint_dtype, name_of
from engine.calibration.pool_size import MEBIBYTE
from engine.model.checkpoint import check_weights, weight_bytes

_STORED_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def loaded_bytes(directory: Path, config: Mapping[str, Any], dtype: torch.dtype) -> int:
    """Return the memory that a checkpoint's weights take in `dtype`; weights in 8 bits stay as they are.

    Raises ModelRefused for files that are missing or end too early.
    """
    check_weights(directory)
    stored = _STORED_BYTES.get(checkpoint_dtype(config))
    if stored is None or config.get("quantization_config"):
        return weight_bytes(directory)
    return weight_bytes(directory) * dtype.itemsize // stored


def check_model_fits(
    directory: Path,
    dtype: torch.dtype,
    weights: int,
    pool: int,
    available: int,
    draft: Path | None = None,
) -> None:
    """Raise ValueError unless so many bytes of weights and of KV fit into the bytes that are available.

    They are those of the model and of a draft model, if there is one.
    """
    if weights + pool <= available:
        return
    least = _mebibytes(weights + pool)
    accepted = f"{least} MiB or more"
    if available - weights >= MEBIBYTE:
        accepted += f", or --kv-memory-mb up to {(available - weights) // MEBIBYTE}"
    models = f"--model {directory.name}" + (f" with --draft-model {draft.name}" if draft else "")
    raise ValueError(
        f"{models} takes {_mebibytes(weights)} MiB of weights in {name_of(dtype)} and "
        f"{_mebibytes(pool)} MiB of KV, but {available // MEBIBYTE} MiB of memory are available to this "
        f"process; accepted: {accepted}"
    )


def check_blocks_fit(block_bytes: int, num_blocks: int, available: int) -> None:
    """Raise ValueError unless so many blocks fit into the bytes that are available."""
    needed = num_blocks * block_bytes
    if needed > available:
        raise ValueError(
            f"--num-blocks is {num_blocks}, which take {_mebibytes(needed)} MiB, but {available // MEBIBYTE} "
            f"MiB of memory are available to this process; accepted: 1 to {available // block_bytes}"
        )


def _mebibytes(num_bytes: int) -> int:
    return -(-num_bytes // MEBIBYTE)
