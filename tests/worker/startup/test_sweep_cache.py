from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.calibration.sweep import Sweep
from scheduling.cost_model import Sample
from tests.scheduling.cost.steps import DEMO, measure
from worker.startup.kept_files import device_name
from worker.startup.sweep_cache import MAX_OVERSTATEMENT, SweepKey, cached_sweep

KEY = SweepKey("weights", "a processor x 2", "torch.float32", False, 1, 16, 64, 8, 256, True, True, "avx2")


def truly(samples: list[Sample]) -> float:
    """The steps take as long as they did."""
    return 1.0


class Measuring:
    """Measures, and counts how often it had to."""

    def __init__(self, *, is_whole: bool = True) -> None:
        self.runs = 0
        self._is_whole = is_whole

    def __call__(self) -> Sweep:
        self.runs += 1
        return Sweep(measure(DEMO), self._is_whole)


def test_a_second_start_finds_what_the_first_measured(tmp_path: Path) -> None:
    sweep = Measuring()
    first = cached_sweep(tmp_path / "new" / "folder", KEY, sweep, truly)
    assert cached_sweep(tmp_path / "new" / "folder", KEY, sweep, truly) == first == Sweep(measure(DEMO))
    assert sweep.runs == 1


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(SweepKey)])
def test_another_worker_measures_for_itself(field: str, tmp_path: Path) -> None:
    sweep = Measuring()
    cached_sweep(tmp_path, KEY, sweep, truly)
    value = getattr(KEY, field)
    changes: dict[str, Any] = {field: value + 1 if isinstance(value, int) else f"{value}!"}
    other = dataclasses.replace(KEY, **changes)
    cached_sweep(tmp_path, other, sweep, truly)
    assert sweep.runs == 2


def test_a_sweep_that_was_cut_short_is_measured_again_another_time(tmp_path: Path) -> None:
    hurried, sweep = Measuring(is_whole=False), Measuring()
    assert not cached_sweep(tmp_path, KEY, hurried, truly).is_whole
    assert cached_sweep(tmp_path, KEY, sweep, truly).is_whole
    assert (hurried.runs, sweep.runs) == (1, 1)


@pytest.mark.parametrize(("times", "runs"), [(0.2, 1), (MAX_OVERSTATEMENT, 1), (MAX_OVERSTATEMENT + 0.1, 2)])
def test_a_sweep_beside_other_work_is_measured_again(times: float, runs: int, tmp_path: Path) -> None:
    """An SLO below its times would be refused for good, although this worker can meet it."""
    sweep = Measuring()
    stored = cached_sweep(tmp_path, KEY, sweep, truly)
    compared: list[list[Sample]] = []

    def overstatement(samples: list[Sample]) -> float:
        compared.append(samples)
        return times

    cached_sweep(tmp_path, KEY, sweep, overstatement)
    assert compared == [stored.samples]
    assert sweep.runs == runs


def damages() -> dict[str, bytes]:
    good = {"format": 1, "key": dataclasses.asdict(KEY), "samples": [[1, 1, 10, 0.0, 0, 1, 1e-3]]}
    return {
        "empty": b"",
        "cut": json.dumps(good).encode()[:-20],
        "binary": b"\xff\xfe\x00",
        "a list": b"[]",
        "deep": b"[" * 100_000,
        "of another format": json.dumps(good | {"format": 2}).encode(),
        "of another key": json.dumps(good | {"key": {}}).encode(),
        "without samples": json.dumps(good | {"samples": []}).encode(),
        "with a short row": json.dumps(good | {"samples": [[1, 2]]}).encode(),
        "with a text": json.dumps(good | {"samples": [["1", 1, 10, 0.0, 0, 1, 1e-3]]}).encode(),
        "with NaN": json.dumps(good | {"samples": [[1, 1, 10, 0.0, 0, 1, math.nan]]}).encode(),
        "with no time": json.dumps(good | {"samples": [[1, 1, 10, 0.0, 0, 1, 0.0]]}).encode(),
    }


@pytest.mark.parametrize("damage", damages().values(), ids=damages())
def test_a_damaged_file_is_measured_over(damage: bytes, tmp_path: Path) -> None:
    sweep = Measuring()
    path = tmp_path / KEY.file_name
    path.write_bytes(damage)
    assert cached_sweep(tmp_path, KEY, sweep, truly) == Sweep(measure(DEMO))
    assert cached_sweep(tmp_path, KEY, sweep, truly) == Sweep(measure(DEMO))
    assert sweep.runs == 1


def test_a_folder_that_cannot_be_is_no_reason_not_to_start(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("", encoding="utf-8")
    assert cached_sweep(in_the_way, KEY, Measuring(), truly) == Sweep(measure(DEMO))


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    cached_sweep(tmp_path, KEY, Measuring(), truly)
    assert [path.name for path in tmp_path.iterdir()] == [KEY.file_name]


def test_a_processor_has_a_name() -> None:
    assert device_name(torch.device("cpu")).rpartition(" x ")[0]
