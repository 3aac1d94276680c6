"""How many threads a worker computes with."""

from __future__ import annotations

from runtime.process.limits import Cores


def resolve_threads(
    asked: int | None,
    workers_per_host: int,
    cores: Cores,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
) -> int:
    """Return how many threads compute: those asked for, all that fit if 0, this worker's share if None.

    Where a worker has several processes, its share is at least a thread for each, and as many for each.

    Raises ValueError for more threads, parts of a layer or stages than cores: each would wait at the end of
    every loop for one that has no core. Parts of stages may be more than cores, one thread each: stages
    sleep while they wait for each other.
    """
    for flag, number in (("--tensor-parallel", tensor_parallel), ("--pipeline-parallel", pipeline_parallel)):
        if number > cores.most:
            raise ValueError(f"{flag} is {number}; accepted: 1 to {_cores_of(cores)}")
    if workers_per_host < 1:
        raise ValueError(f"--workers-per-host is {workers_per_host}; accepted: 1 or more")
    num_processes = tensor_parallel * pipeline_parallel
    if not asked and num_processes > 1:
        whole = cores.share(workers_per_host) if asked is None else cores.most
        return max(1, whole // num_processes) * num_processes
    if asked is None:
        return cores.share(workers_per_host)
    if not 0 <= asked <= max(cores.most, num_processes):
        most = f"{num_processes}, one for each process"
        accepted = _cores_of(cores) if num_processes <= cores.most else most
        raise ValueError(f"--threads is {asked}; accepted: 0 to {accepted}")
    return asked or cores.most


def _cores_of(cores: Cores) -> str:
    return f"{cores.most}, the cores this process may use ({cores})"
