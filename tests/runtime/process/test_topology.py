"""Cores are counted as the kernel describes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from runtime.process.topology import num_full_cores

NONE: Mapping[int, int] = MappingProxyType({})
LAPTOP = {place: f"{place // 2 * 2}-{place // 2 * 2 + 1}" for place in range(8)} | {8: "8", 9: "9"}
"""Four cores with two threads each, and two efficiency cores."""


def kernel(
    root: Path, siblings: Mapping[int, str], capacities: Mapping[int, int] = NONE, atom: str = ""
) -> Path:
    for name, texts in (("topology/thread_siblings_list", siblings), ("cpu_capacity", capacities)):
        for processor, text in texts.items():
            path = root / f"sys/devices/system/cpu/cpu{processor}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
    if atom:
        (root / "sys/devices/cpu_atom").mkdir(parents=True)
        (root / "sys/devices/cpu_atom/cpus").write_text(f"{atom}\n")
    return root


def test_processors_of_one_core_count_once(tmp_path: Path) -> None:
    root = kernel(tmp_path, {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"})
    assert num_full_cores({0, 4, 1, 5}, root) == 2
    assert num_full_cores({0, 1, 5}, root) == 2
    assert num_full_cores({0, 4}, root) == 1


def test_efficiency_cores_of_intel_do_not_count(tmp_path: Path) -> None:
    root = kernel(tmp_path, LAPTOP, atom="8-9")
    assert num_full_cores(range(10), root) == 4
    assert num_full_cores({0, 8, 9}, root) == 1


@pytest.mark.parametrize(
    ("capacities", "expected"), [((446, 446, 1024, 1024), 2), ((871, 871, 1024, 1024), 4)]
)
def test_little_cores_of_arm_do_not_count(capacities: tuple[int, ...], expected: int, tmp_path: Path) -> None:
    root = kernel(tmp_path, {n: str(n) for n in range(4)}, dict(enumerate(capacities)))
    assert num_full_cores(range(4), root) == expected


def test_slow_cores_count_if_a_process_has_no_others(tmp_path: Path) -> None:
    assert num_full_cores({8, 9}, kernel(tmp_path, LAPTOP, atom="8-9")) == 2


def test_each_processor_is_a_core_where_the_kernel_says_nothing(tmp_path: Path) -> None:
    assert num_full_cores({0, 3, 7}, tmp_path) == 3
