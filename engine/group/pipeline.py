"""Steps through a pipeline: each stage computes some layers and passes the step on to the next one.

The leader is the first stage. It sends a step's batch to the second stage when the activations are in their
slot (`engine.group.slots`), which sends it on to the third, and so on; the last one tells the leader that the
logits are there. So a message is all that a stage waits for, and stages compute different steps at once.

A stage adds to the message how long it has computed. The leader finds out by the sum how long the step lay
between two stages, which is no cost of the step itself.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.errors import GroupBrokenError
from engine.execution.model_runner import ModelRunner
from engine.execution.stages import Passed
from engine.group.leader import OPENING, sum_sizes, wait_ready
from engine.group.links import Channel, Kind, Link
from engine.group.slots import StageSlots
from engine.group.steps import decoded, encoded
from engine.model.parallel.stage import join_stage
from engine.model.step_batch import StepBatch
from engine.starting import OnProgress

_SECONDS = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class _Stages:
    """The leader's stage and its way to the others, once all are joined."""

    run: Callable[[StepBatch], Tensor]
    slots: StageSlots
    before: Channel
    after: Channel


@dataclass(frozen=True, slots=True)
class _Sent:
    """A step in flight."""

    num_rows: int
    """Its rows of logits."""
    at_s: float


class Pipeline:
    """The stages of a worker, of which this process is the first one; implements `Stages` and `Group`.

    `links` are those to the processes of the other stages, in order.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._opened: _Stages | None = None
        self._sent: deque[_Sent] = deque()
        self._num_received = 0

    @property
    def num_stages(self) -> int:
        """Implements `Stages`."""
        return len(self._links) + 1

    def wait_ready(self, fingerprint: str | None, on_progress: OnProgress) -> None:
        """Wait until all stages have loaded the weights of this fingerprint; None: whichever.

        Raises GroupRefused if one cannot serve, or has other weights.
        """
        wait_ready("--pipeline-parallel", self._links, fingerprint, on_progress)

    def open(self, runner: ModelRunner, tokens: int) -> None:
        """Share the pool of the first stage's runner, and join the stages, for steps of up to `tokens`."""
        model, pool = runner.model, runner.pool
        assert pool.fd is not None, "groups are for CPUs"
        assert model.stage is not None, "the leader has loaded its stage"
        slots = StageSlots(self.num_stages, sum_sizes(model, tokens))
        # One from each stage to the next, and from the last to the first.
        hops = [Channel.pair() for _ in range(self.num_stages)]
        for rank, link in enumerate(self._links, 1):
            ends = hops[rank - 1][1], hops[rank][0]
            shared = (pool.fd, slots.fd, *(end.socket.fileno() for end in ends))
            link.send(Kind.OPEN, [OPENING.pack(pool.num_blocks, tokens)], shared)
            for end in ends:
                end.close()
        slots.close()
        join_stage(model.module, model.stage, slots)
        self._opened = _Stages(runner.run_part, slots, hops[-1][1], hops[0][0])

    def forward(self, batch: StepBatch, _run: Callable[[StepBatch], Tensor]) -> Tensor:
        """Compute a step while no other is in flight; implements `Group` of the model runner."""
        assert not self._sent, "a step is in flight"
        self.send(batch)
        return self.receive().logits

    def send(self, batch: StepBatch) -> None:
        """Compute the first stage of a step and send it on; implements `Stages`.

        What the first stage raises fails this step alone. Raises GroupBrokenError if the next one is gone.
        """
        stages = self._joined
        assert len(self._sent) <= self.num_stages, "all slots are taken"
        stages.slots.begin(len(batch.token_ids))
        try:
            stages.run(batch)
        except Exception:
            stages.slots.give_up()
            raise
        self._sent.append(_Sent(len(batch.logit_rows), time.perf_counter()))
        stages.after.send(Kind.STEP, [_SECONDS.pack(0.0), *encoded(batch)])

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

    def close(self) -> None:
        """Let the other stages end, as they do when this process does."""
        if self._opened is not None:
            self._opened.before.close()
            self._opened.after.close()

    @property
    def _joined(self) -> _Stages:
        assert self._opened is not None, "it is opened first"
        return self._opened


def follow_stages(runner: ModelRunner, slots: StageSlots, before: Channel, after: Channel) -> None:
    """Compute one stage of each step that comes from the one before, until that is gone."""
    stage = runner.model.stage
    assert stage is not None
    while (message := before.receive()) is not None:
        began_s = time.perf_counter()
        (computed_s,) = _SECONDS.unpack_from(message.content)
        content = message.content[_SECONDS.size :]
        batch = decoded(content)
        slots.begin(len(batch.token_ids))
        logits = runner.forward(batch)
        if stage.is_last:
            slots.leave_logits(logits)
        seconds = _SECONDS.pack(computed_s + time.perf_counter() - began_s)
        if stage.is_last:
            after.send(Kind.PASSED, [seconds])
        else:
            after.send(Kind.STEP, [seconds, content])
