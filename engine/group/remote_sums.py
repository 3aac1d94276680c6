"""The results of a model's parts, in a group whose processes share no memory.

torch.distributed adds up, over gloo: the sum is the same bits in each process. The logits of a part go to the
leader alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.errors import GroupBrokenError
from engine.group.links import Bytes, Kind, Link
from engine.model.parallel.part import Part

SUM_LIMIT = dt.timedelta(hours=1)
"""Longer than any step: a process that is gone is noticed otherwise."""


class Sums(Protocol):
    """A process group of torch.distributed, with any backend."""

    def allreduce(self, tensors: list[Tensor]) -> Any:
        """Begin to replace the tensor by the sum of those of all processes; return what to wait for."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The connections of a process to the others of its group, on whichever hosts they are."""

    part: Part
    channels: Sequence[Link]
    """Those of the leader to its followers, by rank, or of a follower to its leader alone."""
    loads: Sequence[Link]
    """The same again, for adapters that are loaded while steps go on."""
    sums: Sums

    @property
    def links(self) -> tuple[Link, ...]:
        return (*self.channels, *self.loads)


def gloo(store: Any, part: Part, address: str) -> Sums:
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
    sums: Sums = backend(store, part.rank, part.size, options)
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
        try:
            self._connected.sums.allreduce([total]).wait()
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise GroupBrokenError(f"a process of the group is gone ({reason})") from error
        return total

    def gather_logits(self, own: Tensor) -> Tensor:
        """Implements `Collectives`. Raises GroupBrokenError if a process is gone."""
        num_rows = own.shape[1]
        if self.part.rank:
            self._connected.channels[0].send(Kind.LOGITS, [bytes_of(own)])
            return own.new_empty((1, 0, self._vocab_size))
        logits = own.new_empty((1, num_rows, self._vocab_size))
        logits[..., self.part.words(self._vocab_size)] = own
        for rank, channel in enumerate(self._connected.channels, 1):
            words = Part(rank, self.part.size).words(self._vocab_size)
            content = expect(channel, rank, Kind.LOGITS)
            theirs = logits[..., words]
            if num_rows:
                theirs.copy_(torch.frombuffer(content, dtype=own.dtype).view(theirs.shape))
        return logits


def expect(channel: Link, rank: int, kind: Kind) -> bytearray:
    """Return the content of the next message. Raises GroupBrokenError if the process of `rank` is gone."""
    message = channel.receive()
    if message is None:
        raise GroupBrokenError(f"process {rank} of the group is gone")
    assert message.kind is kind, f"{message.kind} instead of {kind} from process {rank}"
    return message.content


def bytes_of(tensor: Tensor) -> Bytes:
    """Return a tensor's bytes."""
    return tensor.contiguous().view(torch.uint8).flatten().numpy().data
