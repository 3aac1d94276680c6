"""The errors of a handoff.

KVTransferError
├── FenceError                  this attempt may not do this here
│   ├── UnknownFenceError       not known here (yet): worth asking again for a while
│   ├── StaleFenceError         an attempt as new was seen
│   │   └── LaterSessionError   a later session was seen
│   ├── WrongIncarnationError   meant for another process
│   └── FenceBrokenError        its handoff is over
├── ProtocolError               the other side broke the protocol
├── LayoutMismatchError         the two sides differ in their blocks
├── TransportUnavailableError   no way to read the sender's blocks
├── PeerLostError               the other side is gone
├── HandoffTimeoutError         nothing moved for too long
└── SenderAbortedError          the sender gave the handoff up
    └── SequenceFinishedError   its first tokens were its last, so there is nothing to receive
"""

from __future__ import annotations

from scheduling.request import Fence


def describe(fence: Fence) -> str:
    """Name the fence for log lines and error messages."""
    of = f" of {fence.router_id}" if fence.router_id else ""
    run = f" in run {fence.run}" if fence.run else ""
    return (
        f"{fence.tenant}/{fence.request_id}/{fence.session}#{fence.choice} attempt {fence.attempt}{of}{run}"
    )


class KVTransferError(Exception):
    """Any failure of a handoff."""


class FenceError(KVTransferError):
    def __init__(self, fence: Fence, message: str) -> None:
        super().__init__(f"{describe(fence)}: {message}")


class UnknownFenceError(FenceError):
    def __init__(self, fence: Fence) -> None:
        super().__init__(fence, "no handoff of this fence is known here")


class StaleFenceError(FenceError):
    """`seen` was admitted before."""

    def __init__(self, fence: Fence, seen: Fence) -> None:
        what = f"session {seen.session} attempt {seen.attempt} has been seen"
        run = f" in run {seen.run}" if seen.run != fence.run else ""
        super().__init__(fence, f"{what}{run}; accepted: a later one")


class LaterSessionError(StaleFenceError):
    """`session` was admitted before. Its last call came at `begun_s` on this process's clock."""

    def __init__(self, fence: Fence, seen: Fence, begun_s: float) -> None:
        super().__init__(fence, seen)
        self.session = seen.session
        self.begun_s = begun_s


class WrongIncarnationError(FenceError):
    def __init__(self, fence: Fence, field: str, found: str, expected: str) -> None:
        super().__init__(fence, f"{field} is {found!r}; this process is {expected!r}")


class FenceBrokenError(FenceError):
    def __init__(self, fence: Fence, reason: str) -> None:
        super().__init__(fence, f"the handoff is over: {reason}")
        self.reason = reason


class ProtocolError(KVTransferError):
    pass


class LayoutMismatchError(KVTransferError):
    def __init__(self, field: str, found: object, expected: object) -> None:
        super().__init__(f"{field} is {found!r}; accepted: {expected!r}")


class TransportUnavailableError(KVTransferError):
    def __init__(self, transport: str, peer: str, reason: str) -> None:
        super().__init__(f"transport {transport} cannot reach {peer}: {reason}")


class PeerLostError(KVTransferError):
    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"lost {peer}: {reason}")


class HandoffTimeoutError(KVTransferError):
    def __init__(self, phase: str, waited_s: float) -> None:
        super().__init__(f"no progress for {waited_s:g} s while {phase}")


class SenderAbortedError(KVTransferError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"the sender gave up: {reason}")


class SequenceFinishedError(SenderAbortedError):
    pass
