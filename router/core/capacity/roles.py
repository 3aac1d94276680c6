"""What workers spend their time on, and the role weights that follow from it."""

from __future__ import annotations

import math

from router.core.capacity.fleet import DECODE, PREFILL, Worker
from router.core.events import StepReported
from router.core.state import RouterState
from scheduling.cost.cost_model import StepShape
from scheduling.roles import MixedLoad, rebalance

WINDOW_S = 10.0


def observe(state: RouterState, worker: Worker, event: StepReported) -> None:
    """Take a step into the averages. What happened between two reports is taken to be like the last step."""
    since_s, worker.reported_at = state.now - worker.reported_at, state.now
    shape = event.shape
    if shape is None or event.step_s <= 0 or not math.isfinite(since_s):
        return
    is_busy = event.load.running > 0 or event.load.pending_prefill_tokens > 0
    busy = 1.0 if is_busy else min(1.0, event.step_s / max(since_s, event.step_s))
    decode = _decode_part(worker, shape) * busy
    weight = 1 - math.exp(-since_s / WINDOW_S)
    worker.decode_share += weight * (decode - worker.decode_share)
    worker.prefill_share += weight * (busy - decode - worker.prefill_share)


def _decode_part(worker: Worker, shape: StepShape) -> float:
    """The share of a step that its decodes alone would have taken."""
    if shape.num_tokens == shape.num_decodes:
        return 1.0
    if shape.num_decodes == 0:
        return 0.0
    whole = worker.cost.predict(shape)
    alone = worker.cost.predict(StepShape.of(shape.num_decodes, shape.decode_context, ()))
    return min(1.0, alone / whole) if whole > 0 else 0.0


def rebalance_roles(state: RouterState) -> None:
    """Move the weights, if the fleet has been out of balance for long."""
    mixed = [
        MixedLoad(one.key, _share(one.prefill_share), _share(one.decode_share))
        for one in state.fleet.open(DECODE)
    ]
    dedicated = [_share(one.prefill_share) for one in state.fleet.open(PREFILL)]
    state.roles = rebalance(state.roles, mixed, dedicated, state.now)


def _share(average: float) -> float:
    """Sums of roundings may leave the range by a hair."""
    return min(1.0, max(0.0, average))
