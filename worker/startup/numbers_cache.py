"""Keeps the numbers that weights were rounded to in 4 bits, in a file for each `NumbersKey`.

A file is written where the disk has room for it twice, whole or not at all. The MOST_FILES that were used
last are left, and others removed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import structlog
import torch
from torch import Tensor

import engine.model.quantised
from engine.model.fingerprint import weights_digest
from engine.model.quantised.kept_numbers import KeptOf, load, save, tensors_of
from engine.model.quantised.quantisation import Quantisation
from engine.model.quantised.whole_linears import WholeLinear
from engine.proof.versions import code_digest
from worker.startup.kept_files import file_name

log = structlog.get_logger()

FOLDER, SUFFIX, PART = "numbers", ".safetensors", ".part"
MOST_FILES = 4
ABANDONED_S = 3600.0
"""A part that is this much older than the newest file was left by a writer that was killed."""


@dataclass(frozen=True, slots=True)
class NumbersKey:
    """Everything that the numbers of a model depend on."""

    weights: str
    dtype: str
    code: str


def numbers_in(cache: Path) -> KeptOf:
    """Return what keeps the numbers of models below a folder."""
    return partial(_numbers_file, cache / FOLDER)


def _numbers_file(folder: Path, model: Path, dtype: torch.dtype) -> NumbersFile:
    weights = weights_digest(model, None, Quantisation.INT4)
    code = code_digest([Path(engine.model.quantised.__path__[0])])
    return NumbersFile(folder, NumbersKey(weights, str(dtype), code), dtype)


class NumbersFile:
    """The file in `folder` that has the numbers for a key, if there is one."""

    def __init__(self, folder: Path, key: NumbersKey, dtype: torch.dtype) -> None:
        self.path = folder / Path(file_name(asdict(key))).with_suffix(SUFFIX)
        self._key = json.dumps(asdict(key), sort_keys=True)
        self._dtype = dtype

    def read(self) -> dict[str, WholeLinear] | None:
        """Return the layers, without their biases; None if there are none that can be used."""
        try:
            if self.path.stat().st_uid != os.geteuid():
                raise ValueError("it belongs to another user")
            linears = load(self.path, self._key, self._dtype)
            os.utime(self.path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("numbers_ignored", path=str(self.path), reason=f"{type(error).__name__}: {error}")
            return None
        log.info("numbers_found", path=str(self.path), layers=len(linears))
        return linears

    def write(self, linears: Mapping[str, WholeLinear]) -> None:
        """Keep layers. Logs `numbers_not_kept` if that is not possible."""
        tensors = tensors_of(linears)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            needed, free = (
                sum(each.nbytes for each in tensors.values()),
                shutil.disk_usage(self.path.parent).free,
            )
            if free < 2 * needed:
                raise OSError(f"{free} bytes are free; accepted: {2 * needed}, twice what is written")
            self._write(tensors)
            _leave_newest(self.path.parent)
        except OSError as error:
            log.warning("numbers_not_kept", path=str(self.path), reason=str(error))

    def _write(self, tensors: dict[str, Tensor]) -> None:
        """Write the file whole or not at all: other workers may read or write the same one."""
        part = self.path.with_suffix(f".{os.getpid()}{PART}")
        try:
            save(tensors, part, self._key)
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)


def _leave_newest(folder: Path) -> None:
    by_use = sorted((path.stat().st_mtime, path) for path in folder.iterdir())
    newest_at = by_use[-1][0]
    files = [path for _, path in by_use if path.suffix == SUFFIX]
    abandoned = [path for at, path in by_use if path.suffix == PART and at < newest_at - ABANDONED_S]
    for path in (*files[:-MOST_FILES], *abandoned):
        path.unlink(missing_ok=True)
