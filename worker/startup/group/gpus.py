"""The GPUs of a worker of several processes, one for each.

They are chosen before torch loads, by CUDA_VISIBLE_DEVICES: each process then sees its own GPU alone, as a
worker of one process does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Environment variable with the GPUs that CUDA shows to a process."""
LOCAL_RANK = "LOCAL_RANK"
"""Environment variable in which torchrun says which of its processes on this host this one is."""
INTERFACE = "NCCL_SOCKET_IFNAME"
"""Environment variable with the network interfaces by which NCCL's processes find each other."""
_DEVICE = re.compile(r"nvidia\d+")


def gpus_for(device: str, environment: Mapping[str, str], folder: Path = Path("/dev")) -> Sequence[str]:
    """Return the GPUs that processes with `--device` may use, as CUDA_VISIBLE_DEVICES has them.

    There are none for `cpu`, and where the driver has made no device.
    """
    if device == "cpu":
        return ()
    number = sum(_DEVICE.fullmatch(path.name) is not None for path in folder.iterdir())
    visible = environment.get(VISIBLE)
    if visible is None or not number:
        return tuple(map(str, range(number)))
    names = [name.strip() for name in visible.split(",")]
    # CUDA shows those before the first that is none.
    end = next((at for at, name in enumerate(names) if name in ("", "-1")), len(names))
    return tuple(names[:end])


def check_number(gpus: Sequence[str], size: int) -> None:
    """Raise ValueError if there are GPUs, but fewer than `size` processes."""
    if 0 < len(gpus) < size:
        raise ValueError(
            f"--tensor-parallel is {size}, one GPU for each process, and CUDA shows {len(gpus)}; accepted: 1 "
            f"to {len(gpus)}, or --device cpu"
        )


def take(gpus: Sequence[str], number: int, environment: MutableMapping[str, str]) -> None:
    """Let this process see the GPU of a number alone; do nothing without GPUs."""
    if gpus:
        environment[VISIBLE] = gpus[number]


def take_local(gpus: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Let this process, which torchrun may have started as one of several here, see its own GPU alone.

    Raises ValueError if there is none for it.
    """
    number = int(environment.get(LOCAL_RANK, "0"))
    if gpus and number >= len(gpus):
        raise ValueError(
            f"{LOCAL_RANK} is {number}, the number of a GPU, and CUDA shows {len(gpus)}; accepted: 0 to "
            f"{len(gpus) - 1}, or --device cpu"
        )
    take(gpus, number, environment)


def stay_on_host(environment: MutableMapping[str, str]) -> None:
    """Let NCCL's processes find each other on loopback, unless the environment decides it."""
    environment.setdefault(INTERFACE, "lo")
