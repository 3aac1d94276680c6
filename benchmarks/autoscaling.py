"""Simulate a day of a fleet that grows and shrinks: by predicted promises, or by metrics as usual.

Each day is played under the router's own decision, and under HorizontalPodAutoscalers on utilisation and on
queue length with several targets. Of the targets of one arm, the cheapest counts that keeps at least as many
promises on the same day: a choice in hindsight that nobody has who runs a fleet. Two arms know the true rates
of the day, one of them in advance; the cheapest of each that keep as many promises show what is left to gain.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from benchmarks.report import report
from reporting.progress import tracked
from reporting.section import Section, at_most, markdown, ratios
from reporting.tables import cell
from scheduling.policies.slack import ARRIVAL_S
from scheduling.scaling.need import Goal
from scheduling.scaling.steady import WorkerModel
from services.profiles import load_profile
from sim.scaling.arms import Arm, Queue, Slack, Utilisation
from sim.scaling.day import HOUR_S, Asked, DaySpec, Promise, requests
from sim.scaling.fleet import STARTUP_S
from sim.scaling.known import known
from sim.scaling.play import DayResult, Limits, play

PROFILE = "h200-llama-3.1-8b"
SLOWER = 20
"""All costs, and all promises, are so many times those of the profile: fewer requests keep a fleet busy."""
CHAT, LOOSE, LOOSEST = Promise(0.4, 0.025), Promise(2.0, 0.05), Promise(5.0, 0.1)
DAYS = {
    "chat by day, some documents in office hours": DaySpec(CHAT, LOOSE, 0.5, 3.0, 0.25),
    "chat by day, many documents at night": DaySpec(CHAT, LOOSEST, 0.3, 2.5, 0.6, (20 * HOUR_S, 30 * HOUR_S)),
}
Target = tuple[float, float]
TARGETS: dict[str, tuple[Target, ...]] = {
    "utilisation": ((0.75, 0.25), (0.8, 0.25), (0.8, 0.3), (0.85, 0.25), (0.85, 0.3), (0.9, 0.3)),
    "queue": ((1.2, 80.0), (1.5, 70.0), (1.5, 80.0), (1.5, 90.0), (2.0, 80.0)),
}
"""For prefill and for decode. Utilisation is a share of time and a share of memory, the queue a number of
requests at each worker."""
KNOWING: dict[str, tuple[float, tuple[Target, ...]]] = {
    "knows the present": (0.0, ((0.7, 0.8), (0.75, 0.85), (0.8, 0.9), (0.9, 0.9))),
    "knows the future": (STARTUP_S[1], ((0.9, 0.9), (0.95, 0.95), (1.0, 0.95), (1.0, 1.0))),
}
"""The seconds that are known in advance, and shares of time and of seats that are filled."""
MOST_SHARE = 0.85


def worker() -> WorkerModel:
    """Return the worker of all days."""
    profile = load_profile(PROFILE)
    return WorkerModel(
        profile.cost.scaled(SLOWER),
        profile.token_budget,
        profile.num_blocks,
        profile.block_size,
        profile.max_num_seqs,
        SLOWER * ARRIVAL_S,
    )


def arms(model: WorkerModel, spec: DaySpec, day: Sequence[Asked], seed: int) -> Iterator[tuple[str, Arm]]:
    """Yield all arms, those of one kind under the same name."""
    yield "slack", Slack(model, Goal())
    for prefill, decode in TARGETS["utilisation"]:
        yield "utilisation", Utilisation(prefill, decode, model)
    for prefill, decode in TARGETS["queue"]:
        yield "queue", Queue(prefill, decode)
    for name, (ahead_s, shares) in KNOWING.items():
        for share in shares:
            yield name, known(spec, day, seed, model, share, ahead_s)


def slowed(spec: DaySpec) -> DaySpec:
    """Return a day whose promises are as much longer as the worker is slower."""
    chat, long = (
        Promise(SLOWER * promise.ttft_s, SLOWER * promise.tpot_s) for promise in (spec.chat, spec.documents)
    )
    return replace(spec, chat=chat, documents=long)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--days", type=int, nargs="+", choices=range(1, len(DAYS) + 1), default=[1, 2], metavar="N",
        help="which kinds of day (1 2)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Play every kind of day with all seeds under all arms."""
    model, names = worker(), [list(DAYS)[number - 1] for number in args.days]
    found: dict[str, dict[int, dict[str, list[DayResult]]]] = {name: {} for name in names}
    cases = [(name, seed) for name in names for seed in args.seeds]
    for name, seed in tracked(cases, "days"):
        spec = slowed(DAYS[name])
        day = list(requests(spec, seed))
        results = found[name][seed] = {}
        for kind, arm in arms(model, spec, day, seed):
            results.setdefault(kind, []).append(play(day, model, arm, seed, Limits()))
    return report(args, [_section(name, seeds) for name, seeds in found.items()])


