"""The interface between the SDK's logic and the network: one `Transport` per router."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from baton.operators.v1 import fleet_pb2
from baton.security.credentials import UNENCRYPTED, Credentials
from baton.v1 import inference_pb2
from baton.wire.status import from_rpc_error

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

_CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.enable_http_proxy", 0),  # a fleet is in the same network; a proxy would only break streams
    ("grpc.use_local_subchannel_pool", 1),  # clients do not share their back-off
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A name of one router is gRPC's to look up, again when the connection breaks.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 5000),  # despite its name, the timeout of one attempt to connect
    # A half-open connection is noticed even while a request waits in silence.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 << 20),
]


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """An RPC of the contract."""

    path: str
    request: type[Request]
    response: type[Response]

    @property
    def coded(self) -> tuple[str, Callable[[Request], bytes], Callable[[bytes], Response]]:
        """The path and the functions by which a channel makes calls of it."""
        return self.path, self.request.SerializeToString, self.response.FromString


def _inference(name: str, request: type[Request], response: type[Response]) -> Method[Request, Response]:
    return Method(f"/baton.v1.InferenceService/{name}", request, response)


def _fleet(name: str, request: type[Request], response: type[Response]) -> Method[Request, Response]:
    return Method(f"/baton.operators.v1.FleetService/{name}", request, response)


GENERATE = _inference("Generate", inference_pb2.GenerateRequest, inference_pb2.GenerateResponse)
GENERATE_MANY = _inference(
    "GenerateMany", inference_pb2.GenerateManyRequest, inference_pb2.GenerateManyResponse
)
RESUME = _inference("Resume", inference_pb2.ResumeRequest, inference_pb2.ResumeResponse)
CANCEL = _inference("Cancel", inference_pb2.CancelRequest, inference_pb2.CancelResponse)
QUOTE = _inference("Quote", inference_pb2.QuoteRequest, inference_pb2.QuoteResponse)
COUNT_TOKENS = _inference("CountTokens", inference_pb2.CountTokensRequest, inference_pb2.CountTokensResponse)
DETOKENIZE = _inference("Detokenize", inference_pb2.DetokenizeRequest, inference_pb2.DetokenizeResponse)
LIST_MODELS = _inference("ListModels", inference_pb2.ListModelsRequest, inference_pb2.ListModelsResponse)
WATCH = _fleet("Watch", fleet_pb2.WatchRequest, fleet_pb2.WatchResponse)
DESCRIBE = _fleet("Describe", fleet_pb2.DescribeRequest, fleet_pb2.DescribeResponse)
DRAIN = _fleet("Drain", fleet_pb2.DrainRequest, fleet_pb2.DrainResponse)


class Row(NamedTuple):
    """Tokens of one choice as they stand in a message of many generations."""

    choice: int
    first_index: int
    token_ids: Sequence[int]
    text: str
    deltas: Sequence[inference_pb2.Delta]


TakeRow = Callable[[Row], bool]
"""Takes a row at once, in place of its event. Returns False if it has to be an event."""


class Transport(Protocol):
    """Calls to one router. Every failure is a `BatonError`; after `Unavailable` a call may be repeated."""

    @property
    def address(self) -> str: ...

    async def unary(
        self, method: Method[Request, Response], request: Request, timeout_s: float | None
    ) -> Response: ...

    def stream(
        self, method: Method[Request, Response], request: Request, take: TakeRow | None = None
    ) -> AsyncGenerator[Response, None]:
        """Yield the responses. Closing the generator ends the call.

        A transport may offer rows to `take` while the next response is awaited. Those that it takes are no
        responses.
        """
        ...

    async def close(self) -> None: ...


Connect = Callable[[str], Transport]


class GrpcTransport:
    """A transport over grpc.aio, which connects with the first call.

    `server_name` is the name that the router's certificate is for, if that is not the host of `address`.
    """

    def __init__(
        self, address: str, credentials: Credentials = UNENCRYPTED, *, server_name: str = ""
    ) -> None:
        self.address = address
        self._credentials = credentials
        named = [("grpc.ssl_target_name_override", server_name)] if server_name else []
        self._channel = credentials.channel(address, [*_CHANNEL_OPTIONS, *named])

    async def unary(
        self, method: Method[Request, Response], request: Request, timeout_s: float | None
    ) -> Response:
        call = self._channel.unary_unary(*method.coded)
        try:
            return await call(request, timeout=timeout_s, metadata=self._credentials.metadata())
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.address) from None

    async def stream(
        self, method: Method[Request, Response], request: Request, take: TakeRow | None = None
    ) -> AsyncGenerator[Response, None]:
        start = self._channel.unary_stream(*method.coded)
        call = start(request, metadata=self._credentials.metadata())
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.address) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        await self._channel.close()
