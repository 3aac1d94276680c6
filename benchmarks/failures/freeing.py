"""Observe when the resources of a request are free again: blocks by its workers' count, all else by Redis.

Workers report their free blocks as a metric, which is polled. Redis reports its commands and their times by
MONITOR. Both run on this machine, so one clock (`time.time`) serves for all.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from benchmarks.failures.redis_watch import parsed
from benchmarks.fleets.observe import scrape

ASK_AGAIN_S = 0.002
"""Seconds between two polls for blocks: the interpreter that runs the steps serves them."""
_FREE = "baton_kv_free_blocks"


class Holdings:
    """Places in the queue, grants, credits and leases, followed from Redis's commands.

    Requests are identified by their ids without the tenant, and have one choice.
    """

    def __init__(self) -> None:
        self._held: dict[str, set[str]] = defaultdict(set)
        self._emptied_at: dict[str, float] = {}
        self._changed = asyncio.Event()

    async def until(self, request_id: str, met: Callable[[set[str]], bool], timeout_s: float = 30.0) -> None:
        """Wait until what a request holds meets the condition. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not met(self._held.get(request_id, set())):
                self._changed.clear()
                await self._changed.wait()

    async def until_nothing(self, request_id: str) -> float:
        """Wait until it holds nothing, and return since when; 0 for a request that never held anything."""
        await self.until(request_id, lambda held: not held)
        return self._emptied_at.get(request_id, 0.0)

    def take(self, line: bytes) -> None:
        """Process a line of MONITOR."""
        command = parsed(line)
        if command is None:
            return
        match command.verb:
            case "ZADD":
                self._gain(command.words[1], command.name)
            case "HSET":
                self._gain(command.words[0], command.name)
            case "ZREM" | "HDEL":
                for request_key in command.words:
                    self._lose(request_key, command.name, command.at_s)
        self._changed.set()

    def _gain(self, request_key: str, name: str) -> None:
        if request_key:  # the other one is a ledger's total
            self._held[_id_of(request_key)].add(name)

    def _lose(self, request_key: str, name: str, at_s: float) -> None:
        request_id = _id_of(request_key)
        if request_id not in self._held:
            return
        self._held[request_id].discard(name)
        if not self._held[request_id]:
            del self._held[request_id]
            self._emptied_at[request_id] = at_s


def _id_of(request_key: str) -> str:
    """Return the request id of `tenant/request/choice`."""
    return request_key.split("/")[-2]


class BlockCounts:
    """Free blocks of some workers, from the totals by the addresses of their metrics; `all` are the totals.

    A worker reports none before its first step.
    """

    def __init__(self, num_blocks: Mapping[str, int]) -> None:
        self._addresses = tuple(num_blocks)
        self.all = tuple(num_blocks.values())

    async def free(self) -> tuple[int, ...]:
        """Return the free blocks of each worker."""
        return tuple(await asyncio.gather(*(_free_blocks(address) for address in self._addresses)))

    async def until(self, met: Callable[[tuple[int, ...]], bool], timeout_s: float = 30.0) -> float:
        """Wait until the counts meet the condition, and return the time. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not met(await self.free()):  # noqa: ASYNC110 -- other processes' blocks
                await asyncio.sleep(ASK_AGAIN_S)
        return time.time()

    async def until_all_free(self) -> float:
        return await self.until(lambda free: free == self.all)


async def _free_blocks(address: str) -> int:
    for sample in await scrape(address, _FREE):
        if sample.name == _FREE:
            return round(sample.value)
    raise ValueError(f"metrics at {address} have no {_FREE}")