def cheapest(results: Sequence[DayResult], kept_share: float) -> DayResult | None:
    """Return the result with the fewest worker-hours that keeps this share; None if none does."""
    enough = [result for result in results if result.kept_share >= kept_share]
    return min(enough, key=lambda result: result.worker_hours, default=None)


def _section(name: str, seeds: dict[int, dict[str, list[DayResult]]]) -> Section:
    ours = [results["slack"][0] for results in seeds.values()]
    rows = [_row("slack", ours, None)]
    targets = TARGETS | {kind: shares for kind, (_, shares) in KNOWING.items()}
    for kind, tried in targets.items():
        for place, target in enumerate(tried):
            rows.append(_row(kind, [results[kind][place] for results in seeds.values()], target))
    least = {kind: _least(kind, seeds.values()) for kind in targets}
    best = [min(hours) for hours in zip(*(least[kind] for kind in TARGETS), strict=True)]
    hours = [result.worker_hours for result in ours]
    claim = at_most("worker-hours, by the better HPA's that keeps as much", ratios(hours, best), MOST_SHARE)
    bounds = [(kind, cell(ratios(least[kind], best), spec=".2f")) for kind in KNOWING]
    header = ("arm", "target, prefill and decode", "kept, %", "refused, %", "worker-hours", "flaps a day")
    method = (
        f"A day of {round(sum(result.requests for result in ours) / len(ours))} requests; seeds "
        f"{', '.join(map(str, seeds))}. Workers as {PROFILE}, {SLOWER} times slower, with promises "
        f"{SLOWER} times as long; they start in 90 to 150 s. `slack` aims at {Goal().goodput:.0%}. An HPA "
        "syncs each 15 s with a tolerance of 0.1; it scales down to the most of 300 s, of 120 s for `slack`."
    )
    tables = (
        markdown(("as cheap as can be", "worker-hours, by the better HPA's"), bounds),
        markdown(header, rows),
    )
    return Section(f"autoscaling: {name}", method, (claim,), tables)


def _least(kind: str, played: Iterable[dict[str, list[DayResult]]]) -> list[float]:
    """Return the fewest worker-hours of this kind of arm that keep as much as `slack`, by seed.

    It is infinity where no target keeps as much.
    """
    found = (cheapest(results[kind], results["slack"][0].kept_share) for results in played)
    return [math.inf if result is None else result.worker_hours for result in found]


def _row(kind: str, results: list[DayResult], target: tuple[float, float] | None) -> tuple[str, ...]:
    return (
        kind,
        "–" if target is None else f"{target[0]:g}, {target[1]:g}",
        cell([result.kept_share for result in results], 100, ".2f"),
        cell([result.refused_share for result in results], 100, ".2f"),
        cell([result.worker_hours for result in results], spec=".0f"),
        cell([float(result.flaps) for result in results], spec=".0f"),
    )
