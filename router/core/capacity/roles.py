"""The shares of time that decode workers spend on prompts and on decodes, and the role weights they give."""

from __future__ import annotations

import math

from router.core.capacity.fleet import Fleet, Worker
from router.core.events import StepReported
from scheduling.cost.cost_model import StepShape
from scheduling.roles import MixedLoad, Roles, rebalance

WINDOW_S = 10.0


def observe(worker: Worker, report: StepReported, now: float) -> None:
    """Take a step into the averages; all the time since the last report counts as spent like this step."""
    since_s, worker.reported_at = now - worker.reported_at, now
    shape = report.shape
    if shape is None or report.step_s <= 0 or not math.isfinite(since_s):
        return
    is_busy = report.load.running > 0 or report.load.pending_prefill_tokens > 0
    busy = 1.0 if is_busy else min(1.0, report.step_s / max(since_s, report.step_s))
    decode = _decode_part(worker, shape) * busy
    weight = 1 - math.exp(-since_s / WINDOW_S)
    worker.decode_share += weight * (decode - worker.decode_share)
    worker.prefill_share += weight * (busy - decode - worker.prefill_share)


def _decode_part(worker: Worker, shape: StepShape) -> float:
    """Return the share of a step that its decodes alone would have taken."""
    if shape.num_tokens == shape.num_decodes:
        return 1.0
    if shape.num_decodes == 0:
        return 0.0
    whole = worker.cost.predict(shape)
    alone = worker.cost.predict(StepShape.of(shape.num_decodes, shape.decode_context, ()))
    return min(1.0, alone / whole) if whole > 0 else 0.0


def rebalanced(fleet: Fleet, now: float) -> Roles:
    """Return the fleet's role weights, moved if the fleet has been out of balance for long."""
    mixed = [
        MixedLoad(worker.key, _share(worker.prefill_share), _share(worker.decode_share))
        for worker in fleet.decoding
    ]
    dedicated = [_share(worker.prefill_share) for worker in fleet.prefilling]
    return rebalance(fleet.roles, mixed, dedicated, now)


def _share(average: float) -> float:
    """Return the average within 0 and 1: sums of roundings may leave that range slightly."""
    return min(1.0, max(0.0, average))
