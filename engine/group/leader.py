"""The leader of a group waits for its followers, shares its memory with them, and sends them each step."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from engine.errors import GroupBrokenError, GroupRefused
from engine.group.links import Kind, Link, Message
from engine.group.steps import encoded
from engine.group.sums import SharedSums, SumSizes
from engine.kv.kv_pool import KVPool
from engine.model.model import Model
from engine.model.parallel.joining import join
from engine.model.parallel.part import Part
from engine.model.step_batch import StepBatch
from engine.starting import OnProgress, Phase

OPENING = struct.Struct("<2q")
"""num_blocks, tokens."""


class Leader:
    """Links to the followers of this process, the one of rank 1 first."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self.part = Part(0, len(links) + 1)

    def wait_ready(self, fingerprint: str | None, on_progress: OnProgress) -> None:
        """Wait until all followers have loaded the weights of this fingerprint; None: whichever.

        Raises GroupRefused if one cannot serve, or has other weights.
        """
        for rank, link in enumerate(self._links, 1):
            on_progress(Phase.GATHERING, rank - 1, len(self._links))
            self._check_ready(rank, link.receive(), fingerprint)

    def open(self, model: Model, pool: KVPool, tokens: int) -> None:
        """Share the pool, and join the model with its other parts, for steps of up to `tokens` tokens."""
        sums = SharedSums(self.part, self._links, sum_sizes(model, tokens))
        assert pool.fd is not None, "groups are for CPUs"
        for link in self._links:
            link.send(Kind.OPEN, [OPENING.pack(pool.num_blocks, tokens)], (pool.fd, sums.fd))
        sums.close()
        assert model.cuts is not None, "the leader has loaded its part"
        join(model.module, model.cuts, sums)

    @contextmanager
    def computing(self, batch: StepBatch) -> Iterator[None]:
        """Let followers compute a step meanwhile; implements `Group` of the model runner.

        If the step fails here, the followers wait for a result that does not come: nothing can follow.
        """
        content = encoded(batch)
        for link in self._links:
            link.send(Kind.STEP, content)
        try:
            yield
        except Exception as error:
            raise GroupBrokenError(f"a step failed: {error}") from error

    def _check_ready(self, rank: int, message: Message | None, fingerprint: str | None) -> None:
        if message is None:
            raise GroupRefused(self.part.size, rank, "ended while it started", "a process that starts")
        text = message.content.decode()
        if message.kind is not Kind.READY:
            raise GroupRefused(self.part.size, rank, f"cannot serve ({text})", "the leader's settings")
        if fingerprint is not None and text != fingerprint:
            found = f"holds weights of the fingerprint {text}"
            raise GroupRefused(self.part.size, rank, found, f"{fingerprint}, the leader's")


def sum_sizes(model: Model, tokens: int) -> SumSizes:
    """Return the sizes of the memory in which the parts of a model meet, the same in all processes."""
    config: Any = model.module.config
    return SumSizes(tokens, config.hidden_size, model.facts.vocab_size, model.dtype)
