"""The place of this process in a group that a cluster has started, one process on each host.

    torchrun              RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    LeaderWorkerSet       LWS_WORKER_INDEX, LWS_GROUP_SIZE, LWS_LEADER_ADDRESS; and MASTER_PORT, if it is set

torchrun in a pod of a LeaderWorkerSet sets its own variables, which come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.security.settings import is_loopback

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LEADER_WORKER_SET = ("LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS")
DEFAULT_PORT = "29500"
"""torch.distributed's own."""
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Place:
    """The place `rank` of `size`; processes meet at the `address` and `port` of rank 0.

    Raises `ValueError` with the environment variable that is wrong, its value and what would be accepted.
    """

    rank: int
    size: int
    address: str
    port: int
    variables: tuple[str, ...]
    """The environment variables of rank, size, address and, for torchrun, port."""

    def __post_init__(self) -> None:
        rank, size, address = self.variables[:3]
        if not 0 <= self.rank < self.size:
            raise ValueError(f"{rank} is {self.rank} with {size} {self.size}; accepted: 0 to {self.size - 1}")
        if not self.address:
            raise ValueError(f"{address} is empty; accepted: the name or address of rank 0's host")
        if not 1 <= self.port <= _MAX_PORT:
            raise ValueError(f"MASTER_PORT is {self.port}; accepted: 1 to {_MAX_PORT}")

    @property
    def is_torchrun(self) -> bool:
        return self.variables == _TORCHRUN

    def check(self, flag: str, *, is_clear_allowed: bool) -> None:
        """Raise ValueError for flags that do not fit; `flag` is the one that asks for several processes."""
        _, size, address = self.variables[:3]
        accepted = f"--tensor-parallel {self.size}"
        if flag != accepted:
            raise ValueError(f"{flag} with {size} {self.size}; accepted: {accepted}")
        if not is_clear_allowed and not is_loopback(f"{self.address}:0"):
            raise ValueError(
                f"{address} is {self.address}, and the sums of {flag} travel in the clear, also with "
                "certificates; accepted: a loopback address, or --insecure-listen where the network itself "
                "is trusted"
            )


def place_in(environment: Mapping[str, str]) -> Place | None:
    """Return this process's place; None if nothing has started it as one of several.

    Raises ValueError for variables that are missing or wrong.
    """
    if any(name in environment for name in _TORCHRUN[:2]):
        return _place(environment, _TORCHRUN)
    if any(name in environment for name in _LEADER_WORKER_SET):
        return _place({"MASTER_PORT": DEFAULT_PORT, **environment}, _LEADER_WORKER_SET)
    return None


def _place(environment: Mapping[str, str], variables: tuple[str, ...]) -> Place | None:
    for name in variables:
        if name not in environment:
            found = next(other for other in variables if other in environment)
            raise ValueError(
                f"{found} is set and {name} is not; accepted: all of {', '.join(variables)}, or none"
            )
    rank, size = (_integer(environment, name) for name in variables[:2])
    if size == 1:
        return None
    port = _integer(environment, "MASTER_PORT")
    return Place(rank, size, environment[variables[2]], port, variables)


def _integer(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ValueError(f"{name} is {environment[name]!r}; accepted: an integer") from None
