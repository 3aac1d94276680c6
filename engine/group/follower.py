"""A follower of a group: it computes its part of each step."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from engine.errors import GroupBrokenError
from engine.execution.model_runner import ModelRunner
from engine.group.adapter_loads import AdapterToLoad
from engine.group.leader import OPENING, sum_sizes
from engine.group.links import Channel, Kind, Link
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
    opening = link.receive()
    if opening is None:
        return
    assert opening.kind is Kind.OPEN
    num_blocks, tokens = OPENING.unpack(opening.content)
    pool_fd, memory_fd, *sockets = opening.fds
    channels = [Channel(socket.socket(fileno=fd)) for fd in sockets]
    runner = ModelRunner(model, KVPool(model.block_layout(block_size), num_blocks, fd=pool_fd))
    if model.stage is not None:
        slots = StageSlots(model.stage.stage.size, sum_sizes(model, tokens), memory_fd)
        join_stage(model.module, model.stage, slots)
        steps = partial(follow_stages, runner, slots, *channels)
    else:
        assert model.cuts is not None, "it was loaded as a part"
        sums = SharedSums(model.cuts.part, [link], sum_sizes(model, tokens), memory_fd)
        join(model.module, model.cuts, sums)
        steps = partial(_follow_steps, runner, link)
    for fd in (pool_fd, memory_fd):  # what is mapped stays
        os.close(fd)
    runner.pool.fd = None
    try:
        steps()
    except GroupBrokenError:  # another process is gone in the middle of a step
        return
    finally:
        for channel in channels:
            channel.close()


def _follow_steps(runner: ModelRunner, link: Link) -> None:
    with ThreadPoolExecutor(1, "adapter-loads") as loads:
        while (message := link.receive()) is not None:
            if message.kind is Kind.LOAD:
                loads.submit(_load, runner.model, AdapterToLoad.from_bytes(message.content), link)
            else:
                runner.forward(decoded(message.content))


def _load(model: Model, load: AdapterToLoad, link: Link) -> None:
    """Load an adapter while steps run, and tell the leader."""
    assert model.adapters is not None, "the leader's model has adapters"
    with suppress(GroupBrokenError):
        link.send(Kind.LOADED, [load.into(model.adapters).encode()])
