"""All viewers share one watch of the fleet, which runs only while somebody looks."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
import pytest_asyncio

from baton import AsyncClient
from baton.operators.v1 import fleet_pb2, fleet_pb2_grpc
from baton.security.credentials import Credentials
from baton.types import Timeout
from baton.types.snapshots import FleetFacts
from gateway.page.watching import INTERVAL_S, MAX_VIEWERS, SharedWatch, Viewer
from gateway.serving.errors import ApiError
from gateway.serving.fleet import caller_key
from tests.patience import PATIENCE_S
from tests.ports import free_port

FACTS = FleetFacts("model", "Scripted", "f", 16, 1024, "aggregated", "1")


class KeyOfCaller(Credentials):
    """The key of `caller_key`, as a gateway forwards it, without the TLS that it demands for this."""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", caller_key.get()),)


class WatchedRouter(fleet_pb2_grpc.FleetServiceServicer):
    """A router that sends snapshots quickly, and knows who watches. A key in `refused` may not."""

    def __init__(self) -> None:
        self.open: list[tuple[str, fleet_pb2.WatchRequest]] = []
        self.num_calls = 0
        self.refused: set[str] = set()
        self.address = ""

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[fleet_pb2.WatchResponse]:
        self.num_calls += 1
        key = dict(context.invocation_metadata())["authorization"]
        call = (key, request)
        self.open.append(call)
        try:
            for number in itertools.count(1):
                if key in self.refused:
                    await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not an operator any more")
                steps = [fleet_pb2.WorkerStep(worker_id="d0", step=number)] if request.include_steps else []
                yield fleet_pb2.WatchResponse(uptime_s=number, steps=steps)
                await asyncio.sleep(0.005)
        finally:
            self.open.remove(call)

    def Describe(self, request: Any, context: Any) -> fleet_pb2.DescribeResponse:
        return fleet_pb2.DescribeResponse()

    def Drain(self, request: Any, context: Any) -> fleet_pb2.DrainResponse:
        return fleet_pb2.DrainResponse()


@asynccontextmanager
async def running(router: WatchedRouter, address: str = "127.0.0.1:0") -> AsyncIterator[None]:
    server = grpc.aio.server()
    fleet_pb2_grpc.add_FleetServiceServicer_to_server(router, server)
    router.address = f"127.0.0.1:{server.add_insecure_port(address)}"
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


@pytest_asyncio.fixture
async def router() -> AsyncIterator[WatchedRouter]:
    watched = WatchedRouter()
    async with running(watched):
        yield watched


@asynccontextmanager
async def watching(router: WatchedRouter) -> AsyncIterator[SharedWatch]:
    async with AsyncClient(router.address, credentials=KeyOfCaller()) as sdk:
        watch = SharedWatch(sdk)
        yield watch
        assert not watch.is_running


def events_in(data: bytes) -> list[tuple[str, Any]]:
    events = []
    for text in data.decode().split("\n\n")[:-1]:
        kind, content = text.split("\n")
        events.append((kind.removeprefix("event: "), json.loads(content.removeprefix("data: "))))
    return events


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def taken(viewer: Viewer) -> list[tuple[str, Any]]:
    """Return the next events of a viewer, which come."""
    async with asyncio.timeout(PATIENCE_S):
        while not (data := await viewer.take()):
            pass
    return events_in(data)


async def test_many_viewers_share_one_watch_and_none_runs_without_them(router: WatchedRouter) -> None:
    async with watching(router) as watch:
        assert not watch.is_running
        viewers = [Viewer("operator", include_steps=False) for _ in range(MAX_VIEWERS)]
        with ExitStack() as looking:
            for viewer in viewers:
                looking.enter_context(watch.joined(viewer))
            for viewer in viewers:
                ((kind, snapshot),) = await taken(viewer)
                assert (kind, snapshot["steps"]) == ("fleet", [])
            assert router.num_calls == 1
            assert router.open[0][1].interval_ms == round(1000 * INTERVAL_S) == 200
            with pytest.raises(ApiError) as refused:
                watch.check_room()
            assert (refused.value.problem.status, refused.value.problem.code) == (503, "too_many_viewers")
        await until(lambda: not router.open)
    assert router.num_calls == 1


async def test_a_viewer_who_does_not_read_keeps_one_frame_and_delays_nobody(router: WatchedRouter) -> None:
    async with watching(router) as watch:
        slow, quick = Viewer("operator", include_steps=True), Viewer("operator", include_steps=False)
        with watch.joined(slow), watch.joined(quick):
            seen = 0.0
            while seen < 50:
                ((_, snapshot),) = await taken(quick)
                assert snapshot["uptime_s"] > seen
                seen = snapshot["uptime_s"]
            (_, newest), (kind, steps) = await taken(slow)
            assert newest["uptime_s"] >= seen
            assert (kind, len(steps)) == ("steps", 1)


async def test_steps_are_watched_only_while_a_viewer_wants_them(router: WatchedRouter) -> None:
    async with watching(router) as watch:
        plain, curious = Viewer("operator", include_steps=False), Viewer("operator", include_steps=True)
        with watch.joined(plain):
            await taken(plain)
            assert not router.open[0][1].include_steps
            with watch.joined(curious):
                while len(events := await taken(curious)) < 2:
                    pass
                assert [kind for kind, _ in events] == ["fleet", "steps"]
                assert [kind for kind, _ in await taken(plain)] == ["fleet"]
                assert [request.include_steps for _, request in router.open][-1:] == [True]
            await until(lambda: [request.include_steps for _, request in router.open] == [False])


async def test_a_key_that_is_revoked_ends_its_viewers_alone(router: WatchedRouter) -> None:
    async with watching(router) as watch:
        first, second = Viewer("first", include_steps=False), Viewer("second", include_steps=False)
        leaving = asyncio.Event()
        streams = [watch.events(viewer, FACTS, leaving.is_set) for viewer in (first, second)]
        for stream in streams:
            assert events_in(await anext(stream))[0][0] == "facts"
            assert events_in(await anext(stream))[0][0] == "fleet"
        assert [key for key, _ in router.open] == ["first"]
        router.refused.add("first")
        rest = [event async for data in streams[0] for event in events_in(data)]
        kind, value = rest[-1]
        assert (kind, "operator" in value["message"]) == ("refused", True)
        assert events_in(await anext(streams[1]))[0][0] == "fleet"
        await until(lambda: [key for key, _ in router.open] == ["second"])
        leaving.set()
        assert all([events_in(data)[0][0] == "fleet" async for data in streams[1]])


async def test_viewers_hear_that_the_fleet_is_away_and_that_it_is_back() -> None:
    address = f"127.0.0.1:{free_port()}"
    async with AsyncClient(address, credentials=KeyOfCaller(), timeout=Timeout(connect_s=0.1)) as sdk:
        watch, viewer = SharedWatch(sdk), Viewer("operator", include_steps=False)
        with watch.joined(viewer):
            assert (await taken(viewer))[0][0] == "away"
            async with running(WatchedRouter(), address):
                while (await taken(viewer))[0][0] != "fleet":
                    pass
