"""The events of a starting or running fleet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from baton.fleet.processes.errors import describe_exit


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """Base of the events."""


@dataclass(frozen=True, slots=True)
class ProcessStarted(FleetEvent):
    name: str
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessStarting(FleetEvent):
    """The progress of a process's start; sent with each of its reports, and every second without one."""

    name: str
    doing: str
    silent_s: float
    """Seconds since its last report; a healthy process reports every second."""


@dataclass(frozen=True, slots=True)
class ProcessReady(FleetEvent):
    name: str
    address: str
    took_s: float


@dataclass(frozen=True, slots=True)
class WorkersJoined(FleetEvent):
    """Every router has a connection to every worker."""

    workers: int


@dataclass(frozen=True, slots=True)
class ProcessDied(FleetEvent):
    """A process ended although nobody asked it to; `tail` is the end of its log."""

    name: str
    exit_code: int
    log_path: Path
    tail: str

    @property
    def meaning(self) -> str:
        return describe_exit(self.exit_code)


@dataclass(frozen=True, slots=True)
class ProcessRestarting(FleetEvent):
    """A process that died is restarted after a pause."""

    name: str
    pause_s: float


@dataclass(frozen=True, slots=True)
class ProcessRestarted(FleetEvent):
    """A process that had died serves again."""

    name: str


@dataclass(frozen=True, slots=True)
class ProcessReplaced(FleetEvent):
    """A new process of the same name has replaced a process, and serves."""

    name: str
    left_s: float
    """From the order to leave to the old process's end."""
    took_s: float
    """The whole replacement."""


@dataclass(frozen=True, slots=True)
class ReplacementFailed(FleetEvent):
    """A process's successor did not start and has been ended. The process serves on."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class FleetStopping(FleetEvent):
    processes: int
