"""The errors of starting and running a fleet.

FleetError
├── CheckoutNotFound(searched)
├── RedisServerNotFound(searched)
├── PortUnusable(address, reason)
├── RunDirUnusable(path, reason)
├── ProcessFailed(name, exit_code, log_path, tail)
├── StartTimeout(name, doing, waited_s, log_path, tail)
├── ProcessKeepsDying(name, times, exit_code, log_path, tail)
├── NoFleetRunning(searched)
└── RestartFailed(reason)
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

_EXIT_MEANINGS = {
    0: "it ended by itself",
    1: "it ended with an unexpected error",
    2: "its configuration was refused",
    3: "it could not reach Redis",
    5: "the fleet serves other weights or blocks",
    4: "it cannot serve this model",
    6: "one of its steps stalled",
    127: "its program was not found",
}


def describe_exit(exit_code: int) -> str:
    """Return the meaning of an exit code; a negative one is the signal that ended the process."""
    if exit_code == -signal.SIGKILL:
        return "killed by SIGKILL; if nobody did that, the machine was out of memory"
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}: {_EXIT_MEANINGS.get(exit_code, _EXIT_MEANINGS[1])}"


class FleetError(Exception):
    """Base of everything the launcher raises, apart from `ValueError` for a wrong `FleetSpec`."""


class CheckoutNotFound(FleetError):
    """There is no checkout. The services run from one: they are not part of the installed package."""

    def __init__(self, searched: Sequence[Path]) -> None:
        self.searched = tuple(searched)
        places = ", ".join(str(path) for path in self.searched)
        super().__init__(
            f"no Baton checkout (a folder with router/, prefill_worker/ and decode_worker/) in: {places}; "
            "run this from inside one"
        )


class RedisServerNotFound(FleetError):
    """There is no redis-server to start."""

    def __init__(self, searched: Sequence[Path]) -> None:
        self.searched = tuple(searched)
        super().__init__(
            "no redis-server on PATH or next to "
            f"{', '.join(str(path) for path in self.searched)}; "
            "install Redis, or point --redis at a server that runs"
        )


class PortUnusable(FleetError):
    """A router's port cannot be bound, most often because another fleet uses it."""

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(
            f"no router can listen on {address}: {reason}; name a free port with --port, or 0 for any"
        )


class RunDirUnusable(FleetError):
    """The folder for the logs could not be created."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"no logs can be kept in {path}: {reason}; name a folder of your own with --run-dir")


class ProcessFailed(FleetError):
    """A process ended before it was ready."""

    def __init__(self, name: str, exit_code: int, log_path: Path, tail: str) -> None:
        self.name = name
        self.exit_code = exit_code
        self.log_path = log_path
        self.tail = tail
        super().__init__(f"{name} did not start: {describe_exit(exit_code)}; its log is {log_path}")


class StartTimeout(FleetError):
    """A starting process, or the joining of all workers, has made no progress for too long."""

    def __init__(self, name: str, doing: str, waited_s: float, log_path: Path, tail: str) -> None:
        self.name = name
        self.doing = doing
        self.waited_s = waited_s
        self.log_path = log_path
        self.tail = tail
        super().__init__(f"{name} stood still for {waited_s:.0f} s ({doing}); its log is {log_path}")


class ProcessKeepsDying(FleetError):
    """A process died repeatedly soon after its start, and is not restarted any more."""

    def __init__(self, name: str, times: int, exit_code: int, log_path: Path, tail: str) -> None:
        self.name = name
        self.times = times
        self.exit_code = exit_code
        self.log_path = log_path
        self.tail = tail
        super().__init__(
            f"{name} died {times} times soon after its start, the last time: {describe_exit(exit_code)}; "
            f"its log is {log_path}"
        )


class NoFleetRunning(FleetError):
    """No launcher responds in the run folders."""

    def __init__(self, searched: Path) -> None:
        self.searched = searched
        super().__init__(
            f"no fleet that `baton up` started answers in {searched}; "
            "start one, or name the folder that its `baton up` prints as logs"
        )


class RestartFailed(FleetError):
    """The launcher could not replace a process. Earlier ones are replaced, later ones unchanged."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the restart stopped half way: {reason}")
