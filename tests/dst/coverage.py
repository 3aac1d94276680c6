"""Which faults struck whom, in which phase of a request, over many runs, and what a search has never seen.

A search that finds nothing says little until it is known what it tried: every kind of fault on every role in
every phase, every two kinds in one run, and events of the fleet that only some faults bring about (probes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

from rich.console import Console
from rich.table import Column, Table

from tests.dst.run import Outcome
from tests.dst.scenario import DECODE, KINDS, PHASES, PREFILL, ROUTER, STORE

NONE = "none"
"""The phase of a fault that strikes while no request is under way. A search need not see it."""
MOST_LISTED = 20
"""The tables show all that was never seen; the lists below them the first ones."""
LINKS = (
    "client–router",
    "prefill–router",
    "decode–router",
    "redis–router",
    "decode–prefill",
    "decode–decode",
)
ROLES_OF = {
    "kill": (ROUTER, PREFILL, DECODE, STORE),
    "stop": (ROUTER, PREFILL, DECODE, STORE),
    "jump": (ROUTER, PREFILL, DECODE, STORE),
    "drain": (ROUTER, PREFILL, DECODE),
    "cut": LINKS,
    "half-open": LINKS,
    "slow": LINKS,
    "island": (
        "router from prefill",
        "router from decode",
        "router from redis",
        "prefill from router",
        "prefill from decode",
        "decode from router",
        "decode from prefill",
        "decode from decode",
        "redis from router",
    ),
}
"""The roles that each kind of fault can strike: a process by its role, or a link by the roles at its ends.

An island between processes that never talk to each other is none.
"""

PROBES = (
    # Events of a router's core.
    "CancelAsked",
    "ClientGone",
    "Nudged",
    "QueueWasFull",
    "RouterLeaving",
    "RouterStopping",
    "StoreFailed",
    "StoreForgot",
    "WorkerHeld",
    "WorkerLost",
    # Its decisions.
    "AttemptFailed",
    "ChargeTenant",
    "Dequeue",
    "GroupMigrated",
    "GroupPreempted",
    "PromiseBroken",
    "RefundTenant",
    "Reject",
    "ReleaseCredit",
    "ReleaseLease",
    "Renew",
    "RequestShed",
    "SendCancel",
    "SendDecode",
    "SendDrain",
    "SendPreCopy",
    "SendPrefill",
    "SendReceive",
    "SendStopAndCopy",
    "Settle",
    "StoreChanged",
    "TakeHolds",
    "TellLeaving",
    "TellQueued",
    "TellRetrying",
    # Why workers gave a group up.
    "failed: DRAINING",
    "failed: FENCED",
    "failed: HANDOFF",
    "failed: NO_BLOCKS",
    "failed: SUPERSEDED",
    # The end of calls.
    "call completed",
    "call failed",
    "call left",
    "call resumed",
)
"""Events and decisions that a good search sees at least once."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The faults that many runs tried, and the events they saw. Two of them add up to one, in any order."""

    runs: int = 0
    broken: int = 0
    """Runs that broke a promise."""
    simulated_s: float = 0.0
    struck: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Faults by kind, role and phase."""
    pairs: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Two faults of one run by their kinds, in the order of their names, and the phase of the later one."""
    probes: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, outcome: Outcome) -> Coverage:
        """Return the coverage of one run."""
        probes = outcome.probes + Counter(_ends(outcome))
        broken = int(outcome.broken is not None)
        return cls(1, broken, outcome.simulated_s, +outcome.struck, +outcome.pairs, probes)

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(
            self.runs + other.runs,
            self.broken + other.broken,
            self.simulated_s + other.simulated_s,
            self.struck + other.struck,
            self.pairs + other.pairs,
            self.probes + other.probes,
        )


def covered(outcomes: Iterable[Outcome]) -> Coverage:
    """Return the coverage of many runs."""
    return sum(map(Coverage.of, outcomes), Coverage())


def _ends(outcome: Outcome) -> Iterable[str]:
    for heard in outcome.calls:
        if heard.was_left:
            yield "call left"
        elif heard.is_over:
            yield "call failed" if heard.error else "call completed"
        if heard.resumes:
            yield "call resumed"


# What is missing


def all_strikes() -> list[tuple[str, str, str]]:
    """Return every kind of fault with every role that it can strike, in every phase."""
    return [(kind, role, phase) for kind in KINDS for role in ROLES_OF[kind] for phase in PHASES]


def all_pairs() -> list[tuple[str, str, str]]:
    """Return every two kinds of faults, a kind with itself included, in every phase."""
    pairs = combinations_with_replacement(sorted(KINDS), 2)
    return [(earlier, later, phase) for earlier, later in pairs for phase in PHASES]


def missing_strikes(coverage: Coverage) -> list[tuple[str, str, str]]:
    return [strike for strike in all_strikes() if not coverage.struck[strike]]


def missing_pairs(coverage: Coverage) -> list[tuple[str, str, str]]:
    return [pair for pair in all_pairs() if not coverage.pairs[pair]]


def missing_probes(coverage: Coverage) -> list[str]:
    return [probe for probe in PROBES if not coverage.probes[probe]]


# What is printed


def summary(coverage: Coverage) -> str:
    """Return the coverage in one line."""
    parts = (
        f"{len(all_strikes()) - len(missing_strikes(coverage))} of {len(all_strikes())} fault × role × phase",
        f"{len(all_pairs()) - len(missing_pairs(coverage))} of {len(all_pairs())} pair × phase",
        f"{len(PROBES) - len(missing_probes(coverage))} of {len(PROBES)} probes",
    )
    return f"{coverage.runs} runs, {coverage.simulated_s / 3600:.2f} simulated hours: {', '.join(parts)}"


def print_coverage(console: Console, coverage: Coverage) -> None:
    """Print how often which faults struck, and what was never seen."""
    strikes = "faults that struck, by the phase of a request"
    _print(console, strikes, ("fault", "on"), all_strikes(), coverage.struck)
    pairs = "two faults of one run, by the phase in which the later one struck"
    _print(console, pairs, ("fault", "and"), all_pairs(), coverage.pairs)
    for what, missing in (
        ("faults", [" ".join(strike) for strike in missing_strikes(coverage)]),
        (
            "pairs of faults",
            ["{} and {} in {}".format(*pair) for pair in missing_pairs(coverage)],
        ),
        ("probes", missing_probes(coverage)),
    ):
        console.print(f"{what} never seen: {_listed(missing)}", soft_wrap=True, highlight=False)
    console.print(summary(coverage), soft_wrap=True, highlight=False)


def _listed(missing: Sequence[str]) -> str:
    more = f", and {len(missing) - MOST_LISTED} more" if len(missing) > MOST_LISTED else ""
    return (", ".join(missing[:MOST_LISTED]) or "none") + more


def _print(
    console: Console,
    title: str,
    head: tuple[str, str],
    wanted: Sequence[tuple[str, str, str]],
    counts: Counter[tuple[str, str, str]],
) -> None:
    """Print a row for each two names, with how often they were seen in each phase."""
    columns = (*PHASES, NONE)
    table = Table(*head, *(Column(phase, justify="right") for phase in columns))
    for names in dict.fromkeys(each[:2] for each in wanted):
        table.add_row(*names, *(_count(counts[*names, phase], phase) for phase in columns))
    console.print(title, style="italic", soft_wrap=True, highlight=False)
    console.print(table)


def _count(count: int, phase: str) -> str:
    return str(count) if count or phase == NONE else "[bold red]0[/]"
