"""Requests for a fleet of two workers that have prompts to compute."""

from __future__ import annotations

from router.core.core import RouterCore
from router.core.model.actions import Action, ChargeTenant
from router.core.model.events import Charged, Enqueued, StepReported, WorkerLoad
from scheduling.admission.shares import Standing
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.request import Slo
from tests.router.core_driver import ARRIVAL, ONE, TWO, call, core_of, tell

COST = CostModel((0.0, 0.0, 0.001, 0.0, 0.0, 0.0), 0.0)
"""A millisecond for each token: two workers compute two of them in one."""
WITHIN_SHARE = Standing(0.0, None, 0, is_over=False)


def core_with(bound: int) -> RouterCore:
    """Both workers have so many prompt tokens to compute."""
    core = core_of("slack", cost=COST)
    load = WorkerLoad(running=1, pending_prefill_tokens=bound, free_blocks=64, context_tokens=8)
    for facts in (ONE, TWO):
        tell(core, StepReported(facts.key, TokenColumns(), load))
    return core


def ask(
    core: RouterCore, number: int, tokens: int, slo: Slo, ahead: int, standing: Standing = WITHIN_SHARE
) -> list[Action]:
    """A request of so many tokens comes, behind so many that wait."""
    event = call(ARRIVAL, prompt_token_ids=range(tokens), slo=slo)
    key = f"t/r{number}/0"
    named = call(event, listener=number, request_id=f"r{number}")
    told = tell(core, named, Enqueued(key, 1 if ahead else 0, ahead))
    if any(isinstance(action, ChargeTenant) for action in told):
        told += tell(core, Charged(key, standing))
    return told
