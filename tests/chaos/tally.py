"""Adds up over all runs what struck, and what came of it."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.plan import ALL, PAIR_CELLS, Cell, Fault, Kind, PairCell, Phase, cell, pair_cell
from tests.chaos.streams import Course, Outcome
from tests.chaos.watch import Hit

MOST_FAILURES = 200
OF_NEED = ", short of something"


@dataclass
class Tally:
    """Counts only, so that two add up exactly."""

    struck: Counter[tuple[Kind, Phase]] = field(default_factory=Counter)
    by_fault: Counter[str] = field(default_factory=Counter)
    pairs: Counter[PairCell] = field(default_factory=Counter)
    """Each two faults that struck the same request, planned so or not."""
    seen: Counter[str] = field(default_factory=Counter)
    """By kind and place: strikes of which an effect was seen, where one can be measured."""
    unseen: Counter[str] = field(default_factory=Counter)
    """The same without any effect, such as a cut between two processes that were not connected."""
    again: Counter[str] = field(default_factory=Counter)
    """Requests whose id had been used before: soon after its end, or when its router had forgotten it."""
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    leaks: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)
    """Deaths of processes that nobody killed."""
    recoveries: dict[str, Counter[str]] = field(default_factory=dict)
    """By who was struck: seconds, to two digits, and how often."""
    http: Counter[str] = field(default_factory=Counter)
    """Streams over HTTP, and how often one was asked again because its gateway had died."""
    failures: list[str] = field(default_factory=list)
    """The first of what went wrong, in words."""
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Commit, machine, minutes, seed, and the digest of the tally that the plan of each run began from."""
    minutes: float = 0.0
    hits: dict[str, list[tuple[Fault, Hit]]] = field(default_factory=dict, compare=False)
    """By request, until its stream is over."""

    @property
    def streams(self) -> int:
        return sum(self.outcomes.values())

    @property
    def num_struck(self) -> int:
        return sum(self.struck.values())

    @property
    def bad(self) -> int:
        """Lost, repeated or changed streams, leaks, and deaths that nothing explains."""
        return (
            self.streams
            - self.outcomes[Outcome.SAME]
            + sum(self.leaks.values())
            + sum(count for what, count in self.deaths.items() if not what.endswith(OF_NEED))
        )

    def add_strike(self, fault: Fault, hit: Hit) -> None:
        """A fault that struck a stream."""
        self.struck[cell(fault)] += 1
        self.by_fault[str(fault)] += 1
        self.hits.setdefault(hit.request_id, []).append((fault, hit))

    def add_effect(self, fault: Fault, *, is_seen: bool) -> None:
        """Add whether a strike did anything."""
        (self.seen if is_seen else self.unseen)[f"{fault.kind} of {fault.place}"] += 1

    def add_stream(self, course: Course, where: str) -> None:
        """A stream that is over."""
        assert course.outcome is not None, "it is over"
        self.outcomes[course.outcome] += 1
        if course.by_http:
            self.http["streams"] += 1
            self.http["asked again"] += course.lost_gateways
        hits = self.hits.pop(course.request_id, [])
        self.pairs.update(
            pair_cell(*pair) for pair in itertools.combinations([fault for fault, _ in hits], 2)
        )
        for fault, hit in hits:
            recovery_s = course.recovery_s(hit.at)
            if recovery_s is not None:
                times = self.recoveries.setdefault(f"{fault.kind} of {fault.place}", Counter())
                times[f"{recovery_s:.2g}"] += 1
        if course.outcome is not Outcome.SAME:
            told = ", ".join(f"{fault} at {hit.name}" for fault, hit in hits)
            why = course.why or "other tokens"
            self._fail(f"{course.outcome}: {course.request_id}: {why} ({where}; {told or 'not struck'})")

    def add_leaks(self, held: Mapping[str, float], where: str) -> None:
        """Add what was still held when nothing ran."""
        for what, amount in held.items():
            self.leaks[what.split(" of ")[0]] += 1
            self._fail(f"leaked: {amount:g} {what} ({where})")

    def add_death(self, name: str, exit_code: int, *, in_need: bool, told: str) -> None:
        """Add a death that nobody caused; `in_need` if the process was short of memory or descriptors."""
        kind = name.partition("-")[0]
        self.deaths[f"{kind} with {exit_code}{OF_NEED if in_need else ''}"] += 1
        if not in_need:
            self._fail(f"{name} ended with {exit_code}: {told}")

    def _fail(self, told: str) -> None:
        self.failures = [*self.failures, told][:MOST_FAILURES]

    def merge(self, other: Tally) -> None:
        """Add another run's."""
        self.struck += other.struck
        self.by_fault += other.by_fault
        self.pairs += other.pairs
        self.seen += other.seen
        self.unseen += other.unseen
        self.again += other.again
        self.outcomes += other.outcomes
        self.leaks += other.leaks
        self.deaths += other.deaths
        self.http += other.http
        for name, times in other.recoveries.items():
            self.recoveries[name] = self.recoveries.get(name, Counter()) + times
        for told in other.failures:
            self._fail(told)
        self.runs += other.runs
        self.minutes += other.minutes

    @property
    def digest(self) -> str:
        """Names what a plan began from."""
        return hashlib.blake2b(self._text().encode(), digest_size=6).hexdigest()

    def _text(self) -> str:
        document = {
            "minutes": round(self.minutes, 1),
            "struck": {f"{kind} {phase}": count for (kind, phase), count in sorted(self.struck.items())},
            "by_fault": dict(sorted(self.by_fault.items())),
            "pairs": {_pair_name(pair): count for pair, count in sorted(self.pairs.items())},
            "seen": dict(sorted(self.seen.items())),
            "unseen": dict(sorted(self.unseen.items())),
            "again": dict(sorted(self.again.items())),
            "outcomes": dict(sorted(self.outcomes.items())),
            "leaks": dict(sorted(self.leaks.items())),
            "deaths": dict(sorted(self.deaths.items())),
            "recoveries": {name: dict(sorted(times.items())) for name, times in self.recoveries.items()},
            "http": dict(sorted(self.http.items())),
            "failures": self.failures,
            "runs": self.runs,
        }
        lines = (f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def save(self, path: Path) -> None:
        """Write the tally as JSON, whole or not at all."""
        part = path.with_suffix(".part")
        part.write_text(self._text())
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Tally:
        """An empty one where there is none yet."""
        if not path.exists():
            return cls()
        found = json.loads(path.read_text())
        struck = Counter({_cell(name): count for name, count in found["struck"].items()})
        pairs: Counter[PairCell] = Counter()
        for name, count in found.get("pairs", {}).items():
            one, other = name.split(" + ")
            pairs[_cell(one), _cell(other)] = count
        return cls(
            struck=struck,
            by_fault=Counter(found["by_fault"]),
            pairs=pairs,
            # Older tallies have none of these.
            seen=Counter(found.get("seen", {})),
            unseen=Counter(found.get("unseen", {})),
            again=Counter(found.get("again", {})),
            outcomes=Counter({Outcome(name): count for name, count in found["outcomes"].items()}),
            leaks=Counter(found["leaks"]),
            deaths=Counter(found["deaths"]),
            recoveries={name: Counter(times) for name, times in found["recoveries"].items()},
            http=Counter(found.get("http", {})),  # tallies from before gateways were struck have none
            failures=found["failures"],
            runs=found["runs"],
            minutes=found["minutes"],
        )

    def _show_pairs(self, console: Console) -> None:
        """Show how often a request was struck by two kinds of fault, in whichever order and phases."""
        counts: Counter[tuple[Kind, Kind]] = Counter()
        for ((kind, _), (other, _)), count in self.pairs.items():
            counts[kind, other] += count
        can_occur = {(kind, other) for (kind, _), (other, _) in PAIR_CELLS}
        kinds = list(Kind)
        table = Table("two faults on one request", *map(str, range(1, len(kinds) + 1)), padding=0)
        for number, kind in enumerate(kinds, start=1):
            pairs = [(min(kind, other), max(kind, other)) for other in kinds[:number]]
            told = [str(counts[pair]) if pair in can_occur else "-" for pair in pairs]
            table.add_row(f"{number} {kind}", *told)
        console.print(table)
        console.print(
            f"pairs of kinds: {len(counts)} of {len(can_occur)}; with their phases: "
            f"{len(self.pairs)} of {len(PAIR_CELLS)}"
        )

    def show(self, console: Console) -> None:
        """Faults by kind and phase, streams, what was lost, repeated, changed and leaked, recoveries."""
        table = Table("fault", *Phase, "all", "seen to act", title="faults that struck a stream")
        can_occur = {(entry.kind, entry.phase) for entry in ALL}
        for kind in Kind:
            counts = [self.struck[kind, phase] for phase in Phase]
            told = [str(self.struck[kind, phase]) if (kind, phase) in can_occur else "-" for phase in Phase]
            effects = [_of_kind(counter, kind) for counter in (self.seen, self.unseen)]
            seen = f"{effects[0]} of {sum(effects)}" if any(effects) else "-"
            table.add_row(kind, *told, str(sum(counts)), seen)
        console.print(table)
        self._show_pairs(console)
        lost, repeated, changed = (
            self.outcomes[entry] for entry in (Outcome.LOST, Outcome.REPEATED, Outcome.CHANGED)
        )
        console.print(
            f"{self.minutes:.1f} minutes, {self.streams} streams: {lost} lost, {repeated} repeated, "
            f"{changed} changed; leaked: {dict(self.leaks) or 'nothing'}; "
            f"died unkilled: {dict(self.deaths) or 'nobody'}"
        )
        console.print(
            f"over HTTP: {self.http['streams']} streams; their gateway died, and they were asked again: "
            f"{self.http['asked again']} times"
        )
        console.print(
            f"request ids used again: {self.again['soon']} soon, {self.again['forgotten']} when forgotten"
        )
        recoveries = Table("recovery, s", "times", "P50", "P99", "longest")
        for name, times in sorted(self.recoveries.items()):
            ordered = sorted(float(time) for time in times.elements())
            at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99)]
            recoveries.add_row(name, str(len(ordered)), *(f"{entry:g}" for entry in (*at, ordered[-1])))
        console.print(recoveries)
        for failure in self.failures[:20]:
            console.print(f"  {failure}", markup=False)


def _cell(name: str) -> Cell:
    kind, phase = name.split(" ")
    return Kind(kind), Phase(phase)


def _pair_name(pair: PairCell) -> str:
    return " + ".join(f"{kind} {phase}" for kind, phase in pair)


def _of_kind(counter: Counter[str], kind: Kind) -> int:
    return sum(count for name, count in counter.items() if name.split(" of ")[0] == kind)
