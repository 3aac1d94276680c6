"""A follower of a group: it computes its part, or its stage, of each step."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from engine.errors import GroupBrokenError
from engine.execution.model_runner import ModelRunner
from engine.group.adapter_loads import follow_loads, load_own
from engine.group.leader import sum_sizes
from engine.group.links import Kind, Link
from engine.group.opening import Opening
from engine.group.pipeline import follow_stages
from engine.group.slots import StageSlots
from engine.group.steps import decoded
from engine.group.sums import SharedSums
from engine.kv.kv_pool import KVPool
from engine.model.model import Model
from engine.model.parallel.joining import join
from engine.model.parallel.stage import join_stage


def follow(model: Model, block_size: int, fingerprint: str, link: Link) -> None:
    """Compute steps with a loaded part, or stage, of a model until the leader is gone."""
    link.send(Kind.READY, [fingerprint.encode()])
    message = link.receive()
    if message is None:
        return
    opening = Opening.received(message)
    sizes = sum_sizes(model, opening.tokens)
    pool = KVPool(model.block_layout(block_size), opening.num_blocks, fd=opening.pool_fd)
    runner = ModelRunner(model, pool)
    steps = partial(_follow_steps, runner, link)
    if model.cuts is not None:  # before its stage, as the leader does
        join(model.module, model.cuts, SharedSums(model.cuts.part, opening.meetings, sizes, opening.sums_fd))
    if model.stage is not None:
        slots = StageSlots(model.stage.stage.size, sizes, opening.slots_fd)
        join_stage(model.module, model.stage, slots)
        steps = partial(follow_stages, runner, slots, *opening.hops)
        # Not waited for when this process ends: the leader has to see that at once.
        loads = model.adapters, link
        threading.Thread(target=follow_loads, args=loads, name="adapter-loads", daemon=True).start()
    opening.close_memory()
    pool.fd = None
    try:
        steps()
    except GroupBrokenError:  # another process is gone in the middle of a step
        return
    finally:
        opening.close_sockets()


def _follow_steps(runner: ModelRunner, link: Link) -> None:
    """Compute the steps of a part of all layers, and load adapters meanwhile."""
    with ThreadPoolExecutor(1, "adapter-loads") as loads:
        while (message := link.receive()) is not None:
            if message.kind is Kind.LOAD:
                loads.submit(load_own, runner.model.adapters, message.content, link)
            else:
                runner.forward(decoded(message.content))
