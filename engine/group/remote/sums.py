"""The results of a model's parts, in a group whose processes share no memory.

torch.distributed adds up, over gloo on CPUs and NCCL on GPUs: the sum is the same bits in each process. The
logits of a part go to the leader alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.group.links import Link
from engine.group.remote.wires import GroupWires, LinkWires, ProcessGroup, Wires, finish
from engine.model.parallel.part import Part

SUM_LIMIT = dt.timedelta(hours=1)
"""Longer than any step: a process that is gone is noticed otherwise."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The connections of a process to the others of its group, on whichever hosts they are."""

    part: Part
    channels: Sequence[Link]
    """Those of the leader to its followers, by rank, or of a follower to its leader alone."""
    loads: Sequence[Link]
    """The same again, for adapters that are loaded while steps go on."""
    sums: ProcessGroup
    wires: Wires
    """Between the leader and its followers, by rank."""

    @classmethod
    def on_cpus(
        cls, part: Part, channels: Sequence[Link], loads: Sequence[Link], sums: ProcessGroup
    ) -> Connected:
        """Return the connections of a process on a CPU, whose channels carry tensors as well."""
        others = range(1, part.size) if part.rank == 0 else [0]
        return cls(part, channels, loads, sums, LinkWires(dict(zip(others, channels, strict=True))))

    @classmethod
    def on_gpus(
        cls, part: Part, channels: Sequence[Link], loads: Sequence[Link], sums: ProcessGroup
    ) -> Connected:
        """Return the connections of a process on a GPU; tensors go from device to device."""
        return cls(part, channels, loads, sums, GroupWires(sums))

    @property
    def links(self) -> tuple[Link, ...]:
        return (*self.channels, *self.loads)


def gloo(store: Any, part: Part, address: str) -> ProcessGroup:
    """Connect this process with the others of its group, in which it is reached at `address`.

    They find each other in a store of torch.distributed, which nothing else uses. gloo alone would look up
    this host's name, which leads to loopback on some hosts. Raises RuntimeError if another process does not
    come.
    """
    library: Any = torch.distributed
    backend = library.ProcessGroupGloo
    options = backend._Options()  # noqa: SLF001 - torch's own way to choose the address
    options._timeout = SUM_LIMIT  # noqa: SLF001
    options._devices = [backend.create_device(hostname=address)]  # noqa: SLF001
    sums: ProcessGroup = backend(store, part.rank, part.size, options)
    return sums


def nccl(store: Any, part: Part) -> ProcessGroup:
    """Connect the GPU of this process with those of the others, which find each other in the same way.

    NCCL chooses the network by itself, or by `NCCL_SOCKET_IFNAME`. It connects at the first sum.
    """
    library: Any = torch.distributed
    backend = library.ProcessGroupNCCL
    options = backend.Options()
    options._timeout = SUM_LIMIT  # noqa: SLF001 - torch's own way to choose it
    sums: ProcessGroup = backend(store, part.rank, part.size, options)
    return sums


class RemoteSums:
    """The collectives of one process of a group; implements `Collectives`."""

    native = None

    def __init__(self, connected: Connected, vocab_size: int) -> None:
        self._connected = connected
        self._vocab_size = vocab_size

    @property
    def part(self) -> Part:
        return self._connected.part

    def sum(self, own: Tensor) -> Tensor:
        """Implements `Collectives`. Raises GroupBrokenError if a process is gone."""
        total = own.contiguous()
        finish(lambda: self._connected.sums.allreduce([total]))
        return total

    def gather_logits(self, own: Tensor) -> Tensor:
        """Implements `Collectives`. Raises GroupBrokenError if a process is gone."""
        if self.part.rank:
            self._connected.wires.send(own, 0)
            return own.new_empty((1, 0, self._vocab_size))
        logits = own.new_empty((*own.shape[:-1], self._vocab_size))
        logits[..., self.part.words(self._vocab_size)] = own
        for rank in range(1, self.part.size):
            theirs = logits[..., Part(rank, self.part.size).words(self._vocab_size)]
            received = torch.empty_like(theirs, memory_format=torch.contiguous_format)
            self._connected.wires.receive(received, rank)
            theirs.copy_(received)
        return logits
