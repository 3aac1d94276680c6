"""A follower of a group: it computes its part of the steps that its leader tells it."""

from __future__ import annotations

import os

from engine.errors import GroupBrokenError
from engine.execution.model_runner import ModelRunner
from engine.group.leader import OPENING, sum_sizes
from engine.group.links import Kind, Link
from engine.group.steps import decoded
from engine.group.sums import SharedSums
from engine.kv.kv_pool import KVPool
from engine.model.model import Model
from engine.model.parallel.joining import join


def follow(model: Model, block_size: int, fingerprint: str, link: Link) -> None:
    """Compute steps with a loaded part of a model until the leader is gone."""
    link.send(Kind.READY, [fingerprint.encode()])
    opening = link.receive()
    if opening is None:
        return
    assert opening.kind is Kind.OPEN
    assert model.cuts is not None, "it was loaded as a part"
    num_blocks, tokens = OPENING.unpack(opening.content)
    pool_fd, sums_fd = opening.fds
    pool = KVPool(model.block_layout(block_size), num_blocks, fd=pool_fd)
    sums = SharedSums(model.cuts.part, [link], sum_sizes(model, tokens), sums_fd)
    for fd in opening.fds:  # what is mapped stays
        os.close(fd)
    pool.fd = None
    join(model.module, model.cuts, sums)
    runner = ModelRunner(model, pool)
    try:
        while (message := link.receive()) is not None:
            runner.forward(decoded(message.content))
    except GroupBrokenError:  # the leader is gone in the middle of a step
        return
