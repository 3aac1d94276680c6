"""Exit codes, and the one line that goes with each error."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from baton import errors
from baton.errors.reachability import Blocked, Obstacle
from baton.fleet.processes.errors import FleetError, NoFleetRunning, ProcessError
from baton.types import Attainable

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
TRY_LATER = 4
FLEET_FAILED = 5
INTERRUPTED = 130
TERMINATED = 143

_ADVICE = {
    Obstacle.SPEAKS_TLS: "name the fleet's CA with --ca, and what else it asks for with --cert, --key, "
    "--api-key-file",
    Obstacle.SPEAKS_NO_TLS: "leave out --ca, --cert, --key and --api-key-file",
    Obstacle.UNTRUSTED: "name the CA of this fleet with --ca",
    Obstacle.WRONG_HOST: "use a name or address that the certificate is for",
    Obstacle.HANGS_UP: "it may ask for a client's certificate of its own CA, with --cert and --key",
    Obstacle.NO_GRPC: "is it a router's address?",
}

EXIT_CODES_HELP = """exit codes:
  0    done
  1    the call failed, or the address is not healthy
  2    a wrong argument, or a request that would always be refused
  3    no router could be reached
  4    not now: over capacity, no promise as asked for, or a router without Redis or workers
  5    a process of the fleet did not start, or kept dying
  130  interrupted (143: terminated)
"""


def exit_code_of(error: errors.BatonError | FleetError | ValueError) -> int:
    match error:
        case NoFleetRunning() | errors.Unavailable(reason=""):  # with a reason, a router has sent it
            return UNREACHABLE
        case FleetError():
            return FLEET_FAILED
        case errors.InvalidRequest() | errors.NotFound() | ValueError():
            return USAGE
        case errors.Overloaded() | errors.Unavailable():
            return TRY_LATER
    return FAILED


def explain(error: errors.BatonError | FleetError | ValueError) -> str:
    """Return one line with the next step, if there is one, and a process's last lines below it."""
    if isinstance(error, errors.Unavailable):
        return _out_of_reach(error)
    if isinstance(error, errors.Overloaded):
        return _not_now(error)
    if isinstance(error, errors.TimedOut):
        return f"not done within {error.waited_s:g} s"
    if isinstance(error, errors.Unsupported):
        return "that server does not know this call; is it a worker's address, where a router's belongs?"
    if isinstance(error, ProcessError) and error.tail:
        return "\n".join([str(error), *(f"  | {line}" for line in error.tail.splitlines())])
    return str(error)


def _out_of_reach(error: errors.Unavailable) -> str:
    if isinstance(error, Blocked):
        return f"{error.address} {error.found}: {_ADVICE[error.found.obstacle]}"
    if "failed to connect" in str(error):
        start = f"is a fleet running? start one with: {program()} up"
        return f"no router could be reached at {error.address}; {start}"
    if "errors resolving" in str(error):
        return f"no router could be reached at {error.address}: no machine of that name is known"
    return str(error)


def _not_now(error: errors.Overloaded) -> str:
    if isinstance(error, errors.Refused):
        possible = in_flags(error.attainable)
        return f"refused; possible now: {possible}, or try again in {error.retry_after_s:.1f} s"
    return f"{error}; try again in {error.retry_after_s:.1f} s"


def in_flags(attainable: Attainable) -> str:
    """Return the flags of the tightest SLO that would be accepted."""
    flags = {"ttft": attainable.ttft_ms, "tpot": attainable.tpot_ms, "itl": attainable.itl_ms}
    return " ".join(f"--{name}-ms {value}" for name, value in flags.items() if value)


def program() -> str:
    """Return this program's name if it is on PATH, else the path by which it was started."""
    started = sys.argv[0]
    if Path(started).name != "baton" or shutil.which("baton") == started:
        return "baton"
    return started
