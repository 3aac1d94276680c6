"""The commands that Redis reports show what a request holds, and until when."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.failures.freeing import Holdings


def line(at_s: float, *words: str) -> bytes:
    said = " ".join(f'"{word}"' for word in words)
    return f"+{at_s:.6f} [0 lua] {said}\r\n".encode()


def bind(holdings: Holdings, request_key: str) -> None:
    """From the queue to a lease and a credit, as the scripts do it."""
    holdings.take(line(1.0, "ZADD", "{baton}:queue", "17", request_key))
    holdings.take(line(1.0, "HDEL", "{baton}:queue_sums:wide", "17"))
    holdings.take(line(2.0, "HSET", "{baton}:credits:prefill-0:x", request_key, "70 99"))
    holdings.take(line(2.0, "HSET", "{baton}:credits:prefill-0:x", "", "70 99"))
    holdings.take(line(2.0, "ZREM", "{baton}:queue", request_key))
    holdings.take(line(2.0, "ZADD", "{baton}:grants", "9", request_key))
    holdings.take(line(3.0, "ZREM", "{baton}:grants", request_key))
    holdings.take(line(3.0, "HSET", "{baton}:leases:decode-0:x", request_key, "5 99"))


async def test_a_request_is_free_when_the_last_of_what_it_held_is() -> None:
    holdings = Holdings()
    bind(holdings, "t/r1/0")
    bind(holdings, "t/r2/0")
    free = asyncio.create_task(holdings.until_nothing("r1"))
    holdings.take(line(4.5, "HDEL", "{baton}:credits:prefill-0:x", "t/r1/0"))
    await asyncio.sleep(0)
    assert not free.done(), "its lease is held"
    holdings.take(line(5.5, "HDEL", "{baton}:leases:decode-0:x", "t/r1/0"))
    assert await free == 5.5
    with pytest.raises(TimeoutError):
        await holdings.until("r2", lambda held: not held, timeout_s=0.01)


async def test_who_never_held_anything_was_free_from_the_beginning() -> None:
    assert await Holdings().until_nothing("r1") == 0.0
