"""Builders for the tests of both stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from runtime.state.records import DecodeRoom, Notice, Nudge, PrefillRoom, QueueEntry, Settled, WorkerRecord
from runtime.state.store import Store
from tests.runtime.state.async_store import AsyncMemoryStore

AnyStore = Store | AsyncMemoryStore

PREFILL = PrefillRoom("p:1", limit_tokens=100)
DECODE = DecodeRoom("d:1", num_blocks=10, max_seqs=4)
ROOMY = DecodeRoom("d:2", num_blocks=100, max_seqs=100)


def entry(
    key: str, *, router: str = "r1", slo_class: int = 2, due: int = 1000, tokens: int = 50, adapter: str = ""
) -> QueueEntry:
    return QueueEntry(key, router, slo_class, due, tokens, blocks=4, adapter=adapter)


def worker(incarnation: str = "a") -> WorkerRecord:
    return WorkerRecord("w1", incarnation, "decode", "127.0.0.1:1", "f", "demo", 16, 64)


async def settle(
    store: AnyStore, request_key: str, prefill_key: str, *decoders: DecodeRoom, ttl_s: float = 30
) -> Settled:
    return (await store.settle(request_key, prefill_key, decoders, ttl_s)).outcome


async def subscribed(store: AnyStore, router_id: str) -> AsyncGenerator[Notice, None]:
    stream = store.notices(router_id)
    assert await anext(stream) == Nudge()
    return stream
