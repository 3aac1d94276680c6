"""How a call over gRPC ends from this side."""

from __future__ import annotations

from typing import Any

import grpc.aio


def cancel(call: grpc.aio.Call) -> None:
    """Cancel `call` on the wire, too.

    grpc.aio takes a call for over as soon as one of its writes has failed, and then cancels nothing. Where
    the peer's word on the end was lost, the call, its connection and a task of the event loop stayed.
    Of a call that is over nothing is left to cancel, but its status may now be told as CANCELLED.
    """
    if not call.cancel():
        over: Any = call
        over._cython_call.cancel("given up")  # noqa: SLF001 - see above
