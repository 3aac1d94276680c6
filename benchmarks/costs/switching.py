"""Measure how long a step waits for Python's interpreter lock, with a device that only sleeps.

A step thread launches a step kernel by kernel. Each launch computes in Python for some microseconds and then
gives up the lock, as a driver's call does. Beside it another thread, which stands for an event loop, computes
in Python for a part of the time. After each launch the step thread has to win the lock back: it asks for it
after the interpreter's switch interval.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from itertools import product

from benchmarks.report import report
from runtime.process.threads import SWITCH_S
from sim.reporting.progress import tracked
from sim.reporting.section import Section, markdown
from sim.reporting.tables import cell

PYTHON_S = 0.005
"""The interval by which Python starts."""
NUM_LAUNCHES = 326
"""Launches of a step with a chunk of Llama-3.1-8B."""
LAUNCH_S = 35e-6
"""The part of each that holds the lock: beside an H200 all of them took 12.5 ms, when nothing else ran."""
BURST_S = 0.004
"""The event loop computes for so long at a time."""
SHARES = (0.0, 0.25, 0.5, 0.75)


def compute(duration_s: float) -> None:
    """Hold the interpreter lock for so much of this thread's own processor time."""
    over_at = time.thread_time() + duration_s
    while time.thread_time() < over_at:
        pass


def step_times(num_steps: int, share: float) -> tuple[list[float], float]:
    """Return the times of steps beside a thread that computes for `share` of the time, and its bursts/s.

    The device takes no time at all, so a step lasts as long as its launches.
    """
    stopped, num_bursts = threading.Event(), 0

    def handle_events() -> None:
        nonlocal num_bursts
        while not stopped.is_set():
            compute(BURST_S)
            num_bursts += 1
            stopped.wait(BURST_S * (1 - share) / share)

    thread = threading.Thread(target=handle_events)
    if share:
        thread.start()
    times, began_at = [], time.perf_counter()
    for _ in range(num_steps):
        step_began_at = time.perf_counter()
        for _ in range(NUM_LAUNCHES):
            compute(LAUNCH_S)
            time.sleep(0)  # gives up the lock
        times.append(time.perf_counter() - step_began_at)
    rate = num_bursts / (time.perf_counter() - began_at)
    stopped.set()
    if share:
        thread.join()
    return times, rate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="steps of each arm (50)")


def run(args: argparse.Namespace) -> int:
    """Time steps with both intervals in turns, once per seed."""
    arms = list(product(SHARES, (PYTHON_S, SWITCH_S)))
    medians: dict[tuple[float, float], list[float]] = {arm: [] for arm in arms}
    rates: dict[tuple[float, float], list[float]] = {arm: [] for arm in arms}
    was_s = sys.getswitchinterval()
    for share, interval_s in tracked(arms * len(args.seeds), "arms"):
        sys.setswitchinterval(interval_s)
        times, rate = step_times(args.steps, share)
        medians[share, interval_s].append(statistics.median(times) * 1e3)
        rates[share, interval_s].append(rate)
    sys.setswitchinterval(was_s)
    rows = [
        (
            f"{share:.0%}",
            *(cell(medians[share, each], spec=".1f") for each in (PYTHON_S, SWITCH_S)),
            *(cell(rates[share, each], spec=".0f") if share else "–" for each in (PYTHON_S, SWITCH_S)),
        )
        for share in SHARES
    ]
    names = [f"{interval_s * 1e3:g} ms" for interval_s in (PYTHON_S, SWITCH_S)]
    table = markdown(
        ("events take", *(f"step, ms: {name}" for name in names), *(f"bursts/s: {name}" for name in names)),
        rows,
    )
    method = (
        f"{NUM_LAUNCHES} launches a step, each with {LAUNCH_S * 1e6:g} µs of Python; events come in "
        f"bursts of {BURST_S * 1e3:g} ms. Medians of {args.steps} steps, measured {len(args.seeds)} times."
    )
    data = {f"{share} at {interval_s}": medians[share, interval_s] for share, interval_s in arms}
    return report(args, [Section("Steps beside an event loop", method, (), (table,), {"ms": data})])
