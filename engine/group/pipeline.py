"""Steps through a pipeline: each stage computes some layers and passes the step on to the next one.

The leader is the first stage. It sends a step's batch to the second stage when the activations are in their
slot (`engine.group.slots`), which sends it on to the third, and so on; the last one tells the leader that the
logits are there. So a message is all that a stage waits for, and stages compute different steps at once.

A stage adds to the message how long it has computed. The leader finds out by the sum how long the step lay
between two stages, which is no cost of the step itself.

Where several processes compute a stage, each has a part of its layers (`engine.group.sums`) and passes steps
on to the process with the same part of the next stage, by slots and links of its own. So only parts of one
stage wait for each other. The leader sends a step to the other parts of the first stage, and the first part
of the last one has the logits. Ranks count the parts of the first stage, then those of the second one, and
so on.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from engine.errors import GroupBrokenError
from engine.execution.model_runner import ModelRunner
from engine.execution.stages import Passed
from engine.group.adapter_loads import begin_load, end_load
from engine.group.leader import differs, sum_sizes, wait_ready
from engine.group.links import Kind, Link, Meeting, meetings
from engine.group.opening import Opening
from engine.group.slots import StageSlots
from engine.group.steps import decoded, encoded
from engine.group.sums import SharedSums
from engine.model.adapters.checkpoint import AdapterFiles
from engine.model.attention.step_batch import StepBatch
from engine.model.parallel.joining import join
from engine.model.parallel.part import Part
from engine.model.parallel.stage import join_stage
from engine.starting import OnProgress

_SECONDS = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class _Ways:
    """The links by which steps come to a process and leave it."""

    before: Link
    after: Link | None
    """None in the last stage, except to the leader."""

    @property
    def hops(self) -> tuple[Link, ...]:
        return (self.before,) if self.after is None else (self.before, self.after)


@dataclass(frozen=True, slots=True)
class _Stages:
    """The leader's stage and its ways to the others, once all are joined."""

    run: Callable[[StepBatch], Tensor]
    slots: StageSlots
    before: Link
    after: Link
    peers: tuple[Link, ...]
    """Those to the other parts of the first stage."""
    meetings: tuple[Meeting, ...]

    @property
    def sockets(self) -> tuple[Link | Meeting, ...]:
        return (self.before, self.after, *self.peers, *self.meetings)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A step in flight."""

    num_rows: int
    """Its rows of logits."""
    at_s: float


class Pipeline:
    """The stages of a worker, of which this process is the first one; implements `Stages` and `Group`.

    `links` are those to the other processes, by rank. Each stage has `num_parts` of them.
    """

    def __init__(self, links: Sequence[Link], num_parts: int = 1) -> None:
        self._links = links
        self._num_parts = num_parts
        self._num_stages = (len(links) + 1) // num_parts
        self._opened: _Stages | None = None
        self._sent: deque[_Sent] = deque()
        self._num_received = 0

    @property
    def num_stages(self) -> int:
        """Implements `Stages`."""
        return self._num_stages

    def wait_ready(self, fingerprint: str | None, on_progress: OnProgress) -> None:
        """Wait until all others have loaded the weights of this fingerprint; None: whichever.

        Raises GroupRefused if one cannot serve, or has other weights.
        """
        flags = f"--pipeline-parallel {self._num_stages}"
        if self._num_parts > 1:
            flags = f"--tensor-parallel {self._num_parts} {flags}"
        wait_ready(flags, self._links, partial(differs, fingerprint), on_progress)

    def open(self, runner: ModelRunner, tokens: int) -> None:
        """Share the pool of the leader's runner, and join all processes, for steps of up to `tokens`."""
        model, pool = runner.model, runner.pool
        assert pool.fd is not None, "groups are for CPUs"
        assert model.stage is not None, "the leader has loaded its stage"
        sizes = sum_sizes(model, tokens)
        slots = [StageSlots(self._num_stages, sizes) for _ in range(self._num_parts)]
        met = [meetings(self._num_parts) for _ in range(self._num_stages)]
        sums = [SharedSums(Part(0, self._num_parts), own, sizes) for own, *_ in met] if model.cuts else []
        ways, peers = _ways(self._num_stages, self._num_parts)
        for rank, link in enumerate(self._links, 1):
            stage, part = divmod(rank, self._num_parts)
            opening = Opening(
                pool.num_blocks,
                tokens,
                pool.fd,
                sums_fd=sums[stage].fd if sums else None,
                meetings=met[stage][part],
                slots_fd=slots[part].fd,
                hops=ways[stage][part].hops,
            )
            opening.send(link)
            opening.close_sockets()
        memory: tuple[StageSlots | SharedSums, ...] = (*slots, *sums)
        for each in memory:
            each.close()
        if model.cuts is not None:  # first the parts of each layer, as stages replace what holds the layers
            join(model.module, model.cuts, sums[0])
        join_stage(model.module, model.stage, slots[0])
        own = ways[0][0]
        assert own.after is not None, "there are several stages"
        self._opened = _Stages(runner.run_part, slots[0], own.before, own.after, peers, met[0][0])

    def forward(self, batch: StepBatch, _run: Callable[[StepBatch], Tensor]) -> Tensor:
        """Compute a step while no other is in flight; implements `Group` of the model runner."""
        assert not self._sent, "a step is in flight"
        self.send(batch)
        return self.receive().logits

    def send(self, batch: StepBatch) -> None:
        """Compute the first stage of a step and send it on; implements `Stages`.

        What the first stage raises fails this step alone, unless it has several parts: the others wait then
        for a result that does not come. Raises GroupBrokenError if this happens, or another process is gone.
        """
        stages = self._joined
        assert len(self._sent) <= self._num_stages, "all slots are taken"
        content = [_SECONDS.pack(0.0), *encoded(batch)]
        stages.slots.begin(len(batch.token_ids))
        for peer in stages.peers:
            peer.send(Kind.STEP, content)
        try:
            stages.run(batch)
        except Exception as error:
            if stages.peers:
                raise GroupBrokenError(f"a step failed: {error}") from error
            stages.slots.give_up()
            raise
        self._sent.append(_Sent(len(batch.logit_rows), time.perf_counter()))
        stages.after.send(Kind.STEP, content)

    def has_passed(self) -> bool:
        """Implements `Stages`."""
        return self._joined.before.has_message()

    def receive(self) -> Passed:
        """Implements `Stages`. Raises GroupBrokenError if a stage is gone."""
        stages = self._joined
        message = stages.before.receive()
        if message is None:
            raise GroupBrokenError("a process of the group is gone")
        (computed_s,) = _SECONDS.unpack(message.content)
        sent, number = self._sent.popleft(), self._num_received
        self._num_received += 1
        idle_s = max(0.0, time.perf_counter() - sent.at_s - computed_s)
        return Passed(stages.slots.logits(number, sent.num_rows), idle_s)

    def begin_load(self, slot: int, files: AdapterFiles) -> None:
        """Implements `Loading`."""
        begin_load(self._links, slot, files)

    def end_load(self, files: AdapterFiles) -> None:
        """Implements `Loading`."""
        end_load(self._links, files)

    def close(self) -> None:
        """Let the other processes end, as they do when this one does."""
        if self._opened is not None:
            for each in self._opened.sockets:
                each.close()

    @property
    def _joined(self) -> _Stages:
        assert self._opened is not None, "it is opened first"
        return self._opened


