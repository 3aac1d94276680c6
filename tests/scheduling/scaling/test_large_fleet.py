"""The workers that are needed keep the promises, in a fleet that agrees with the one step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduling.placement import Placement
from scheduling.scaling.demand import NUM_SLOTS, SLOT_S, Slot, came, of_row, total
from scheduling.scaling.need import Goal, decode_needed, prefill_needed
from scheduling.scaling.steady import WorkerModel
from sim.commands.arms import Arm
from sim.commands.search import judge
from sim.play.simulation import run
from sim.spec import FleetShape, SimSpec
from sim.workload import Promises, draw
from tests.scheduling.scaling.drawn_slots import PROFILE, WORKER
from tests.scheduling.scaling.large_fleet import Asked, LargeFleet, Promise, requests

SPAN_S = 5400


@pytest.mark.parametrize("size", [1, 2, 3])
def test_it_keeps_about_as_many_promises_as_the_fleet_step_by_step(size: int) -> None:
    trace = draw("chat", "poisson", 24.0, 40.0, 1, Promises(ttft_ms=400, tpot_ms=25))
    spec = SimSpec(PROFILE, FleetShape(size, size), trace, placement=Placement.DISAGGREGATED)
    exact = judge(Arm("slack", Placement.DISAGGREGATED, spec.fleet, None), run(spec)).good
    promise = Promise(0.4, 0.025)
    asked = [Asked(request.at_s, request.prompt_tokens, request.output_tokens, promise) for request in trace]
    assert played(WORKER, asked, size, size) == pytest.approx(exact, abs=0.1)


@pytest.mark.parametrize(("chats", "documents"), [(1.0, 0.025), (0.4, 0.6)])
def test_the_workers_that_are_needed_keep_the_promises(chats: float, documents: float) -> None:
    slow = replace(WORKER, cost=WORKER.cost.scaled(20.0), prompt_limit_s=1.0)
    asked = list(requests((chats, Promise(8.0, 0.5)), (documents, Promise(100.0, 2.0)), SPAN_S, 7))
    whole: list[Slot] = []

    def hear(request: Asked, alone_s: float) -> None:
        """Add what routers record of a request."""
        slot = came(
            prompt_tokens=request.prompt_tokens,
            cached_tokens=0.0,
            num_seqs=1,
            output_tokens=float(request.output_tokens),
            slack_s=request.promise.ttft_s - alone_s,
            pace_s=request.promise.tpot_s,
        )
        whole.append(slot)

    fleet = LargeFleet(slow, 20, 20, hear)
    for request in asked:
        fleet.arrive(request)
    steady = [of_row([number * SLOT_S / SPAN_S for number in total(whole).row])] * NUM_SLOTS
    prefill, decode = (
        needed(steady, slow, Placement.DISAGGREGATED, Goal()).workers
        for needed in (prefill_needed, decode_needed)
    )
    assert played(slow, asked, prefill, decode) >= Goal().goodput
    assert played(slow, asked, max(1, prefill - 2), decode) < Goal().goodput
    assert played(slow, asked, prefill, decode - 1) < Goal().goodput


def played(worker: WorkerModel, asked: Sequence[Asked], prefill: int, decode: int) -> float:
    """Return the share of all promises that so many workers keep."""
    fleet = LargeFleet(worker, prefill, decode)
    for request in asked:
        fleet.arrive(request)
    fleet.advance(fleet.now + 600)
    return fleet.kept_share
