"""What struck, and what came of it, added up over all runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.plan import Fault, Kind, Phase
from tests.chaos.streams import Course, Outcome


@dataclass
class Tally:
    """Counts only; `recoveries_s` by who was struck, bounded."""

    struck: Counter[tuple[Kind, Phase]] = field(default_factory=Counter)
    by_fault: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    leaks: Counter[str] = field(default_factory=Counter)
    recoveries_s: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """The first of what went wrong, in words, with the seed that repeats it."""
    minutes: float = 0.0

    @property
    def streams(self) -> int:
        return sum(self.outcomes.values())

    @property
    def bad(self) -> int:
        """Lost, repeated or changed streams, and leaks."""
        return self.streams - self.outcomes[Outcome.SAME] + sum(self.leaks.values())

    def add_strike(self, fault: Fault, victim: Course, struck_at: float) -> None:
        """A fault that struck a stream."""
        self.struck[fault.kind, fault.phase] += 1
        self.by_fault[str(fault)] += 1
        recovery_s = victim.recovery_s(struck_at)
        if recovery_s is not None:
            self.recoveries_s.setdefault(f"{fault.kind} of {fault.place}", []).append(round(recovery_s, 3))

    def add_stream(self, course: Course, where: str) -> None:
        """A stream that is over."""
        assert course.outcome is not None, "it is over"
        self.outcomes[course.outcome] += 1
        if course.outcome is not Outcome.SAME:
            self.failures.append(f"{course.outcome}: {course.why or 'other tokens'} ({where})")

    def add_leaks(self, held: dict[str, int], where: str) -> None:
        """What was still held when nothing ran."""
        for what, amount in held.items():
            self.leaks[what.split(" of ")[0]] += 1
            self.failures.append(f"leaked: {amount} {what} ({where})")

    def merge(self, other: Tally) -> None:
        """Add another run's."""
        self.struck += other.struck
        self.by_fault += other.by_fault
        self.outcomes += other.outcomes
        self.leaks += other.leaks
        for name, times in other.recoveries_s.items():
            self.recoveries_s[name] = [*self.recoveries_s.get(name, []), *times][-2000:]
        self.failures = [*self.failures, *other.failures][:200]
        self.minutes += other.minutes

    def save(self, path: Path) -> None:
        """As JSON, whole or not at all."""
        text = json.dumps(
            {
                "minutes": round(self.minutes, 1),
                "struck": {f"{kind} {phase}": count for (kind, phase), count in sorted(self.struck.items())},
                "by_fault": dict(sorted(self.by_fault.items())),
                "outcomes": dict(self.outcomes),
                "leaks": dict(self.leaks),
                "recoveries_s": self.recoveries_s,
                "failures": self.failures,
            },
            indent=1,
        )
        part = path.with_suffix(".part")
        part.write_text(text + "\n")
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Tally:
        """An empty one where there is none yet."""
        if not path.exists():
            return cls()
        found = json.loads(path.read_text())
        struck: Counter[tuple[Kind, Phase]] = Counter()
        for name, count in found["struck"].items():
            kind, phase = name.split(" ")
            struck[Kind(kind), Phase(phase)] = count
        return cls(
            struck,
            Counter(found["by_fault"]),
            Counter({Outcome(name): count for name, count in found["outcomes"].items()}),
            Counter(found["leaks"]),
            found["recoveries_s"],
            found["failures"],
            found["minutes"],
        )

    def show(self, console: Console) -> None:
        """Faults by kind and phase, streams, what was lost, repeated, changed and leaked, recoveries."""
        table = Table("fault", *Phase, "all", title="faults that struck a stream")
        for kind in Kind:
            counts = [self.struck[kind, phase] for phase in Phase]
            table.add_row(kind, *(str(count or "-") for count in counts), str(sum(counts)))
        console.print(table)
        lost, repeated, changed = (
            self.outcomes[one] for one in (Outcome.LOST, Outcome.REPEATED, Outcome.CHANGED)
        )
        console.print(
            f"{self.minutes:.1f} minutes, {self.streams} streams: {lost} lost, {repeated} repeated, "
            f"{changed} changed; leaked: {dict(self.leaks) or 'nothing'}"
        )
        recoveries = Table("recovery, s", "times", "P50", "P99", "longest")
        for name, times in sorted(self.recoveries_s.items()):
            ordered = sorted(times)
            at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99)]
            recoveries.add_row(name, str(len(ordered)), f"{at[0]:.2f}", f"{at[1]:.2f}", f"{ordered[-1]:.2f}")
        console.print(recoveries)
        for failure in self.failures[:20]:
            console.print(f"  {failure}")
