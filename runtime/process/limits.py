"""The cores and the memory that this process may use, by its affinity mask, control groups and machine.

Control groups are read in version 2 and 1, from the process's own group up: the tightest limit holds. In a
container the own group may be mounted as the root, so paths that do not exist are passed over.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from runtime.process.topology import num_full_cores

UNLIMITED_BYTES = 1 << 60
"""Version 1 writes a number of about this size where no limit is set."""
_PAGE_CACHE = ("active_file", "inactive_file", "total_active_file", "total_inactive_file")


@dataclass(frozen=True, slots=True)
class Cores:
    """The processors in the affinity mask, and what they amount to."""

    processors: int
    quota: float | None = None
    """The processors of time that a container may take; None: no quota."""
    full: int | None = None
    """The cores of full speed behind the processors; None: as many."""

    @property
    def most(self) -> int:
        """Return how many threads may compute: a quota of half a core allows one, which has to pause."""
        return max(1, min(self.processors, math.ceil(self.quota or self.processors)))

    def share(self, num_processes: int) -> int:
        """Return the threads of one of several processes that share the cores of full speed, at least 1."""
        cores = self.full or self.processors
        whole = int(min(cores, self.quota or cores))
        return max(1, whole // num_processes)

    def pauses(self, num_threads: int) -> bool:
        """Return whether busy threads use up the quota, so that the kernel stops them for a while."""
        return self.quota is not None and num_threads > self.quota

    def __str__(self) -> str:
        full = "" if self.full in (None, self.processors) else f" on {self.full} cores of full speed"
        quota = "" if self.quota is None else f", of which a quota allows {self.quota:g}"
        return f"{self.processors} in the affinity mask{full}{quota}"


def read_cores(root: Path = Path("/")) -> Cores:
    """Return the cores that this process may use; `root` contains `proc` and `sys`."""
    quotas = []
    for group in _groups(root, "cpu"):
        two = _words(group / "cpu.max")
        if len(two) == 2 and two[0] != "max":
            quotas.append(int(two[0]) / int(two[1]))
        quota, period = _words(group / "cpu.cfs_quota_us"), _words(group / "cpu.cfs_period_us")
        if quota and period and int(quota[0]) > 0:
            quotas.append(int(quota[0]) / int(period[0]))
    processors = os.sched_getaffinity(0)
    return Cores(len(processors), min(quotas, default=None), num_full_cores(processors, root))


def available_bytes(root: Path = Path("/")) -> int:
    """Return the memory that this process can still get: the machine's, or what its control groups leave."""
    limits = [_kibibytes(root / "proc/meminfo", "MemAvailable:") * 1024]
    for group in _groups(root, "memory"):
        for limit_file, usage_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _words(group / limit_file), _words(group / usage_file)
            if limit and used and limit[0] != "max" and int(limit[0]) < UNLIMITED_BYTES:
                limits.append(max(0, int(limit[0]) - int(used[0]) + _page_cache_bytes(group / "memory.stat")))
    return min(limits)


def _page_cache_bytes(stat: Path) -> int:
    """Return the bytes of files in memory, which the kernel drops when others need the room."""
    words = _words(stat)
    sizes = dict(zip(words[::2], map(int, words[1::2]), strict=False))
    totals = [name for name in _PAGE_CACHE if name.startswith("total_") and name in sizes]
    return sum(sizes.get(name, 0) for name in totals or _PAGE_CACHE)


def _kibibytes(path: Path, name: str) -> int:
    words = _words(path)
    return int(words[words.index(name) + 1]) if name in words else UNLIMITED_BYTES // 1024


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those above it."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and controller not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / ("" if number == "0" else controller)
        inside = PurePosixPath(path.lstrip("/"))
        for group in (inside, *inside.parents):
            if ".." not in group.parts:
                yield mounted / group


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
