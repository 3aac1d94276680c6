"""The fleet on a simulated clock: the router's own decisions, with nothing waited for.

`run(SimSpec(...))` plays a trace and answers a `SimResult`, which `measure` folds into figures.
"""

from sim.metrics import Metrics, measure
from sim.result import RequestResult, SimResult
from sim.simulation import run
from sim.spec import FleetShape, Overheads, SimSpec
from sim.workers.step_times import RecordedStep

__all__ = [
    "FleetShape",
    "Metrics",
    "Overheads",
    "RecordedStep",
    "RequestResult",
    "SimResult",
    "SimSpec",
    "measure",
    "run",
]
