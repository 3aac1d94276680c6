"""Engines in turns: every load, once for each seed, with the limits of the machine measured before each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.cpu.engines import process_engine
from benchmarks.cpu.engines.baton_engine import NAME, baton
from benchmarks.cpu.engines.loads import LOADS, WARM_UP, Load, Played
from benchmarks.cpu.engines.process_engine import NotMeasured, Setting
from benchmarks.cpu.floors import Limits, measure_limits
from benchmarks.doors.arms import by_turns
from sim.reporting.progress import tracked


class Engine(Protocol):
    """A running engine."""

    @property
    def name(self) -> str: ...

    async def play(self, load: Load, prompts: Sequence[Sequence[int]]) -> Played:
        """Compute the prompts, all sent at once. Raises NotMeasured if the engine has ended."""


ENGINES: dict[str, Callable[[Setting], AbstractAsyncContextManager[Engine]]] = {
    NAME: baton,
    "transformers": process_engine.transformers,
    "OpenVINO GenAI": process_engine.openvino,
}


@dataclass(slots=True)
class Comparison:
    """Everything measured, by load and engine, with a record for each seed."""

    limits: list[Limits] = field(default_factory=list)
    played: dict[Load, dict[str, list[Played]]] = field(default_factory=lambda: {load: {} for load in LOADS})
    notes: list[str] = field(default_factory=list)
    """The reasons for engines that are missing."""

    def figures(self, load: Load, engine: str) -> list[float]:
        """Return what was measured of an engine; nothing if it is missing."""
        return [load.figure(each) for each in self.played[load].get(engine, ())]

    def miss(self, engine: str, reason: NotMeasured) -> None:
        """Forget an engine that could not be measured to the end."""
        for engines in self.played.values():
            engines.pop(engine, None)
        self.notes.append(f"{reason}.")
        print(reason, file=sys.stderr)


async def compare(setting: Setting, vocab_size: int, seeds: Sequence[int]) -> Comparison:
    """Start all engines, one after the other, and let them take turns."""
    comparison = Comparison()
    async with AsyncExitStack() as stack:
        engines: list[Engine] = []
        for name, started in ENGINES.items():
            try:
                engine = await stack.enter_async_context(started(setting))
                for load in WARM_UP:
                    await engine.play(load, load.prompts("warm-up", vocab_size))
                engines.append(engine)
            except NotMeasured as reason:
                comparison.miss(name, reason)
        passes = [(turn, seed, load) for turn, seed in enumerate(seeds) for load in LOADS]
        for turn, seed, load in tracked(passes, "loads"):
            if load is LOADS[0]:
                comparison.limits.append(measure_limits())
            prompts = load.prompts(seed, vocab_size)
            for engine in by_turns(engines, turn):
                try:
                    played = await engine.play(load, prompts)
                except NotMeasured as reason:
                    comparison.miss(engine.name, reason)
                    engines.remove(engine)
                else:
                    comparison.played[load].setdefault(engine.name, []).append(played)
    return comparison
