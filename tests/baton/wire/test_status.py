"""The errors of the SDK for failed calls."""

from __future__ import annotations

import grpc
import pytest

from baton.errors import BatonError, Internal, Unavailable
from baton.wire.status import CallCrashed, from_rpc_error


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.INTERNAL, "Internal error from Core", Unavailable),
        (grpc.StatusCode.INTERNAL, "the router failed", CallCrashed),
        (grpc.StatusCode.UNKNOWN, "Unexpected <class 'MemoryError'>", CallCrashed),
        (grpc.StatusCode.DATA_LOSS, "scripted", Internal),
    ],
)
def test_a_broken_connection_is_told_from_a_crashed_call(
    code: grpc.StatusCode, details: str, kind: type[BatonError]
) -> None:
    nothing = grpc.aio.Metadata()
    error = from_rpc_error(grpc.aio.AioRpcError(code, nothing, nothing, details), "router:1")
    assert type(error) is kind
