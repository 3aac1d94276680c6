"""The gateways of the fleet: found by name, and watched."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import structlog

from baton.routers import resolved

INTERVAL_S = 1.0
"""Between two looks at names, and at a gateway."""
PROBE_S = 2.0
RETRY_S = 0.2
_MAX_HEALTH_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Target:
    """Gateways behind one HOST:PORT. A name may stand for many, as that of a headless service does."""

    address: str
    is_https: bool = False


def choose(serving: Sequence[str], subset: AbstractSet[str] | None, turn: int) -> str | None:
    """Return the gateway whose turn it is, among those that serve and are allowed; None if there is none."""
    allowed = serving if subset is None else [address for address in serving if address in subset]
    return allowed[turn % len(allowed)] if allowed else None


class Pool:
    """Knows which gateways serve: whose `/health` responds with 200, over a connection that stays open.

    A gateway that dies or leaves closes that connection, and gets no further request from then on.
    """

    def __init__(self, targets: Sequence[Target], context: ssl.SSLContext | None = None) -> None:
        self._targets = targets
        self._context = context
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._serving: list[str] = []
        self._turn = 0
        self._log = structlog.get_logger()
        self.has_served = asyncio.Event()
        """Set once a gateway has served."""

    @property
    def num_serving(self) -> int:
        return len(self._serving)

    def pick(self, subset: AbstractSet[str] | None) -> str | None:
        """Return the gateway whose turn it is; None if none of those serves."""
        self._turn += 1
        return choose(self._serving, subset, self._turn)

    async def run(self) -> None:
        """Look for gateways and watch them, until cancelled."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(INTERVAL_S)
        finally:
            for task in self._watched.values():
                task.cancel()
            await asyncio.gather(*self._watched.values(), return_exceptions=True)

    async def _look(self) -> None:
        found: dict[str, Target] = {}
        try:
            for target in self._targets:
                found |= dict.fromkeys(await resolved(target.address), target)
        except OSError as error:  # known gateways may serve on
            self._log.warning("gateways_not_resolved", reason=str(error))
            return
        for address in self._watched.keys() - found.keys():
            self._watched.pop(address).cancel()
        for address in found.keys() - self._watched.keys():
            watching = self._watch(address, found[address])
            self._watched[address] = asyncio.create_task(watching, name=f"watch {address}")

    async def _watch(self, address: str, target: Target) -> None:
        try:
            while True:
                try:
                    await self._follow(address, target)
                # uvloop raises RuntimeError where something is written to a closed transport.
                except (OSError, ValueError, EOFError, RuntimeError, asyncio.LimitOverrunError) as error:
                    reason = str(error) or type(error).__name__
                self._set(address, reason)
                await asyncio.sleep(RETRY_S)
        finally:
            self._set(address, "no longer among the fleet's gateways")

    async def _follow(self, address: str, target: Target) -> None:
        """Ask a gateway again and again. Raise an error once it is gone, or does not answer in time."""
        ip, _, port = address.rpartition(":")
        context = self._context if target.is_https else None
        name = target.address.rpartition(":")[0].strip("[]") if context else None
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(
                ip.strip("[]"), int(port), ssl=context, server_hostname=name
            )
        try:
            while True:
                writer.write(f"GET /health HTTP/1.1\r\nhost: {target.address}\r\n\r\n".encode())
                async with asyncio.timeout(PROBE_S):
                    status = await _status(reader)
                self._set(address, "" if status == 200 else f"/health responds with {status}")
                if not await _is_quiet(reader, INTERVAL_S):
                    raise EOFError("it closed the connection")
        finally:
            writer.close()

    def _set(self, address: str, reason: str) -> None:
        """Note that a gateway serves, or the reason why it does not."""
        serves = not reason
        if serves == (address in self._serving):
            return
        if serves:
            self._serving = sorted([*self._serving, address])
            self.has_served.set()
            self._log.info("gateway_serves", address=address)
        else:
            self._serving = [other for other in self._serving if other != address]
            self._log.warning("gateway_gone", address=address, reason=reason)


async def _status(reader: asyncio.StreamReader) -> int:
    """Read one response and return its status. Raises `ValueError` or `EOFError` if it is none."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    fields = dict(line.partition(":")[::2] for line in head[1:])
    length = int(fields.get("content-length", "0"))
    if length > _MAX_HEALTH_BYTES:
        raise ValueError(f"/health has {length} bytes")
    await reader.readexactly(length)
    return int(head[0].split()[1])


async def _is_quiet(reader: asyncio.StreamReader, for_s: float) -> bool:
    """Wait; return False at once if the connection ends, or something comes that nobody asked for."""
    try:
        async with asyncio.timeout(for_s):
            await reader.read(1)
    except TimeoutError:
        return True
    return False
