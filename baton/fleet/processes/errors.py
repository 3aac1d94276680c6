"""The errors of starting and running a fleet.

FleetError
├── CheckoutNotFound
├── RedisServerNotFound
├── GatewayNotInstalled
├── PortUnusable
├── RunDirUnusable
├── RunDirInUse
├── ProcessError(name, log_path, tail)
│   ├── ProcessFailed(exit_code)
│   ├── StartTimeout
│   └── ProcessKeepsDying(exit_code)
├── NoFleetRunning
└── RestartFailed
"""

from __future__ import annotations

import signal
import sys
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


class CheckoutNotFound(FleetError):
    """There is no checkout. The services run from one: they are not part of the installed package."""

    def __init__(self, searched: Sequence[Path]) -> None:
        super().__init__(
            "no Baton checkout (a folder with router/, prefill_worker/ and decode_worker/) in: "
            f"{', '.join(map(str, searched))}; run this from inside one"
        )


class RedisServerNotFound(FleetError):
    """There is no redis-server to start."""

    def __init__(self, searched: Path) -> None:
        super().__init__(
            f"no redis-server on PATH or next to {searched}; "
            "install Redis, or point --redis at a server that runs"
        )


class GatewayNotInstalled(FleetError):
    """Packages of the gateway are missing."""

    def __init__(self, missing: Sequence[str]) -> None:
        super().__init__(
            f"the gateway needs {', '.join(missing)}, not installed in {sys.prefix}; install them with "
            f"{sys.executable} -m pip install --no-deps --require-hashes "
            "-r deploy/requirements/gateway.lock, or start without HTTP by --no-http"
        )


_PORT_FLAGS = {"router": "--port", "gateway": "--http-port"}


class PortUnusable(FleetError):
    """A port of a router or gateway cannot be bound, most often because another fleet uses it."""

    def __init__(self, kind: str, address: str, reason: str) -> None:
        what = f"no {kind} can listen on {address}: {reason}"
        super().__init__(f"{what}; name a free port with {_PORT_FLAGS[kind]}, or 0 for any")


class RunDirUnusable(FleetError):
    """The folder for the logs could not be created, or other users can write to it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"no logs can be kept in {path}: {reason}; name a folder of your own with --run-dir")


class RunDirInUse(FleetError):
    """Another fleet has the folder; `holder` is the process id of its launcher."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(
            f"{path} is the folder of a fleet that runs, started by process {holder}; name another "
            f"folder with --run-dir, or end that fleet: kill {holder}"
        )


class ProcessError(FleetError):
    """Something is wrong with a process; `tail` is the end of its log."""

    def __init__(self, what: str, name: str, log_path: Path, tail: str) -> None:
        super().__init__(f"{name} {what}; its log is {log_path}")
        self.name, self.log_path, self.tail = name, log_path, tail
        if tail:
            self.add_note(tail)  # a traceback shows it too; the log may be gone by then


class ProcessFailed(ProcessError):
    """A process ended before it was ready."""

    def __init__(self, name: str, log_path: Path, tail: str, exit_code: int) -> None:
        super().__init__(f"did not start: {describe_exit(exit_code)}", name, log_path, tail)
        self.exit_code = exit_code


class StartTimeout(ProcessError):
    """A starting process, or the joining of all workers, has made no progress for too long."""

    def __init__(self, name: str, log_path: Path, tail: str, doing: str, waited_s: float) -> None:
        super().__init__(f"stood still for {waited_s:.0f} s ({doing})", name, log_path, tail)


class ProcessKeepsDying(ProcessError):
    """A process died repeatedly soon after its start, and is not restarted any more."""

    def __init__(self, name: str, log_path: Path, tail: str, exit_code: int, times: int) -> None:
        last = f"the last time: {describe_exit(exit_code)}"
        super().__init__(f"died {times} times soon after its start, {last}", name, log_path, tail)
        self.exit_code = exit_code


class NoFleetRunning(FleetError):
    """No launcher responds in the run folders."""

    def __init__(self, searched: Path) -> None:
        super().__init__(
            f"no fleet that `baton up` started answers in {searched}; "
            "start one, or name the folder that its `baton up` prints as logs"
        )


class RestartFailed(FleetError):
    """The launcher could not replace a process. Earlier ones are replaced, later ones unchanged."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the restart stopped half way: {reason}")
