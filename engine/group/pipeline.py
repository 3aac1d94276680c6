"""Steps through a pipeline: each stage computes some layers and passes the step on to the next one.

The leader is the first stage. It sends a step's batch to the second stage when the activations are in their
slot (`engine.group.slots`), which sends it on to the third, and so on; the last one tells the leader that the
logits are there. So a message is all that a stage waits for, and stages compute different steps at once.

A stage adds to the message how long it has computed. The leader finds out by the sum how long the step lay
between two stages, which is no cost of the step itself.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from engine.errors import GroupBrokenError
from engine.execution.model_runner import ModelRunner
from engine.execution.stages import Passed
from engine.group.leader import OPENING, sum_sizes, wait_ready
from engine.group.links import Channel, Kind, Link
from engine.group.slots import StageSlots
from engine.group.steps import decoded, encoded
from engine.model.parallel.stage import Stage, join_stage
from engine.model.step_batch import StepBatch
from engine.starting import OnProgress

_SECONDS = struct.Struct("<d")


class Pipeline:
    """The stages of a worker, of which this process is the first one; implements `Stages` and `Group`.

    `links` are those to the processes of the other stages, in order.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self.stage = Stage(0, len(links) + 1)
        self._run: Callable[[StepBatch], Tensor] | None = None
        self._slots: StageSlots | None = None
        self._channels: tuple[Channel, Channel] | None = None
        self._sent: deque[_Sent] = deque()
        self._num_received = 0

    @property
    def num_stages(self) -> int:
        """Implements `Stages`."""
        return self.stage.size

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
        slots = StageSlots(self.stage.size, sum_sizes(model, tokens))
        # One from each stage to the next, and from the last to the first.
        hops = [Channel.pair() for _ in range(self.stage.size)]
        for rank, link in enumerate(self._links, 1):
            before, after = hops[rank - 1][1].socket, hops[rank][0].socket
            shared = (pool.fd, slots.fd, before.fileno(), after.fileno())
            link.send(Kind.OPEN, [OPENING.pack(pool.num_blocks, tokens)], shared)
        self._channels = hops[-1][1], hops[0][0]
        for hop in hops:
            for end in hop:
                if end not in self._channels:
                    end.close()
        slots.close()
        join_stage(model.module, model.stage, slots)
        self._slots, self._run = slots, runner.run_part

    def forward(self, batch: StepBatch, _run: Callable[[StepBatch], Tensor]) -> Tensor:
        """Compute a step while no other is in flight; implements `Group` of the model runner."""
        assert not self._sent, "a step is in flight"
        self.send(batch)
        return self.receive().logits

    def send(self, batch: StepBatch) -> None:
        """Compute the first stage of a step and send it on; implements `Stages`.

        What the first stage raises fails this step alone.
        """
        assert self._slots is not None and self._run is not None and self._channels is not None, "not open"
        assert len(self._sent) <= self.num_stages, "all slots are taken"
        self._slots.begin(len(batch.token_ids))
        try:
            self._run(batch)
        except Exception:
            self._slots.give_up()
            raise
        self._sent.append(_Sent(len(batch.logit_rows), time.perf_counter()))
        self._channels[1].send(Kind.STEP, [_SECONDS.pack(0.0), *encoded(batch)])

    def has_passed(self) -> bool:
        """Implements `Stages`."""
        assert self._channels is not None
        return self._channels[0].has_message()

    def receive(self) -> Passed:
        """Implements `Stages`. Raises GroupBrokenError if a stage is gone."""
        assert self._slots is not None and self._channels is not None
        message = self._channels[0].receive()
        if message is None:
            raise GroupBrokenError("a process of the group is gone")
        (computed_s,) = _SECONDS.unpack(message.content)
        sent, number = self._sent.popleft(), self._num_received
        self._num_received += 1
        idle_s = max(0.0, time.perf_counter() - sent.at_s - computed_s)
        return Passed(self._slots.logits(number, sent.num_rows), idle_s)

    def close(self) -> None:
        """Let the other stages end, as they do when this process does."""
        for channel in self._channels or ():
            channel.close()


class _Sent:
    """A step in flight: its rows of logits, and when it was sent."""

    __slots__ = ("at_s", "num_rows")

    def __init__(self, num_rows: int, at_s: float) -> None:
        self.num_rows = num_rows
        self.at_s = at_s


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
