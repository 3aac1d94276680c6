"""Starts a whole fleet as real processes on this machine and leaves nothing behind."""

from baton.fleet.errors import (
    CheckoutNotFound,
    FleetError,
    NoFleetRunning,
    PortUnusable,
    ProcessFailed,
    ProcessKeepsDying,
    RedisServerNotFound,
    RestartFailed,
    RunDirUnusable,
    StartTimeout,
    describe_exit,
)
from baton.fleet.events import (
    FleetEvent,
    FleetStopping,
    ProcessDied,
    ProcessReady,
    ProcessReplaced,
    ProcessRestarted,
    ProcessRestarting,
    ProcessStarted,
    ProcessStarting,
    ReplacementFailed,
    WorkersJoined,
)
from baton.fleet.keeping import Keeper
from baton.fleet.launcher import Fleet
from baton.fleet.processes.process import ManagedProcess
from baton.fleet.spec import FleetSpec

__all__ = [
    "CheckoutNotFound",
    "Fleet",
    "FleetError",
    "FleetEvent",
    "FleetSpec",
    "FleetStopping",
    "Keeper",
    "ManagedProcess",
    "NoFleetRunning",
    "PortUnusable",
    "ProcessDied",
    "ProcessFailed",
    "ProcessKeepsDying",
    "ProcessReady",
    "ProcessReplaced",
    "ProcessRestarted",
    "ProcessRestarting",
    "ProcessStarted",
    "ProcessStarting",
    "RedisServerNotFound",
    "ReplacementFailed",
    "RestartFailed",
    "RunDirUnusable",
    "StartTimeout",
    "WorkersJoined",
    "describe_exit",
]
