"""Simulated processes: what runs on their loops, and what is left of it when they stop or die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.dst.world.dice import Dice
from tests.dst.world.network import LinkState, Network
from tests.dst.world.process import Process
from tests.dst.world.rpc import Context, Servers, Stub
from tests.dst.world.scheduler import Scheduler

FAR = 1000.0


class World:
    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, Dice(1), (0.001, 0.01))

    def process(self, name: str, rate: float = 1.0) -> Process:
        return Process(name, self.scheduler, Dice(name), rate=rate)

    def run(self, until: float = FAR) -> None:
        self.scheduler.run(until, lambda: False)


def begin(process: Process, work: Callable[[], Awaitable[object]]) -> list[object]:
    """Run a coroutine, and return where its result appears."""
    results: list[object] = []

    async def note() -> None:
        results.append(await work())

    process.soon(process.loop.create_task, note())
    return results


def test_a_sleep_takes_its_time_on_the_process_own_clock() -> None:
    world = World()
    fast = world.process("fast", rate=2.0)

    async def sleep() -> float:
        await asyncio.sleep(10.0)
        return world.scheduler.now

    results = begin(fast, sleep)
    world.run()
    assert results == [5.0]


def test_a_timeout_ends_a_wait() -> None:
    world = World()
    process = world.process("p")

    async def wait() -> str:
        try:
            async with asyncio.timeout(3.0):
                await asyncio.Event().wait()
        except TimeoutError:
            return f"ended at {world.scheduler.now}"
        return "nothing ended it"

    results = begin(process, wait)
    world.run()
    assert results == ["ended at 3.0"]


def test_a_stopped_process_goes_on_where_it_stood() -> None:
    world = World()
    process = world.process("p")
    ticks: list[float] = []

    async def tick() -> None:
        for _ in range(4):
            await asyncio.sleep(1.0)
            ticks.append(world.scheduler.now)

    begin(process, tick)
    world.scheduler.at(1.5, process.stop)
    world.scheduler.at(9.5, process.go_on)
    world.run()
    assert ticks == [1.0, 9.5, 10.5, 11.5]


def test_nothing_of_a_dead_process_runs() -> None:
    world = World()
    process = world.process("p")
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(5.0)
        finally:
            ends.append("finally")

    begin(process, work)
    world.scheduler.at(1.0, process.kill)
    world.run()
    assert ends == []


def test_a_clock_that_jumps_brings_timers_forward() -> None:
    world = World()
    process = world.process("p")

    async def sleep() -> float:
        await asyncio.sleep(10.0)
        return world.scheduler.now

    results = begin(process, sleep)
    world.scheduler.at(1.0, process.jump, 6.0)
    world.run()
    assert results == [4.0]


def heard_by(world: World, one: Process, other: Process) -> tuple[list[object], list[str]]:
    """Send ten messages in a row from `one`, half of them at once; return what `other` hears."""
    connection = world.network.connect(one, other, "test")
    assert connection is not None
    messages: list[object] = []
    broken: list[str] = []
    connection.listen(other, messages.append, broken.append)
    for number in range(5):
        connection.send(one, number)
    for number in range(5, 10):
        world.scheduler.at(1.0 + number / 100, connection.send, one, number)
    return messages, broken


def test_messages_keep_their_order() -> None:
    world = World()
    messages, _ = heard_by(world, world.process("a"), world.process("b"))
    world.run()
    assert messages == list(range(10))


def test_messages_on_a_half_open_link_wait_and_keep_their_order() -> None:
    world = World()
    messages, broken = heard_by(world, world.process("a"), world.process("b"))
    world.scheduler.at(1.05, world.network.set_link, "a", "b", LinkState.HALF_OPEN)
    world.run(until=4.0)
    before = len(messages)
    world.network.set_link("a", "b", LinkState.UP)
    world.run(until=5.0)
    assert before < 10
    assert messages == list(range(10))
    assert not broken


def test_a_cut_link_breaks_its_connections_for_both() -> None:
    world = World()
    one, other = world.process("a"), world.process("b")
    messages, broken = heard_by(world, one, other)
    world.scheduler.at(1.0, world.network.set_link, "a", "b", LinkState.CUT)
    world.run()
    assert messages == [0, 1, 2, 3, 4]
    assert broken == ["the link is cut"]
    assert world.network.connect(one, other, "again") is None


def test_a_death_behind_a_half_open_link_is_noticed_later() -> None:
    world = World()
    one, other = world.process("a"), world.process("b")
    _, broken = heard_by(world, one, other)
    world.scheduler.at(0.5, world.network.set_link, "a", "b", LinkState.HALF_OPEN)
    world.scheduler.at(1.0, one.kill)
    world.run(until=2.0)
    assert not broken
    world.network.set_link("a", "b", LinkState.UP)
    world.run(until=3.0)
    assert broken == ["a is gone"]


def test_a_handler_ends_with_the_call_of_its_client() -> None:
    world = World()
    client, server = world.process("c"), world.process("s")
    ended: list[float] = []

    async def wait(request: object, context: Context) -> None:
        try:
            await asyncio.sleep(100.0)
        except asyncio.CancelledError:
            ended.append(world.scheduler.now)
            raise

    servers: Servers = {"s": (server, {"Open": wait})}

    async def call() -> None:
        found = Stub(world.network, client, servers, "s").Open("request")
        await asyncio.sleep(1.0)
        found.cancel()

    begin(client, call)
    world.run()
    assert len(ended) == 1
    assert 1.0 < ended[0] < 1.1
