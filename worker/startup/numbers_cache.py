"""Keeps what weights were rounded to in 4 bits, so that the next start need not read and round them.

There is one safetensors file for each `NumbersKey`. It is written where the disk has room for it twice, whole
or not at all. The MOST_FILES that were used last are left, and others removed.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import structlog
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

import engine.model.quantised
from engine.model.fingerprint import weights_digest
from engine.model.quantised.kept_numbers import KeptOf
from engine.model.quantised.quantisation import Quantisation
from engine.model.quantised.whole_linears import GroupedLinear, Int8Linear, WholeLinear
from engine.proof.versions import code_digest
from worker.startup.kept_files import file_name

log = structlog.get_logger()

FOLDER, SUFFIX, PART = "numbers", ".safetensors", ".part"
MOST_FILES = 4
ABANDONED_S = 3600.0
TENSORS = ("weight", "scale", "zero")


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
            with safe_open(self.path, "pt") as file:
                if (file.metadata() or {}).get("key") != self._key:
                    raise ValueError("it belongs to another model")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- no mapping
            linears = {name: _linear(each, self._dtype) for name, each in _by_layer(tensors).items()}
            os.utime(self.path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            log.warning("numbers_ignored", path=str(self.path), reason=f"{type(error).__name__}: {error}")
            return None
        log.info("numbers_found", path=str(self.path), layers=len(linears))
        return linears

    def write(self, linears: Mapping[str, WholeLinear]) -> None:
        """Keep layers. Logs `numbers_not_kept` if that is not possible."""
        tensors = {
            f"{name}.{leaf}": tensor
            for name, linear in linears.items()
            for leaf in TENSORS
            if (tensor := getattr(linear, leaf)) is not None
        }
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
        except (OSError, SafetensorError) as error:
            log.warning("numbers_not_kept", path=str(self.path), reason=str(error))

    def _write(self, tensors: dict[str, Tensor]) -> None:
        """Write the file whole or not at all: other workers may read or write the same one."""
        part = self.path.with_suffix(f".{os.getpid()}{PART}")
        try:
            save_file(tensors, part, {"key": self._key})
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)


def _by_layer(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        layer, _, leaf = name.rpartition(".")
        layers.setdefault(layer, {})[leaf] = tensor
    return layers


def _linear(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> WholeLinear:
    weight, scale = tensors["weight"], tensors["scale"]
    if scale.ndim == 1:
        return Int8Linear(weight, scale, None)
    return GroupedLinear(weight, scale, tensors["zero"], None, bits=4, dtype=dtype)


def _leave_newest(folder: Path) -> None:
    files: list[tuple[float, Path]] = []
    for path in folder.iterdir():
        used_at = path.stat().st_mtime
        if path.suffix == SUFFIX:
            files.append((used_at, path))
        elif path.suffix == PART and used_at < time.time() - ABANDONED_S:
            path.unlink(missing_ok=True)  # its writer was killed
    for _, path in sorted(files)[:-MOST_FILES]:
        path.unlink(missing_ok=True)
