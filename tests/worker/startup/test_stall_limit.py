"""A step that never ends ends the worker; long ones, idle ones and stopped processes are left alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.core.commands import Cancel, Command
from engine.core.report import StepReport
from runtime.process.watchdog import EXIT_STALLED, Watchdog
from scheduling.cost_model import StepShape
from tests.patience import PATIENCE_S
from worker.engine.engine import LONGEST_STEPS, MIN_LIMIT_S, stall_limit_s
from worker.engine.engine_thread import EngineThread

LOOK_S = 0.01
CHECKOUT = Path(__file__).parents[3]
STALLING_WORKER = """
import asyncio, threading
from functools import partial
from worker.engine.engine_thread import EngineThread
from runtime.process.watchdog import Watchdog, leave_stalled

class Stalling:
    def run(self, drain, emit, stop):
        drain(0.0)
        threading.Event().wait()

async def main():
    thread = EngineThread(Stalling(), lambda report: None)
    thread.start()
    Watchdog(thread.turn, 0.2, partial(leave_stalled, "step", thread.ident), 0.05).start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


class HeldLoop:
    """A turn for each command, which lasts until `let_go`."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = threading.Event()

    def run(
        self,
        drain: Callable[[float], Sequence[Command]],
        emit: Callable[[StepReport], None],
        stop: Callable[[], bool],
    ) -> None:
        while not stop():
            if drain(60.0):
                self.begun.set()
                self.let_go.wait()


async def test_a_turn_that_does_not_end_is_noticed_and_an_idle_loop_is_not() -> None:
    loop, stalled = HeldLoop(), asyncio.Event()
    events = asyncio.get_running_loop()
    thread = EngineThread(loop, lambda report: None)
    thread.start()

    def notice(seconds: float) -> None:
        events.call_soon_threadsafe(stalled.set)

    watchdog = Watchdog(thread.turn, 5 * LOOK_S, notice, LOOK_S)
    watchdog.start()
    looks = 0
    while looks < 20:  # idle, for four times what a turn may last
        looks += thread.turn() is None
        await asyncio.sleep(LOOK_S)
    assert not stalled.is_set()
    thread.submit(Cancel(1))
    async with asyncio.timeout(PATIENCE_S):
        await stalled.wait()
    assert loop.begun.is_set()
    loop.let_go.set()
    await thread.stop()
    watchdog.stop()


def test_turns_that_end_are_no_stall_however_long_they_go_on() -> None:
    answers = iter([*(number // 4 for number in range(400)), None])
    is_over = threading.Event()
    stalled: list[float] = []

    def turn() -> int | None:
        answer = next(answers, None)
        if answer is None:
            is_over.set()
        return answer

    watchdog = Watchdog(
        turn, 0.004, stalled.append, check_period_s=0.001
    )  # five looks at one turn would be too many
    watchdog.start()
    assert is_over.wait(60)
    watchdog.stop()
    assert not stalled


def test_patience_follows_the_longest_step_and_has_a_floor() -> None:
    shape = StepShape.of(1, 10, [])
    assert stall_limit_s([], 256) == stall_limit_s([(shape, 0.01)], 256) == MIN_LIMIT_S
    assert stall_limit_s([(shape, 2.0), (shape, 0.1)], 2) == 2.0 * LONGEST_STEPS


def test_patience_reaches_for_steps_that_there_was_no_time_to_measure() -> None:
    measured = [(StepShape.of(1, 10, []), 3.0), (StepShape.of(4, 40, []), 5.0)]
    assert stall_limit_s(measured, 256) == 64 * 5.0 > LONGEST_STEPS * 5.0


def test_a_stalled_worker_ends_and_says_where_it_stood() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STALLING_WORKER],
        check=False,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == EXIT_STALLED
    assert "what=step" in (ended.stdout + ended.stderr).replace("\x1b[0m", "")
    assert "in run" in ended.stdout + ended.stderr
