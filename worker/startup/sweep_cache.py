"""Keeps what the start-up sweep measured, so that the next start of the same worker here need not measure it.

One JSON file for each `SweepKey`. What the machine does today may differ from then: the steps that are served
say so (`scheduling.cost.cost_estimator`). Deleting the folder has everything measured anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
import torch

from engine.calibration.sweep import Sweep
from scheduling.cost.cost_model import Sample, StepShape, is_usable

log = structlog.get_logger()

FORMAT = 1
CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class SweepKey:
    """All that a measured step depends on."""

    fingerprint: str
    device: str
    dtype: str
    deterministic: bool
    threads: int
    block_size: int
    num_blocks: int
    max_num_seqs: int
    token_budget: int
    cuda_graphs: bool
    fusion: bool
    torch: str = torch.__version__

    @property
    def file_name(self) -> str:
        return hashlib.blake2b(_text_of(self).encode(), digest_size=12).hexdigest() + ".json"


def device_name(device: torch.device) -> str:
    """The processor, and how many there are: a sweep holds for no other."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()} x {os.cpu_count()}"


def _processor() -> str:
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def cached_sweep(folder: Path, key: SweepKey, measure: Callable[[], Sweep]) -> Sweep:
    """Return the sweep that is stored under this key; measure it now if there is none that can be read.

    Only a whole sweep is stored: another start may have the time to finish a cut one.
    """
    path = folder / key.file_name
    samples = _load(path, key)
    if samples is not None:
        return Sweep(samples)
    swept = measure()
    if swept.is_whole:
        _store(path, key, swept.samples)
    else:
        log.warning("sweep_cut_short", samples=len(swept.samples), reason="steps take long on this machine")
    return swept


def _load(path: Path, key: SweepKey) -> list[Sample] | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        log.warning("sweep_cache_ignored", path=str(path), reason=str(error))
        return None
    try:
        samples = _parse(text, key)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        log.warning("sweep_cache_ignored", path=str(path), reason=f"{type(error).__name__}: {error}")
        return None
    log.info("sweep_cache_used", path=str(path), samples=len(samples))
    return samples


def _parse(text: str, key: SweepKey) -> list[Sample]:
    document = json.loads(text)
    if document["format"] != FORMAT or document["key"] != asdict(key):
        raise ValueError("it is of another worker")
    samples = [(StepShape(*shape), float(seconds)) for *shape, seconds in document["samples"]]
    if not samples or not all(is_usable(shape, seconds) for shape, seconds in samples):
        raise ValueError("it holds steps that cannot have been")
    return samples


def _store(path: Path, key: SweepKey, samples: list[Sample]) -> None:
    """Whole or not at all: another worker may read it meanwhile, or write the same."""
    rows = [[*shape.sizes, shape.num_decodes, seconds] for shape, seconds in samples]
    text = json.dumps({"format": FORMAT, "key": asdict(key), "samples": rows})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=path.stem, delete=False
        ) as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError as error:
        log.warning("sweep_not_cached", path=str(path), reason=str(error))


def _text_of(key: SweepKey) -> str:
    return json.dumps(asdict(key), sort_keys=True)
