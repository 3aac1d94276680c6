"""An answer of one token never decodes: its prompt's end is its end."""

from scheduling.placement import Placement
from sim.play.simulation import Simulation
from sim.result import End
from sim.spec import FleetShape, SimSpec
from sim.workloads.trace import TraceRequest
from tests.sim.conftest import make_profile


def test_a_one_token_answer_to_whole_blocks_returns_all_blocks() -> None:
    block_size = make_profile().block_size
    trace = tuple(TraceRequest(at * 0.001, 4 * block_size, 1 + at % 2 * 40) for at in range(20))
    for fleet, placement in (
        (FleetShape(0, 1), Placement.AGGREGATED),
        (FleetShape(1, 1), Placement.DISAGGREGATED),
    ):
        simulation = Simulation(SimSpec(make_profile(), fleet, trace, placement=placement))
        result = simulation.run()
        assert {request.end for request in result.requests} == {End.FINISHED}
        assert not result.leftovers
