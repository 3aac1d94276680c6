"""The fleet in the large agrees with the fleet step by step, and loses nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.placement import Placement
from scheduling.scaling.demand import NUM_SLOTS, SLOT_S, Slot, of_row, total
from scheduling.scaling.need import Goal, decode_needed, prefill_needed
from scheduling.scaling.steady import WorkerModel
from services.profiles import load_profile
from sim import FleetShape, SimSpec, run
from sim.commands.arms import Arm
from sim.commands.search import judge
from sim.scaling.arms import Arm as ScalingArm
from sim.scaling.arms import Queue, Slack, Utilisation, as_slot
from sim.scaling.day import DAY_S, Asked, DaySpec, Promise, bursts, requests
from sim.scaling.fleet import Fleet
from sim.scaling.known import known
from sim.scaling.play import Limits, play
from sim.workload import Promises, draw

PROFILE = load_profile("h200-llama-3.1-8b")
WORKER = WorkerModel(
    PROFILE.cost, PROFILE.token_budget, PROFILE.num_blocks, PROFILE.block_size, PROFILE.max_num_seqs, 0.05
)
PROMISE = Promise(0.4, 0.025)
DAY = DaySpec(PROMISE, Promise(2.0, 0.05), 1.0, 20.0, 1.0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_it_keeps_about_as_many_promises_as_the_fleet_step_by_step(size: int) -> None:
    promises = Promises(ttft_ms=400, tpot_ms=25)
    trace = draw("chat", "poisson", 24.0, 40.0, 1, promises)
    spec = SimSpec(PROFILE, FleetShape(size, size), trace, placement=Placement.DISAGGREGATED)
    exact = judge(Arm("slack", Placement.DISAGGREGATED, spec.fleet, None), run(spec)).good
    fleet = Fleet(WORKER, 1)
    for role in ("prefill", "decode"):
        fleet.scale(role, size, at_once=True)
    for request in trace:
        fleet.arrive(Asked(request.at_s, request.prompt_tokens, request.output_tokens, PROMISE))
    fleet.advance(fleet.now + 60)
    tally = fleet.finish()
    assert tally.kept / tally.requests == pytest.approx(exact, abs=0.1)


@pytest.mark.parametrize(("chats", "documents"), [(1.0, 0.025), (0.4, 0.6)])
def test_the_workers_that_are_needed_keep_the_promises(chats: float, documents: float) -> None:
    slow = replace(WORKER, cost=WORKER.cost.scaled(20.0), prompt_limit_s=1.0)
    loose = Promise(100.0, 2.0)
    spec = DaySpec(Promise(8.0, 0.5), loose, chats, chats, documents, (0.0, DAY_S), bursts_per_hour=0.0)
    day = list(takewhile(lambda asked: asked.at_s < 5400, requests(spec, 7)))
    whole: list[Slot] = []
    fleet = Fleet(slow, 1, lambda asked, alone_s: whole.append(as_slot(asked, alone_s)))
    played(fleet, day, 20, 20)
    steady = [of_row([number * SLOT_S / 5400 for number in total(whole).row])] * NUM_SLOTS
    prefill, decode = (
        needed(steady, slow, Placement.DISAGGREGATED, Goal()).workers
        for needed in (prefill_needed, decode_needed)
    )
    assert played(Fleet(slow, 1), day, prefill, decode) >= Goal().goodput
    assert played(Fleet(slow, 1), day, max(1, prefill - 2), decode) < Goal().goodput
    assert played(Fleet(slow, 1), day, prefill, decode - 1) < Goal().goodput


def played(fleet: Fleet, day: Sequence[Asked], prefill: int, decode: int) -> float:
    """Return the share of a day's promises that so many workers keep."""
    fleet.scale("prefill", prefill, at_once=True)
    fleet.scale("decode", decode, at_once=True)
    for asked in day:
        fleet.arrive(asked)
    fleet.advance(fleet.now + 600)
    tally = fleet.finish()
    return tally.kept / tally.requests


@given(st.integers(0, 99), st.sampled_from(["slack", "utilisation", "queue", "known"]))
@settings(max_examples=6)
def test_every_request_ends_and_every_worker_is_paid_for(seed: int, kind: str) -> None:
    begin = list(takewhile(lambda asked: asked.at_s < 900, requests(DAY, seed)))
    arms: dict[str, ScalingArm] = {
        "slack": Slack(WORKER, Goal()),
        "utilisation": Utilisation(0.6, 0.3, WORKER),
        "queue": Queue(1.0, 60.0),
        "known": known(DAY, begin, seed, WORKER, (0.8, 0.8), 150.0),
    }
    result = play(begin, WORKER, arms[kind], seed, Limits())
    assert result.requests == len(begin)
    assert result.kept_share + result.refused_share <= 1
    assert result.worker_hours >= 2 * 900 / 3600


def test_workers_are_ready_for_a_burst_that_is_known() -> None:
    day = list(islice(requests(DAY, 1), 2000))
    burst = bursts(DAY, random.Random("day:1"))[0]
    fleet = Fleet(WORKER, 1)
    fleet.advance(burst.begin_s - 90)
    now, ahead = (known(DAY, day, 1, WORKER, (0.02, 0.02), ahead_s) for ahead_s in (0.0, 150.0))
    for role in ("prefill", "decode"):
        assert ahead.propose(fleet, role) > 1.2 * now.propose(fleet, role)


def test_a_day_is_the_same_for_the_same_seed_and_has_bursts() -> None:
    one, same, other = (list(islice(requests(DAY, seed), 2000)) for seed in (3, 3, 4))
    assert one == same != other
    times = [asked.at_s for asked in one]
    assert times == sorted(times)
    assert bursts(DAY, random.Random(1))
