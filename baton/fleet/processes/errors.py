"""The errors of starting and running a fleet.

FleetError
├── CheckoutNotFound(searched)
├── RedisServerNotFound(searched)
├── GatewayNotInstalled(missing)
├── PortUnusable(kind, address, reason)
├── RunDirUnusable(path, reason)
├── RunDirInUse(path, holder)
├── ProcessError(name, log_path, tail)
│   ├── ProcessFailed(exit_code)
│   ├── StartTimeout(doing, waited_s)
│   └── ProcessKeepsDying(exit_code, times)
├── NoFleetRunning(searched)
└── RestartFailed(reason)
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_EXIT_MEANINGS = {
    0: "it ended by itself",
    1: "it ended with an unexpected error",
    2: "its configuration was refused",
    3: "it could not reach Redis",
    5: "the fleet serves other weights or blocks",
    4: "it cannot serve this model",
    6: "one of its steps stalled",
    7: "one of its processes (--tensor-parallel, --pipeline-parallel) ended or failed",
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


@dataclass(eq=False)
class CheckoutNotFound(FleetError):
    """There is no checkout. The services run from one: they are not part of the installed package."""

    searched: Sequence[Path]

    def __str__(self) -> str:
        places = ", ".join(str(path) for path in self.searched)
        return (
            f"no Baton checkout (a folder with router/, prefill_worker/ and decode_worker/) in: {places}; "
            "run this from inside one"
        )


@dataclass(eq=False)
class RedisServerNotFound(FleetError):
    """There is no redis-server to start."""

    searched: Sequence[Path]

    def __str__(self) -> str:
        return (
            "no redis-server on PATH or next to "
            f"{', '.join(str(path) for path in self.searched)}; "
            "install Redis, or point --redis at a server that runs"
        )


@dataclass(eq=False)
class GatewayNotInstalled(FleetError):
    """Packages of the gateway are missing."""

    missing: Sequence[str]

    def __str__(self) -> str:
        return (
            f"the gateway needs {', '.join(self.missing)}, not installed in {sys.prefix}; install them with "
            f"{sys.executable} -m pip install --no-deps --require-hashes "
            "-r deploy/requirements/gateway.lock, or start without HTTP by --no-http"
        )


_PORT_FLAGS = {"router": "--port", "gateway": "--http-port"}


@dataclass(eq=False)
class PortUnusable(FleetError):
    """A port of a router or gateway cannot be bound, most often because another fleet uses it."""

    kind: str
    address: str
    reason: str

    def __str__(self) -> str:
        what = f"no {self.kind} can listen on {self.address}: {self.reason}"
        return f"{what}; name a free port with {_PORT_FLAGS[self.kind]}, or 0 for any"


@dataclass(eq=False)
class RunDirUnusable(FleetError):
    """The folder for the logs could not be created, or other users can write to it."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"no logs can be kept in {self.path}: {self.reason}; name a folder of your own with --run-dir"


@dataclass(eq=False)
class RunDirInUse(FleetError):
    """Another fleet has the folder; `holder` is the process id of its launcher."""

    path: Path
    holder: str

    def __str__(self) -> str:
        return (
            f"{self.path} is the folder of a fleet that runs, started by process {self.holder}; name another "
            f"folder with --run-dir, or end that fleet: kill {self.holder}"
        )


@dataclass(eq=False)
class ProcessError(FleetError):
    """Something is wrong with a process; `tail` is the end of its log."""

    name: str
    log_path: Path
    tail: str

    def __post_init__(self) -> None:
        if self.tail:
            self.add_note(self.tail)  # a traceback shows it too; the log may be gone by then


@dataclass(eq=False)
class ProcessFailed(ProcessError):
    """A process ended before it was ready."""

    exit_code: int

    def __str__(self) -> str:
        return f"{self.name} did not start: {describe_exit(self.exit_code)}; its log is {self.log_path}"


@dataclass(eq=False)
class StartTimeout(ProcessError):
    """A starting process, or the joining of all workers, has made no progress for too long."""

    doing: str
    waited_s: float

    def __str__(self) -> str:
        return f"{self.name} stood still for {self.waited_s:.0f} s ({self.doing}); its log is {self.log_path}"


@dataclass(eq=False)
class ProcessKeepsDying(ProcessError):
    """A process died repeatedly soon after its start, and is not restarted any more."""

    exit_code: int
    times: int

    def __str__(self) -> str:
        last = f"the last time: {describe_exit(self.exit_code)}; its log is {self.log_path}"
        return f"{self.name} died {self.times} times soon after its start, {last}"


@dataclass(eq=False)
class NoFleetRunning(FleetError):
    """No launcher responds in the run folders."""

    searched: Path

    def __str__(self) -> str:
        return (
            f"no fleet that `baton up` started answers in {self.searched}; "
            "start one, or name the folder that its `baton up` prints as logs"
        )


@dataclass(eq=False)
class RestartFailed(FleetError):
    """The launcher could not replace a process. Earlier ones are replaced, later ones unchanged."""

    reason: str

    def __str__(self) -> str:
        return f"the restart stopped half way: {self.reason}"
