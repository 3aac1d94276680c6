"""Starts a whole fleet as real processes on this machine and leaves nothing behind.

In reading order:

- `spec` (the description), `launcher` (start, replace and stop its processes).
- `processes`: one process, all of a fleet, the reaper that ends them, and the fleet's events and errors.
- `checkout`, `rundir` (folders), `hub_names` (names of models that are fetched), `secured` (certificates and
  keys), `joining` (await workers).
- `keeping` (restart what dies), `running` (find running fleets, and their orders).

May import the SDK, but none of the services, which run as processes.
"""

from baton.fleet.keeping import Keeper
from baton.fleet.launcher import Fleet
from baton.fleet.processes.errors import FleetError
from baton.fleet.processes.events import FleetEvent
from baton.fleet.processes.process import ManagedProcess
from baton.fleet.spec import FleetSpec

__all__ = ["Fleet", "FleetError", "FleetEvent", "FleetSpec", "Keeper", "ManagedProcess"]
