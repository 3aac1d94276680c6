"""A caller as one process: the SDK, over a transport of the simulated network."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc

from baton.async_client import AsyncClient
from baton.errors import BatonError
from baton.types import ChoiceFinished, Finished, FinishReason, Program, Sampling, Slo, Stop, Timeout, Tokens
from baton.wire.status import from_rpc_error
from baton.wire.transport import Method, Request, Response, TakeRow
from tests.dst.nodes.engine import answer_length, token_at
from tests.dst.world.network import Network
from tests.dst.world.process import Process
from tests.dst.world.rpc import Call, Servers, unary

CONNECT_S = 180.0
"""Longer than all faults of a scenario together: routers may be away all that time."""


class SimTransport:
    """Implements `baton.wire.transport.Transport`."""

    def __init__(self, network: Network, process: Process, servers: Servers, address: str) -> None:
        self._make = lambda name: Call(network, process, servers, address, name)
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    async def unary(
        self, method: Method[Request, Response], request: Request, timeout_s: float | None
    ) -> Response:
        try:
            response: Response = await unary(self._make(_name(method)).begin(request), timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self._address) from None
        return response

    async def stream(
        self, method: Method[Request, Response], request: Request, take: TakeRow | None = None
    ) -> AsyncGenerator[Response, None]:
        call = self._make(_name(method)).begin(request)
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                yield message
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self._address) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        pass


def _name(method: Method[Any, Any]) -> str:
    return method.path.rpartition("/")[2]


@dataclass
class Heard:
    """The events that one call has received."""

    request_id: str
    prompt: tuple[int, ...]
    num_choices: int
    max_tokens: int
    began_at: float
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    ended: set[int] = field(default_factory=set)
    ended_at: float | None = None
    error: str = ""
    """Why it failed; empty if it has not."""
    was_left: bool = False
    """The caller hung up."""
    wrong: str = ""
    """A sentence about something that no call may receive."""
    resumes: int = 0

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    def take(self, event: Any) -> None:
        match event:
            case Tokens(choice, first_index, token_ids):
                held = self.tokens[choice]
                if first_index != len(held):
                    self.wrong = f"choice {choice} went on at token {first_index}, after {len(held)}"
                for token_id in token_ids:
                    expected = token_at(self.prompt, choice, len(held))
                    if token_id != expected and not self.wrong:
                        self.wrong = f"token {len(held)} of choice {choice} is {token_id}, not {expected}"
                    held.append(token_id)
            case ChoiceFinished(choice, reason):
                self.ended.add(choice)
                if reason not in (FinishReason.LENGTH, FinishReason.EOS) and not self.error:
                    self.error = f"choice {choice} ended: {reason.value}"
            case Finished(error=""):
                found = [len(self.tokens[choice]) for choice in range(self.num_choices)]
                whole = [
                    answer_length(self.prompt, choice, self.max_tokens) for choice in range(self.num_choices)
                ]
                if found != whole and not self.error and not self.wrong:
                    self.wrong = f"it ended with {found} tokens, where {whole} are due"
            case Finished(error=error):
                self.error = f"finished with: {error}"


class ClientNode:
    """One caller, with one SDK client for all its calls."""

    def __init__(
        self, process: Process, network: Network, servers: Servers, addresses: list[str], grace_s: float
    ) -> None:
        self.process = process
        self.sdk = process.loop.within(
            lambda: AsyncClient(
                addresses,
                tenant="tenant",
                timeout=Timeout(connect_s=CONNECT_S),
                resume_grace_s=grace_s,
                connect=lambda address: SimTransport(network, process, servers, address),
            )
        )

    def call(
        self,
        heard: Heard,
        slo: Slo | None = None,
        leaves_after: int | None = None,
        cancels: bool = True,
        program: Program | None = None,
    ) -> None:
        """Begin a call, which the caller leaves after so many tokens, if that is set."""
        self.process.do(
            lambda: self.process.loop.spawn(self._run(heard, slo or Slo(), leaves_after, cancels, program))
        )

    async def _run(
        self, heard: Heard, slo: Slo, leaves_after: int | None, cancels: bool, program: Program | None
    ) -> None:
        stream = self.sdk.generate(
            heard.prompt,
            sampling=Sampling(n=heard.num_choices, seed=7),
            stop=Stop(max_tokens=heard.max_tokens),
            slo=slo,
            request_id=heard.request_id,
            cancel_when_closed=cancels,
            program=program,
        )
        try:
            async with stream, aclosing(aiter(stream)) as events:
                async for event in events:
                    heard.take(event)
                    if leaves_after is not None and sum(map(len, heard.tokens.values())) >= leaves_after:
                        heard.was_left = True
                        break
        except BatonError as error:
            heard.error = f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            heard.error = "cancelled"
            raise
        finally:
            heard.resumes = stream.resumes
            heard.ended_at = self.process.scheduler.now
