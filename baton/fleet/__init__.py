"""Starts a whole fleet as real processes on this machine and leaves nothing behind."""

from baton.fleet.errors import (
    CheckoutNotFound,
    FleetError,
    NoFleetRunning,
    PortUnusable,
    ProcessFailed,
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
    ProcessStarted,
    ProcessStarting,
    ReplacementFailed,
    WorkersJoined,
)
from baton.fleet.launcher import Fleet
from baton.fleet.process import ManagedProcess
from baton.fleet.spec import FleetSpec

__all__ = [
    "CheckoutNotFound",
    "Fleet",
    "FleetError",
    "FleetEvent",
    "FleetSpec",
    "FleetStopping",
    "ManagedProcess",
    "NoFleetRunning",
    "PortUnusable",
    "ProcessDied",
    "ProcessFailed",
    "ProcessReady",
    "ProcessReplaced",
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
