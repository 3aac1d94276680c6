"""End gRPC calls from the caller's side."""

from __future__ import annotations

from typing import Any

import grpc.aio


def cancel(call: grpc.aio.Call) -> None:
    """Cancel `call`, also on the wire.

    As soon as one write of a call fails, grpc.aio treats the call as done and no longer cancels it. If the
    peer's end of the call was lost, the call, its connection and a task of the event loop would remain.
    A call that is really done is not affected, except that its status may become CANCELLED.
    """
    if not call.cancel():
        done: Any = call
        done._cython_call.cancel("given up")  # noqa: SLF001 - see above
