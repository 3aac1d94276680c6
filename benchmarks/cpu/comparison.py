"""Engines in turns: every load, once for each seed, with the limits of the machine measured before each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from benchmarks.cpu.arms import Arm, Engine, Start
from benchmarks.cpu.engines.loads import CHECKED, LOADS, WARM_UP, Load, Played
from benchmarks.cpu.engines.process_engine import NotMeasured, Setting
from benchmarks.cpu.floors import Limits, measure_limits
from benchmarks.doors.arms import by_turns
from sim.reporting.progress import tracked


@dataclass(slots=True)
class Comparison:
    """Everything measured of some arms, by load and name, with a record for each seed."""

    arms: tuple[Arm, ...]
    limits: list[Limits] = field(default_factory=list)
    played: dict[Load, dict[str, list[Played]]] = field(
        default_factory=lambda: {load: {} for load in (*LOADS, CHECKED)}
    )
    exact: dict[Start, list[Played]] = field(default_factory=dict)
    """The records of CHECKED with the weights of arms in float32, for each seed."""
    notes: list[str] = field(default_factory=list)
    """The reasons for arms that are missing."""

    def figures(self, load: Load, arm: Arm) -> list[float]:
        """Return what was measured of an arm; nothing if it is missing."""
        return [load.figure(each) for each in self.played[load].get(arm.name, ())]

    def miss(self, arm: Arm, reason: NotMeasured) -> None:
        """Forget an arm that could not be measured to the end."""
        for arms in self.played.values():
            arms.pop(arm.name, None)
        self._note(reason)

    def miss_exact(self, start: Start, reason: NotMeasured) -> None:
        """Leave the arms uncompared whose weights could not be computed in float32."""
        self.exact.pop(start, None)
        self._note(reason)

    def _note(self, reason: NotMeasured) -> None:
        note = f"{reason}."
        if note not in self.notes:
            self.notes.append(note)
            print(reason, file=sys.stderr)


async def compare(
    setting: Setting, arms: tuple[Arm, ...], vocab_size: int, seeds: Sequence[int], name: str
) -> Comparison:
    """Compute first tokens in float32; then start all arms, one after the other, and let them take turns.

    `name` stands before the progress.
    """
    comparison = Comparison(arms)
    for start in tracked(list(dict.fromkeys(arm.exact for arm in arms)), f"{name}, in float32"):
        try:
            async with start(setting) as engine:
                comparison.exact[start] = [
                    await engine.play(CHECKED, CHECKED.prompts(seed, vocab_size)) for seed in seeds
                ]
        except NotMeasured as reason:
            comparison.miss_exact(start, reason)
    async with AsyncExitStack() as stack:
        engines: dict[Arm, Engine] = {}
        for arm in tracked(arms, f"{name}, starts"):
            try:
                engine = await stack.enter_async_context(arm.start(setting))
                for load in WARM_UP:
                    await engine.play(load, load.prompts("warm-up", vocab_size))
                engines[arm] = engine
            except NotMeasured as reason:
                comparison.miss(arm, reason)
        passes = [(turn, seed, load) for turn, seed in enumerate(seeds) for load in (*LOADS, CHECKED)]
        for turn, seed, load in tracked(passes, f"{name}, loads"):
            if load is LOADS[0]:
                comparison.limits.append(measure_limits())
            prompts = load.prompts(seed, vocab_size)
            for arm in by_turns(list(engines), turn):
                try:
                    played = await engines[arm].play(load, prompts)
                except NotMeasured as reason:
                    comparison.miss(arm, reason)
                    del engines[arm]
                else:
                    comparison.played[load].setdefault(arm.name, []).append(played)
    return comparison
