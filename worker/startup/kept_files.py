"""JSON files that a worker keeps for the next start of one like it, in a folder that may be lost any time."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import structlog
import torch

from runtime.process.processor import processor_name

log = structlog.get_logger()

Kept = TypeVar("Kept")


def file_name(key: Mapping[str, Any]) -> str:
    """Return the name of the file for a key."""
    text = json.dumps(key, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest() + ".json"


def kept(path: Path, parse: Callable[[Any], Kept], ignored: str) -> Kept | None:
    """Return what `parse` makes of a file's document; None if there is no file, or none that can be used.

    In that case the event `ignored` is logged.
    """
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        log.warning(ignored, path=str(path), reason=f"{type(error).__name__}: {error}")
        return None


def keep(path: Path, document: Mapping[str, Any], failed: str) -> None:
    """Write a file whole or not at all: another worker may read or write the same one.

    Logs the event `failed` if it cannot be written.
    """
    text = json.dumps(document)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=path.stem, delete=False
        ) as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError as error:
        log.warning(failed, path=str(path), reason=str(error))


def device_name(device: torch.device) -> str:
    """Return the name of the processor and their number: a sweep is valid for no other."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor_name()} x {os.cpu_count()}"
