"""The leader of a group waits for its followers, shares its memory with them, and sends them each step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from engine.errors import GroupBrokenError, GroupRefused
from engine.execution.model_runner import ModelRunner
from engine.group.adapter_loads import begin_load, end_load
from engine.group.links import Bytes, Kind, Link, Meeting, Message, meetings
from engine.group.opening import Opening
from engine.group.steps import encoded
from engine.group.sums import SharedSums, SumSizes
from engine.model.adapters.checkpoint import AdapterFiles
from engine.model.attention.step_batch import StepBatch
from engine.model.model import Model
from engine.model.parallel.joining import join
from engine.model.parallel.part import Part
from engine.starting import OnProgress, Phase

Difference = Callable[[str], tuple[str, str] | None]
"""Returns what a follower announces that is not the leader's, and what would be accepted; None: nothing."""


class Leader:
    """Links to the followers of this process by rank; each computes a part of every layer."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._sending = threading.Lock()  # steps and loads are told by different threads
        self._meetings: tuple[Meeting, ...] = ()
        self.part = Part(0, len(links) + 1)

    def wait_ready(self, fingerprint: str | None, on_progress: OnProgress) -> None:
        """Wait until all followers have loaded the weights of this fingerprint; None: whichever.

        Raises GroupRefused if one cannot serve, or has other weights.
        """
        difference = partial(differs, fingerprint)
        wait_ready(f"--tensor-parallel {self.part.size}", self._links, difference, on_progress)

    def open(self, runner: ModelRunner, tokens: int) -> None:
        """Share the runner's pool, and join its model with the other parts, for steps of up to `tokens`."""
        model, pool = runner.model, runner.pool
        self._meetings, *theirs = meetings(self.part.size)
        sums = SharedSums(self.part, self._meetings, sum_sizes(model, tokens))
        assert pool.fd is not None, "groups are for CPUs"
        for link, own in zip(self._links, theirs, strict=True):
            opening = Opening(pool.num_blocks, tokens, pool.fd, sums_fd=sums.fd, meetings=own)
            opening.send(link)
            opening.close_sockets()
        sums.close()
        assert model.cuts is not None, "the leader has loaded its part"
        join(model.module, model.cuts, sums)

    def forward(self, batch: StepBatch, run: Callable[[StepBatch], Tensor]) -> Tensor:
        """Let followers compute a step too; implements `Group` of the model runner.

        If the step fails here, the followers wait for a result that does not come: nothing can follow.
        """
        self._send(Kind.STEP, encoded(batch))
        try:
            return run(batch)
        except Exception as error:
            raise GroupBrokenError(f"a step failed: {error}") from error

    def begin_load(self, slot: int, files: AdapterFiles) -> None:
        """Implements `Loading`."""
        with self._sending:
            begin_load(self._links, slot, files)

    def end_load(self, files: AdapterFiles) -> None:
        """Implements `Loading`."""
        end_load(self._links, files)

    def close(self) -> None:
        """Let followers end that wait for this process in the middle of a step."""
        for meeting in self._meetings:
            meeting.close()

    def _send(self, kind: Kind, content: Sequence[Bytes]) -> None:
        with self._sending:
            for link in self._links:
                link.send(kind, content)


def wait_ready(flags: str, links: Sequence[Link], difference: Difference, on_progress: OnProgress) -> None:
    """Wait until all followers have loaded what they compute with; `difference` looks at what they announce.

    Raises GroupRefused, naming the flags that ask for the group, if one cannot serve, or differs from the
    leader.
    """
    for rank, link in enumerate(links, 1):
        on_progress(Phase.GATHERING, rank - 1, len(links))
        fault = _fault(link.receive(), difference)
        if fault is not None:
            raise GroupRefused(flags, rank, *fault)


def differs(fingerprint: str | None, theirs: str) -> tuple[str, str] | None:
    """Return in what way a follower's weights are not those of this fingerprint; None: whichever."""
    if fingerprint is None or theirs == fingerprint:
        return None
    return f"holds weights of the fingerprint {theirs}", f"{fingerprint}, the leader's"


def _fault(message: Message | None, difference: Difference) -> tuple[str, str] | None:
    """Return what a follower's first message shows, and what would be accepted; None if it can serve."""
    if message is None:
        return "ended while it started", "a process that starts"
    text = message.content.decode()
    if message.kind is not Kind.READY:
        return f"cannot serve ({text})", "the leader's settings"
    return difference(text)


def sum_sizes(model: Model, tokens: int) -> SumSizes:
    """Return the sizes of the memory in which the parts of a model meet, the same in all processes."""
    config: Any = model.module.config
    return SumSizes(tokens, config.hidden_size, model.facts.vocab_size, model.dtype)
