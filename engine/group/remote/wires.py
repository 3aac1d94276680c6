"""How tensors go from one process to another, in a group whose processes share no memory.

Both sides know which tensor comes next, and its shape. On a CPU its bytes are a message on the link between
leader and follower. On a GPU they never leave the devices: NCCL sends them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.errors import GroupBrokenError
from engine.group.links import Bytes, Kind, Link


class Wires(Protocol):
    """The ways from this process to others, by their ranks. An empty tensor is not sent."""

    def send(self, tensor: Tensor, rank: int) -> None:
        """Send a tensor. Raises GroupBrokenError if the process of that rank is gone."""

    def receive(self, into: Tensor, rank: int) -> None:
        """Fill a contiguous tensor with the one that comes. Raises GroupBrokenError as `send` does."""


class LinkWires:
    """Wires for tensors on a CPU: a message each. They are as private as the links are."""

    def __init__(self, links: Mapping[int, Link]) -> None:
        self._links = links

    def send(self, tensor: Tensor, rank: int) -> None:
        """Implements `Wires`."""
        if tensor.numel():
            self._links[rank].send(Kind.TENSOR, [bytes_of(tensor)])

    def receive(self, into: Tensor, rank: int) -> None:
        """Implements `Wires`."""
        if not into.numel():
            return
        message = self._links[rank].receive()
        if message is None:
            raise GroupBrokenError(f"process {rank} of the group is gone")
        assert message.kind is Kind.TENSOR, f"{message.kind} instead of a tensor from process {rank}"
        into.copy_(torch.frombuffer(message.content, dtype=into.dtype).view(into.shape))


class ProcessGroup(Protocol):
    """A process group of torch.distributed, with any backend."""

    def allreduce(self, tensors: list[Tensor]) -> Any:
        """Begin to replace the tensor by the sum of those of all processes; return what to wait for."""

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        """Begin to send a tensor; return what to wait for."""

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        """Begin to fill a tensor with one that is sent; return what to wait for."""


class GroupWires:
    """Wires through torch.distributed.

    With NCCL, a call returns once the transfer is queued behind the current stream's work, for which the
    stream's next work waits.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def send(self, tensor: Tensor, rank: int) -> None:
        """Implements `Wires`."""
        if tensor.numel():
            finish(lambda: self._group.send([tensor.contiguous()], rank, 0))

    def receive(self, into: Tensor, rank: int) -> None:
        """Implements `Wires`."""
        if into.numel():
            finish(lambda: self._group.recv([into], rank, 0))


def finish(begin: Any) -> None:
    """Do what torch.distributed does, and wait. Raises GroupBrokenError if a process is gone."""
    try:
        begin().wait()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise GroupBrokenError(f"a process of the group is gone ({reason})") from error


def bytes_of(tensor: Tensor) -> Bytes:
    """Return the bytes of a tensor on a CPU."""
    return tensor.contiguous().view(torch.uint8).flatten().numpy().data
