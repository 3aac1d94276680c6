"""Commands reach the step thread, reports reach the event loop, and what breaks is not swallowed."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from engine.core.commands import Cancel, Command
from engine.core.report import Load, StepReport
from engine.errors import GroupBrokenError
from tests.patience import PATIENCE_S
from worker.engine.engine_thread import EngineThread, Inbox


def report(step: int) -> StepReport:
    return StepReport(load=Load(step, 0, 0, 0, 0, 0, 0))


class EchoLoop:
    """Reports the handle of every Cancel as a step; breaks on 13."""

    def __init__(self) -> None:
        self.thread = ""

    def run(
        self,
        drain: Callable[[float], Sequence[Command]],
        emit: Callable[[StepReport], None],
        stop: Callable[[], bool],
    ) -> None:
        self.thread = threading.current_thread().name
        while not stop():
            for command in drain(math.inf):
                assert isinstance(command, Cancel)
                if command.handle == 13:
                    raise RuntimeError("thirteen")
                emit(report(command.handle))


async def test_commands_go_in_and_reports_come_out_in_order_on_the_loop() -> None:
    heard: asyncio.Queue[int] = asyncio.Queue()
    loop = EchoLoop()
    thread = EngineThread(loop, lambda report: heard.put_nowait(report.load.step))
    thread.start()
    for handle in range(5):
        thread.submit(Cancel(handle))
    assert [await heard.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert loop.thread == "step"
    await thread.stop()
    await thread.ended


async def test_a_crash_of_the_thread_is_known_at_once() -> None:
    thread = EngineThread(EchoLoop(), lambda report: None)
    thread.start()
    thread.submit(Cancel(13))
    with pytest.raises(RuntimeError, match="thirteen"):
        await thread.ended
    await thread.stop()


async def test_a_group_that_breaks_ends_it_like_any_crash() -> None:
    """The error is no Exception, so a loop that goes on after a failed step does not catch it."""

    class BreakingLoop:
        def run(self, *_: object) -> None:
            raise GroupBrokenError("a process of the group is gone")

    thread = EngineThread(BreakingLoop(), lambda report: None)
    thread.start()
    with pytest.raises(GroupBrokenError):
        await thread.ended
    await thread.stop()


async def test_a_report_that_cannot_be_delivered_ends_it_too() -> None:
    def refuse(report: StepReport) -> None:
        raise ValueError("no")

    thread = EngineThread(EchoLoop(), refuse)
    thread.start()
    thread.submit(Cancel(1))
    with pytest.raises(ValueError, match="no"):
        await thread.ended
    await thread.stop()


async def test_a_turn_lasts_while_under_way_and_waiting_is_no_turn() -> None:
    begun, go_on = asyncio.Event(), threading.Event()
    events = asyncio.get_running_loop()

    class OneLongTurn:
        def run(
            self,
            drain: Callable[[float], Sequence[Command]],
            emit: Callable[[StepReport], None],
            stop: Callable[[], bool],
        ) -> None:
            drain(math.inf)
            events.call_soon_threadsafe(begun.set)
            go_on.wait()
            emit(report(1))
            drain(math.inf)

    ended = asyncio.Event()
    thread = EngineThread(OneLongTurn(), lambda report: ended.set())
    thread.start()
    assert thread.turn_s() == 0.0
    thread.submit(Cancel(1))
    await begun.wait()
    first_s = thread.turn_s()
    assert 0 < first_s < thread.turn_s()
    go_on.set()
    await ended.wait()
    while thread.turn_s() > 0:
        await asyncio.sleep(0)
    await thread.stop()
    assert thread.turn_s() == 0.0


def test_an_inbox_waits_only_for_the_first_command() -> None:
    inbox = Inbox()
    assert inbox.drain(0) == []
    inbox.put(Cancel(1))
    inbox.put(Cancel(2))
    assert inbox.drain(math.inf) == [Cancel(1), Cancel(2)]


def test_closing_an_inbox_ends_the_wait() -> None:
    inbox = Inbox()
    drained: list[Sequence[Command]] = []
    waiter = threading.Thread(target=lambda: drained.append(inbox.drain(math.inf)))
    waiter.start()
    inbox.close()
    waiter.join(timeout=PATIENCE_S)
    assert drained == [[]]
    assert inbox.drain(math.inf) == []


def test_a_drain_waits_no_longer_than_it_was_told() -> None:
    inbox = Inbox()
    started = time.monotonic()
    assert inbox.drain(0.02) == []
    assert time.monotonic() - started >= 0.02
    inbox.put(Cancel(1))
    assert inbox.drain(60.0) == [Cancel(1)]
