"""Tries a model type: makes a tiny checkpoint, and loads and proves it as --prove-model does."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from engine.errors import ModelRefused
from engine.model.allow_list import ARCHITECTURES, read_config
from engine.model.model import load_model
from engine.model.unlisted import check_unlisted
from engine.proof.proving import load_proven
from tools.try_models.tiny import tiny_config, write_checkpoint

DTYPE = torch.float64
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a model type is served, and if not, the reason."""

    model_type: str
    is_served: bool
    reason: str = ""


def try_type(model_type: str) -> Outcome:
    """Refuse a type by its default config, as far as that says it; otherwise try a tiny model of it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            if model_type not in ARCHITECTURES:
                _check_default(model_type, Path(folder))
            return _try_tiny(model_type, Path(folder))
        except ModelRefused as refusal:
            reason = f"`{refusal.field}` {refusal.found}; accepted: {refusal.accepted}"
            return Outcome(model_type, False, reason.replace(folder, "the folder"))


def _check_default(model_type: str, directory: Path) -> None:
    try:
        CONFIG_MAPPING[model_type]().save_pretrained(directory)
    except Exception:  # noqa: BLE001 - the tiny config may be valid where the default is not
        return
    check_unlisted(directory, read_config(directory, unlisted=True))


def _try_tiny(model_type: str, directory: Path) -> Outcome:
    try:
        write_checkpoint(tiny_config(model_type), directory)
    except Exception as error:  # noqa: BLE001 - whatever a class raises that does not fit the sizes
        first = (str(error).splitlines() or [""])[0][:80]
        return Outcome(model_type, False, f"not tried: cannot be made tiny ({type(error).__name__}: {first})")
    load: Any = partial(load_model, directory, DTYPE, torch.device("cpu"), unlisted=True)
    load_proven(load, fused=False, block_size=BLOCK_SIZE)
    return Outcome(model_type, True)
