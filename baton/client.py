"""The blocking client: runs an `AsyncClient` on an event loop in a background thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from baton.async_client import DEFAULT_ADDRESS, AsyncClient
from baton.parsing import ParsedEvent
from baton.security.credentials import UNENCRYPTED, Credentials
from baton.stream import GenerationStream
from baton.types import Completion, Event, Timeout
from baton.wire.transport import Connect

P = ParamSpec("P")
T = TypeVar("T")


class _LoopThread:
    """An event loop that runs on its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="baton-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Interrupting the waiting thread cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, events: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        turn = asyncio.Lock()  # an interrupted step may still unwind when `close` begins

        async def step() -> T:
            async with turn:
                return await anext(events)

        async def close() -> None:
            async with turn:
                await events.aclose()

        try:
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    yield self.run(step())
        finally:
            self.run(close())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingStream:
    """The events of one generation, to be iterated once. Leaving early ends the generation on the fleet."""

    def __init__(self, stream: GenerationStream, thread: _LoopThread) -> None:
        self._stream = stream
        self._thread = thread

    @property
    def request_id(self) -> str:
        return self._stream.request_id

    @property
    def resumes(self) -> int:
        return self._stream.resumes

    @property
    def retries(self) -> int:
        return self._stream.retries

    def __iter__(self) -> Iterator[Event]:
        return self._thread.iterate(aiter(self._stream))

    def parsed(self) -> Iterator[ParsedEvent]:
        """Yield the events with what the model says in place of its tokens: content, reasoning and calls."""
        return self._thread.iterate(self._stream.parsed())

    def collect(self) -> Completion:
        return self._thread.run(self._stream.collect())


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[AsyncClient, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Client, P], Generator[T, None, None]]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return self._thread.iterate(method(self._client, *args, **kwargs))

    return call


def _streaming(
    method: Callable[Concatenate[AsyncClient, P], GenerationStream],
) -> Callable[Concatenate[Client, P], BlockingStream]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> BlockingStream:
        return BlockingStream(method(self._client, *args, **kwargs), self._thread)

    return call


class Client:
    r"""A client with the calls of `AsyncClient`, which wait for their results.

        with Client("127.0.0.1:50051") as client:
            print(client.complete("import asyncio\n").text)

    Several threads may use one client at once.
    """

    def __init__(
        self,
        addresses: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        tenant: str = "",
        model: str = "",
        timeout: Timeout | None = None,
        resume_grace_s: float = 10.0,
        credentials: Credentials = UNENCRYPTED,
        multiplex: bool | None = None,
        connect: Connect | None = None,
    ) -> None:
        async def made() -> AsyncClient:
            return AsyncClient(
                addresses,
                tenant=tenant,
                model=model,
                timeout=timeout,
                resume_grace_s=resume_grace_s,
                credentials=credentials,
                multiplex=multiplex,
                connect=connect,
            )

        self._thread = _LoopThread()
        self._client = self._thread.run(made())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._thread.run(self._client.close())
        self._thread.stop()

    generate = _streaming(AsyncClient.generate)
    complete = _blocking(AsyncClient.complete)
    cancel = _blocking(AsyncClient.cancel)
    quote = _blocking(AsyncClient.quote)
    count_tokens = _blocking(AsyncClient.count_tokens)
    detokenize = _blocking(AsyncClient.detokenize)
    token_bytes = _blocking(AsyncClient.token_bytes)
    models = _blocking(AsyncClient.models)
    proven_tenant = _blocking(AsyncClient.proven_tenant)
    describe = _blocking(AsyncClient.describe)
    drain = _blocking(AsyncClient.drain)
    watch = _iterating(AsyncClient.watch)