def follow_stages(runner: ModelRunner, slots: StageSlots, before: Link, after: Link | None = None) -> None:
    """Compute a process's share of each step that comes from the one before, until that is gone.

    Without `after` it passes nothing on: it has a part of the last stage, and the first one has the logits.
    """
    stage = runner.model.stage
    assert stage is not None
    while (message := before.receive()) is not None:
        began_s = time.perf_counter()
        (computed_s,) = _SECONDS.unpack_from(message.content)
        content = message.content[_SECONDS.size :]
        batch = decoded(content)
        slots.begin(len(batch.token_ids))
        logits = runner.forward(batch)
        if after is None:
            continue
        if stage.is_last:
            slots.leave_logits(logits)
        seconds = _SECONDS.pack(computed_s + time.perf_counter() - began_s)
        if stage.is_last:
            after.send(Kind.PASSED, [seconds])
        else:
            after.send(Kind.STEP, [seconds, content])


def _ways(num_stages: int, num_parts: int) -> tuple[list[list[_Ways]], tuple[Link, ...]]:
    """Return the ways of each part of each stage, and those from the leader to the others of its stage."""
    into = [[Link.pair() for _ in range(num_parts)] for _ in range(num_stages)]
    ways = [
        [_Ways(into[stage][part][1], into[stage + 1][part][0]) for part in range(num_parts)]
        for stage in range(num_stages - 1)
    ]
    last = [own for _, own in into[-1]]
    ways.append([_Ways(last[0], into[0][0][0]), *(_Ways(own, None) for own in last[1:])])
    return ways, tuple(sender for sender, _ in into[0][1:])
