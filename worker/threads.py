"""How many threads a worker computes with."""

from __future__ import annotations

from services.process.limits import Cores


def resolve_threads(
    asked: int | None,
    workers_per_host: int,
    cores: Cores,
    num_processes: int = 1,
    *,
    flag: str = "--tensor-parallel",
) -> int:
    """Return how many threads compute: those asked for, all that fit if 0, this worker's share if None.

    Where a worker has several processes, its share is at least a thread for each, and as many for each.
    `flag` is the one that asks for them.

    Raises ValueError for more threads or processes than cores: each would wait at the end of every loop for
    one that has no core.
    """
    if num_processes > cores.most:
        raise ValueError(
            f"{flag} is {num_processes}; accepted: 1 to {cores.most}, the cores this process may use "
            f"({cores})"
        )
    if workers_per_host < 1:
        raise ValueError(f"--workers-per-host is {workers_per_host}; accepted: 1 or more")
    if not asked and num_processes > 1:
        whole = cores.share(workers_per_host) if asked is None else cores.most
        return max(1, whole // num_processes) * num_processes
    if asked is None:
        return cores.share(workers_per_host)
    if not 0 <= asked <= cores.most:
        raise ValueError(
            f"--threads is {asked}; accepted: 0 to {cores.most}, the cores this process may use ({cores})"
        )
    return asked or cores.most
