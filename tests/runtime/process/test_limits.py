"""Cores and memory of a process follow its affinity mask, control groups of both versions and the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.process.limits import Cores, available_bytes, read_cores

MIB = 1 << 20
CORES = st.integers(1, 512).flatmap(
    lambda processors: st.builds(
        Cores, st.just(processors), st.none() | st.floats(0.01, 600), st.none() | st.integers(1, processors)
    )
)


def machine(root: Path, groups: str, **files: str) -> Path:
    """Write the files of a machine; `__` stands for a slash in a name, and `_dot_` for a dot."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable: 2048000 kB\n")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@given(CORES, st.integers(1, 64))
def test_processes_that_share_cores_have_no_more_threads_than_cores(cores: Cores, num_processes: int) -> None:
    share = cores.share(num_processes)
    assert 1 <= share <= cores.most <= cores.processors
    most = cores.full or cores.processors
    assert share == 1 or share * num_processes <= min(most, cores.quota or most)
    assert not cores.pauses(share) or share == 1


@given(CORES)
def test_the_most_threads_fill_the_cores(cores: Cores) -> None:
    if cores.quota is None:
        assert cores.most == cores.processors
    else:
        assert cores.most == 1 or cores.most - 1 < cores.quota


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu_dot_max": "max 100000\n"}, None),
        ("0::/\n", {"cpu_dot_max": "50000 100000\n"}, 0.5),
        ("0::/a/b\n", {"a__cpu_dot_max": "150000 100000\n", "a__b__cpu_dot_max": "max 100000\n"}, 1.5),
        ("0::/a/b\n", {"a__cpu_dot_max": "400000 100000\n", "a__b__cpu_dot_max": "200000 100000\n"}, 2.0),
        ("0::/../other\n", {"cpu_dot_max": "100000 100000\n"}, 1.0),
        ("3:cpu,cpuacct:/docker/x\n", {"cpu__cpu_dot_cfs_quota_us": "-1\n"}, None),
        (
            "3:cpu,cpuacct:/docker/x\n",
            {"cpu__cpu_dot_cfs_quota_us": "50000\n", "cpu__cpu_dot_cfs_period_us": "100000\n"},
            0.5,
        ),
    ],
    ids=str,
)
def test_the_tightest_quota_of_a_container_counts(
    groups: str, files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    cores = read_cores(machine(tmp_path, groups, **files))
    processors = len(os.sched_getaffinity(0))
    assert cores == Cores(processors, quota, processors)


def test_a_quota_of_half_a_core_allows_one_thread_which_pauses() -> None:
    cores = Cores(8, 0.5)
    assert (cores.most, cores.share(2), cores.pauses(1)) == (1, 1, True)
    assert str(cores) == "8 in the affinity mask, of which a quota allows 0.5"


def test_threads_of_one_core_and_slow_cores_get_no_thread_by_default() -> None:
    cores = Cores(24, None, 8)
    assert (cores.most, cores.share(1), cores.share(2)) == (24, 8, 4)
    assert str(cores) == "24 in the affinity mask on 8 cores of full speed"


@pytest.mark.parametrize(
    ("groups", "files", "available"),
    [
        ("0::/\n", {}, 2000 * MIB),
        ("0::/\n", {"memory_dot_max": "max\n", "memory_dot_current": "1\n"}, 2000 * MIB),
        (
            "0::/\n",
            {
                "memory_dot_max": str(512 * MIB),
                "memory_dot_current": str(300 * MIB),
                "memory_dot_stat": f"anon 5\nactive_file {60 * MIB}\ninactive_file {40 * MIB}\n",
            },
            312 * MIB,
        ),
        (
            "4:memory:/docker/x\n",
            {
                "memory__memory_dot_limit_in_bytes": str(512 * MIB),
                "memory__memory_dot_usage_in_bytes": str(600 * MIB),
            },
            0,
        ),
        (
            "4:memory:/\n",
            {
                "memory__memory_dot_limit_in_bytes": "9223372036854771712",
                "memory__memory_dot_usage_in_bytes": "5",
            },
            2000 * MIB,
        ),
    ],
    ids=["machine", "no limit", "version 2", "version 1", "version 1 without a limit"],
)
def test_the_scarcest_memory_counts(
    groups: str, files: dict[str, str], available: int, tmp_path: Path
) -> None:
    assert available_bytes(machine(tmp_path, groups, **files)) == available


def test_this_machine_has_cores_and_memory() -> None:
    assert 1 <= read_cores().most <= len(os.sched_getaffinity(0))
    assert available_bytes() > 0
