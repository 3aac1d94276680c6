"""A follower of a group: it computes its part of the steps that its leader tells it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from engine.errors import GroupBrokenError
from engine.execution.model_runner import ModelRunner
from engine.group.adapter_loads import AdapterToLoad
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
    with ThreadPoolExecutor(1, "adapter-loads") as loads:
        try:
            while (message := link.receive()) is not None:
                if message.kind is Kind.LOAD:
                    loads.submit(_load, model, AdapterToLoad.from_bytes(message.content), link)
                else:
                    runner.forward(decoded(message.content))
        except GroupBrokenError:  # the leader is gone in the middle of a step
            return


def _load(model: Model, load: AdapterToLoad, link: Link) -> None:
    """Load an adapter while steps run, and tell the leader."""
    assert model.adapters is not None, "the leader's model has adapters"
    with suppress(GroupBrokenError):
        link.send(Kind.LOADED, [load.into(model.adapters).encode()])
