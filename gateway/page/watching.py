"""One watch of the fleet for all who look at it: nothing runs without a viewer.

    router ──Watch──▶ SharedWatch ──▶ the newest frame of each viewer ──▶ its stream

A frame is encoded once. A viewer keeps only the newest one: who reads slowly misses those between, and delays
nobody. The watch runs with the key of the viewer who has been there longest.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import Context
from typing import Any

import orjson
import structlog

from baton import AsyncClient
from baton.errors import BatonError, NotAllowed
from baton.types.snapshots import FleetFacts, FleetSnapshot
from gateway.serving.errors import problem_of, unavailable
from gateway.serving.fleet import caller_key

INTERVAL_S = 0.2
AGAIN_S = 1.0
"""The pause after a watch that failed."""
MAX_VIEWERS = 64
PROVEN_S = 60.0
"""How often a viewer's key is checked again."""
_LOOK_S = 0.5
"""How often a stream without frames looks whether the gateway leaves."""


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """The newest state, as server-sent events. `steps` is for those who watch steps."""

    fleet: bytes
    steps: bytes = b""


class Viewer:
    """One who looks. `key` is the caller's key, which has been proven an operator's."""

    def __init__(self, key: str, *, include_steps: bool) -> None:
        self.key = key
        self.include_steps = include_steps
        self.refusal: NotAllowed | None = None
        """Why this viewer may look no longer."""
        self._newest: Frame | None = None
        self._changed = asyncio.Event()

    def put(self, frame: Frame) -> None:
        """Replace the newest frame."""
        self._newest = frame
        self._changed.set()

    def refuse(self, error: NotAllowed) -> None:
        self.refusal = error
        self._changed.set()

    async def take(self) -> bytes:
        """Return what is new; nothing if nothing comes in a while."""
        try:
            async with asyncio.timeout(_LOOK_S):
                await self._changed.wait()
        except TimeoutError:
            return b""
        self._changed.clear()
        frame, self._newest = self._newest, None
        if frame is None:
            return b""
        return frame.fleet + frame.steps if self.include_steps else frame.fleet


class SharedWatch:
    """Watches the fleet while there are viewers."""

    def __init__(self, sdk: AsyncClient) -> None:
        self._sdk = sdk
        self._viewers: dict[Viewer, None] = {}
        """In the order in which they came."""
        self._running: tuple[str, bool] | None = None
        """The key of the watch that runs, and whether it includes steps."""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def check_room(self) -> None:
        """Raise `ApiError` if there are as many viewers as there may be."""
        if len(self._viewers) >= MAX_VIEWERS:
            message = f"{MAX_VIEWERS} viewers look at the fleet through this gateway; come back"
            raise unavailable(message, code="too_many_viewers")

    @contextmanager
    def joined(self, viewer: Viewer) -> Iterator[None]:
        """Give a viewer frames while the block lasts."""
        self._viewers[viewer] = None
        self._adjust()
        try:
            yield
        finally:
            self._viewers.pop(viewer, None)
            self._adjust()

    def _adjust(self) -> None:
        """Run the watch that the viewers need, and no other."""
        first = next(iter(self._viewers), None)
        needs = any(viewer.include_steps for viewer in self._viewers)
        wanted = None if first is None else (first.key, needs)
        if wanted == self._running:
            return
        if self._task is not None:
            self._task.cancel()
        self._running, self._task = wanted, None
        if wanted is not None:
            # Not in the context of the request that happens to start it.
            self._task = asyncio.get_running_loop().create_task(self._watch(*wanted), context=Context())

    async def _watch(self, key: str, include_steps: bool) -> None:
        """Give each viewer the fleet's snapshots, and the reason when there are none."""
        caller_key.set(key)
        while True:
            try:
                snapshots = self._sdk.watch(INTERVAL_S, include_steps=include_steps)
                async with aclosing(snapshots):
                    async for snapshot in snapshots:
                        self._put(_frame(snapshot))
            except NotAllowed as error:  # the key was good when its viewer came
                self._drop(key, error)
            except BatonError as error:
                self._put(Frame(event("away", {"message": problem_of(error, str).message})))
            except Exception as error:  # noqa: BLE001 -- a loop's top
                structlog.get_logger().error("watch_failed", exc_info=error)
                self._put(Frame(event("away", {"message": "the gateway failed; its log has the reason"})))
            await asyncio.sleep(AGAIN_S)

    def _drop(self, key: str, error: NotAllowed) -> None:
        """Give the viewers with this key no more frames, and go on for the others."""
        for viewer in [viewer for viewer in self._viewers if viewer.key == key]:
            viewer.refuse(error)
            del self._viewers[viewer]
        self._adjust()

    def _put(self, frame: Frame) -> None:
        for viewer in self._viewers:
            viewer.put(frame)

    async def events(
        self, viewer: Viewer, facts: FleetFacts, leaving: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the fleet's facts and then its snapshots, until the gateway leaves or the key is refused."""
        now = asyncio.get_running_loop().time
        with self.joined(viewer):
            yield event("facts", facts)
            proven_at = now()
            while not leaving():
                data = await viewer.take()
                if now() > proven_at + PROVEN_S:
                    proven_at = now()
                    await self._prove(viewer)
                if viewer.refusal is not None:
                    yield event("refused", {"message": str(viewer.refusal)})
                    return
                if data:
                    yield data

    async def _prove(self, viewer: Viewer) -> None:
        """Note it if the viewer's key is an operator's no more. A fleet that is away says nothing of it."""
        try:
            await self._sdk.describe()
        except NotAllowed as error:
            viewer.refuse(error)
        except BatonError:
            pass


def _frame(snapshot: FleetSnapshot) -> Frame:
    steps = event("steps", snapshot.steps) if snapshot.steps else b""
    return Frame(event("fleet", dataclasses.replace(snapshot, steps=())), steps)


def event(kind: str, data: Any) -> bytes:
    """Return one server-sent event. `data` is a JSON value, or a dataclass of such."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))
