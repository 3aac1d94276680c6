"""The simulator's store behind the interface of `runtime.state.store.Store`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import wraps
from typing import Any

from runtime.state.records import Notice, Nudge
from sim.store.memory_store import MemoryStore


class AsyncMemoryStore:
    """Every operation is that of the store in memory, and returns at once."""

    def __init__(self, memory: MemoryStore) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        operation = getattr(self._memory, name)

        @wraps(operation)
        async def call(*args: object, **kwargs: object) -> Any:
            return operation(*args, **kwargs)

        return call

    async def notices(self, router_id: str) -> AsyncGenerator[Notice, None]:
        """Yield a first `Nudge`, then what comes, like `Store.notices`."""
        heard: asyncio.Queue[Notice] = asyncio.Queue()
        unsubscribe = self._memory.subscribe(router_id, heard.put_nowait)
        try:
            yield Nudge()
            while True:
                yield await heard.get()
        finally:
            unsubscribe()
