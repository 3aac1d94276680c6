"""Finds the GGUF file in the folder of a checkpoint, and reads what it says of itself."""

from __future__ import annotations

from pathlib import Path

from engine.errors import ModelRefused
from gguf_model.architectures import GgufModel, read_model
from gguf_model.errors import GgufUnusable
from gguf_model.folder import WEIGHTS
from gguf_model.header import read_header


def has_gguf(directory: Path) -> bool:
    """Return whether a checkpoint's folder has its weights in a GGUF file."""
    return (directory / WEIGHTS).is_file()


def read_gguf(directory: Path) -> GgufModel:
    """Return what the file in a folder says of itself. Raises ModelRefused."""
    try:
        return read_model(read_header(directory / WEIGHTS))
    except GgufUnusable as error:
        raise ModelRefused(directory, WEIGHTS, error.fault, error.accepted) from error
