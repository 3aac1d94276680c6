"""When what a request held is free again: blocks by its workers' own count, all else by Redis's.

Workers say their free blocks in their metrics, asked for all the while; Redis says with MONITOR what it does
and when. Both run on this machine, so one clock (`time.time`) serves for all of it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

_COMMAND = re.compile(
    rb'\+(\d+\.\d+) \[[^]]*\] "(\w+)" "\{baton\}:(queue|grants|leases:[^"]*|credits:[^"]*)" (.*)', re.DOTALL
)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
ASK_AGAIN_S = 0.002
"""Between two questions about blocks: these are answered on the interpreter that runs the steps."""
_FREE = re.compile(rb"^baton_kv_free_blocks (\S+)$", re.MULTILINE)


class Holdings:
    """Places in the queue, grants, credits and leases, as Redis is told of them.

    Requests are named by their ids, whatever their tenant, and have one choice.
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
        """When it last had nothing any more; 0 for one that never had anything."""
        await self.until(request_id, lambda held: not held)
        return self._emptied_at.get(request_id, 0.0)

    def take(self, line: bytes) -> None:
        """One line of MONITOR's."""
        found = _COMMAND.match(line)
        if found is None:
            return
        at_s, command, kind = float(found[1]), found[2].upper(), found[3].decode()
        words = [word.decode() for word in _WORD.findall(found[4])]
        if command in (b"ZADD", b"HSET"):
            self._gain(words[1] if command == b"ZADD" else words[0], kind)
        elif command in (b"ZREM", b"HDEL"):
            for request_key in words:
                self._lose(request_key, kind, at_s)
        self._changed.set()

    def _gain(self, request_key: str, kind: str) -> None:
        if request_key:  # the other one is a ledger's total
            self._held[_id_of(request_key)].add(kind)

    def _lose(self, request_key: str, kind: str, at_s: float) -> None:
        request_id = _id_of(request_key)
        held = self._held.get(request_id)
        if held is None:
            return
        held.discard(kind)
        if not held:
            del self._held[request_id]
            self._emptied_at[request_id] = at_s


def _id_of(request_key: str) -> str:
    """Of `tenant/request/choice`."""
    return request_key.split("/")[-2]


class BlockCounts:
    """Free blocks of some workers, by the metrics they serve at these addresses; `all` when nothing runs.

    A worker counts none before its first step.
    """

    def __init__(self, addresses: Sequence[str], num_blocks: Sequence[int]) -> None:
        self._addresses = tuple(addresses)
        self.all = tuple(num_blocks)

    async def free(self) -> tuple[int, ...]:
        """Of each worker, now."""
        return tuple(await asyncio.gather(*(_free_blocks(one) for one in self._addresses)))

    async def until(self, met: Callable[[tuple[int, ...]], bool], timeout_s: float = 30.0) -> float:
        """When an answer that meets the condition had come. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not met(await self.free()):  # noqa: ASYNC110 -- other processes' blocks
                await asyncio.sleep(ASK_AGAIN_S)
        return time.time()

    async def until_all_free(self) -> float:
        return await self.until(lambda free: free == self.all)


async def _free_blocks(address: str) -> int:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics?name[]=baton_kv_free_blocks HTTP/1.0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    found = _FREE.search(answer)
    if found is None:
        raise ValueError(f"metrics at {address} tell no baton_kv_free_blocks")
    return round(float(found[1]))
