"""Keeps what the start-up sweep measured, so the next start of the same worker need not measure it again.

There is one JSON file for each `SweepKey`. A sweep is measured anew where small steps now take far less than
it says: it was measured beside other work, and an SLO that this worker could meet would be refused for good.
If steps now take longer, perhaps only the start is busy: the cost model adapts to the steps that are served
(`scheduling.cost.cost_estimator`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog
import torch

from engine.calibration.sweep import Sweep
from scheduling.cost_model import Sample, StepShape, is_usable
from worker.startup.kept_files import file_name, keep, kept

log = structlog.get_logger()

FORMAT = 1
MAX_OVERSTATEMENT = 1.5
"""A stored sweep is thrown away if its small steps took this many times longer than they take now."""


@dataclass(frozen=True, slots=True)
class SweepKey:
    """Everything that the time of a step depends on."""

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
    native_ops: str
    tensor_parallel: int = 1
    hosts: int = 1
    pipeline_parallel: int = 1
    torch: str = torch.__version__

    @property
    def file_name(self) -> str:
        return file_name(asdict(self))


def cached_sweep(
    folder: Path,
    key: SweepKey,
    measure: Callable[[], Sweep],
    overstatement: Callable[[list[Sample]], float],
) -> Sweep:
    """Return the sweep that is stored under this key; measure it now if there is none, or none that is true.

    `overstatement` returns how many times longer steps took in these samples than they take now. Only a whole
    sweep is stored: another start may have the time to finish a cut one.
    """
    path = folder / key.file_name
    samples = _load(path, key)
    if samples is not None:
        times = overstatement(samples)
        if times <= MAX_OVERSTATEMENT:
            log.info("sweep_cache_used", path=str(path), samples=len(samples))
            return Sweep(samples)
        reason = f"its steps took {times:.1f} times as long as now; accepted: at most {MAX_OVERSTATEMENT}"
        log.warning("sweep_cache_ignored", path=str(path), reason=reason)
    swept = measure()
    if swept.is_whole:
        _store(path, key, swept.samples)
    else:
        log.warning("sweep_cut_short", samples=len(swept.samples), reason="steps take long on this machine")
    return swept


def _load(path: Path, key: SweepKey) -> list[Sample] | None:
    return kept(path, lambda document: _parse(document, key), "sweep_cache_ignored")


def _parse(document: Any, key: SweepKey) -> list[Sample]:
    if document["format"] != FORMAT or document["key"] != asdict(key):
        raise ValueError("it belongs to another worker")
    samples = [(StepShape(*shape), float(seconds)) for *shape, seconds in document["samples"]]
    if not samples or not all(is_usable(shape, seconds) for shape, seconds in samples):
        raise ValueError("it contains steps that are impossible")
    return samples


def _store(path: Path, key: SweepKey, samples: list[Sample]) -> None:
    rows = [[*shape.sizes, shape.num_decodes, seconds] for shape, seconds in samples]
    keep(path, {"format": FORMAT, "key": asdict(key), "samples": rows}, "sweep_not_cached")
