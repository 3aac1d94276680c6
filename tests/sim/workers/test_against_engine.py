"""The simulator's worker against the step loop that it stands for: the same steps, one by one."""

from __future__ import annotations

import dataclasses

import pytest

from engine.core.commands import Decode
from scheduling.policies import by_name
from scheduling.request import StopRules
from sim.play.simulation import run
from sim.spec import FleetShape, Overheads, SimSpec
from sim.workloads.trace import TraceRequest
from tests.engine.loop_driver import VOCAB, Driver, spec
from tests.sim.conftest import make_profile, make_trace

TOKEN_BUDGET = 100
NOTHING = Overheads(receive_s=0.0, store_s=0.0, command_s=0.0, report_s=0.0, handoff_s=0.0)
TRACE = tuple(
    dataclasses.replace(
        entry,
        at_s=0.0,
        prompt_tokens=1 + entry.prompt_tokens // 6,
        output_tokens=1 + entry.output_tokens // 3,
        tenant="",
        slo_class="standard",
    )
    for entry in make_trace(16, 10.0)
)


def prompt_of(number: int, request: TraceRequest) -> list[int]:
    return [(7 * number + place) % VOCAB for place in range(request.prompt_tokens)]


# Bound on arrival, so that both have all prompts from the first step on: with room for all, with few rows,
# with prompts that are never cut, and with decodes that wait for prompts.
@pytest.mark.parametrize(
    ("policy", "max_num_seqs"), [("chunked", 64), ("chunked", 3), ("orca", 4), ("prefill_first", 8)]
)
def test_no_simulated_step_is_other_than_the_engines(policy: str, max_num_seqs: int) -> None:
    profile = make_profile(max_num_seqs=max_num_seqs)
    simulated = SimSpec(
        profile,
        FleetShape(0, 1),
        TRACE,
        policy=policy,
        token_budget=TOKEN_BUDGET,
        noise=0.0,
        overheads=NOTHING,
        log_steps=True,
    )
    (worker,) = run(simulated).workers
    engine = Driver(
        num_blocks=profile.num_blocks,
        block_size=profile.block_size,
        token_budget=TOKEN_BUDGET,
        max_num_seqs=max_num_seqs,
        max_context=profile.max_context,
        policy=by_name(policy),
        cost=profile.cost,
    )
    engine.finish(
        *(
            Decode(
                spec(number, prompt_of(number, entry), stop=StopRules(entry.output_tokens, ignore_eos=True))
            )
            for number, entry in enumerate(TRACE)
        )
    )
    shapes = [report.shape for report in engine.reports if report.shape is not None]
    assert [(step.num_decodes, step.prefill_tokens) for step in worker.steps] == [
        (shape.num_decodes, shape.num_tokens - shape.num_decodes) for shape in shapes
    ]
    assert worker.busy_s == pytest.approx(sum(map(profile.cost.predict, shapes)))
