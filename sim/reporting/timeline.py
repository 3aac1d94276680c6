"""Plot what workers did over a run: how busy they were, and what their steps contained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.reporting.plots import COLOURS, legend, looks, svg
from sim.reporting.results import Run, StepSample

OVERVIEW_BINS = 120
UTILISATION_BINS = 60
ZOOM_S = 1.0
MOST_WORKERS = 6
"""In a larger fleet, only the first workers are drawn."""


def utilisation(run: Run) -> str:
    """Plot the share of the time in which each worker computed."""
    workers = sorted({step.worker for step in run.steps})

    def draw(page: Figure) -> None:
        axes = page.subplots()
        width = (run.ended_s - run.began_s) / UTILISATION_BINS
        for worker, look in looks(workers).items():
            busy = busy_shares([step for step in run.steps if step.worker == worker], width)
            places = [width * (place + 0.5) for place in range(len(busy))]
            axes.plot(places, busy, color=look.colour, linestyle=look.dash, linewidth=1.4, label=worker)
        axes.set_xlabel("s since the run began")
        axes.set_ylabel("share of the time computing")
        axes.set_ylim(0, 1.02)
        axes.set_xlim(0, run.ended_s - run.began_s)
        legend(page, axes)

    return svg(draw, 10, 2.8, f"busy-{run.arm}-{run.rate_per_s:g}-{run.seed}")


def busy_shares(steps: Sequence[StepSample], width: float) -> list[float]:
    """Return the busy share of equal parts of the run; a step counts in each part that it overlaps."""
    busy = [0.0] * UTILISATION_BINS
    for step in steps:
        begin, end = max(0.0, step.at_s - step.step_s), step.at_s
        for place in range(int(begin / width), min(int(end / width), UTILISATION_BINS - 1) + 1):
            busy[place] += max(0.0, min(end, (place + 1) * width) - max(begin, place * width))
    return [min(1.0, computed_s / width) for computed_s in busy]


def timeline(run: Run) -> str:
    """Plot what each worker's steps contained: averages over the whole run, then the busiest second step by
    step.

    Kinds of work that a worker never did are not drawn.
    """
    workers = sorted({step.worker for step in run.steps})[:MOST_WORKERS]
    rows = [
        (worker, part)
        for worker in workers
        for part in PARTS
        if any(getattr(step, part.field) for step in run.steps if step.worker == worker)
    ]
    begin = busiest([step for step in run.steps if step.worker in workers])

    def draw(page: Figure) -> None:
        grid = page.subplots(len(rows), 2, squeeze=False, sharex="col", width_ratios=(3, 2))
        for (overview, detail), (worker, part) in zip(grid, rows, strict=True):
            steps = [step for step in run.steps if step.worker == worker]
            _overview(overview, steps, part, run.ended_s - run.began_s)
            _zoom(detail, [step for step in steps if begin <= step.at_s <= begin + ZOOM_S], part)
            overview.set_title(f"{worker}: {part.label}", loc="left", fontsize=9)
        for axes, label in zip(
            grid[-1],
            ("s since the run began: mean per step", "s: each step as wide as it lasted"),
            strict=True,
        ):
            axes.set_xlabel(label)
        grid[-1][1].set_xlim(begin, begin + ZOOM_S)

    return svg(draw, 10, 0.6 + 1.15 * len(rows), f"timeline-{run.arm}-{run.rate_per_s:g}-{run.seed}")


@dataclass(frozen=True, slots=True)
class Part:
    """A kind of work in a step; the two kinds differ too much in number to share an axis."""

    label: str
    field: str
    colour: str
    hatch: str


PARTS = (
    Part("decodes", "num_decodes", COLOURS[0], ""),
    Part("prompt tokens", "prefill_tokens", COLOURS[1], "////"),
)


def busiest(steps: Sequence[StepSample]) -> float:
    """Return when the second begins in which steps computed most prompt tokens."""
    best, best_at, inside, first = -1, 0.0, 0, 0
    ordered = sorted(steps, key=lambda step: step.at_s)
    for step in ordered:
        inside += step.prefill_tokens
        while step.at_s - ordered[first].at_s > ZOOM_S:
            inside -= ordered[first].prefill_tokens
            first += 1
        if inside > best:
            best, best_at = inside, ordered[first].at_s - ordered[first].step_s
    return best_at


def _overview(axes: Axes, steps: Sequence[StepSample], part: Part, duration_s: float) -> None:
    """Plot tokens per step, averaged over equal parts of the run; nothing where no step ended."""
    width = duration_s / OVERVIEW_BINS
    inside: dict[int, list[int]] = {}
    for step in steps:
        inside.setdefault(int(step.at_s / width), []).append(getattr(step, part.field))
    means = [sum(tokens) / len(tokens) for tokens in inside.values()]
    axes.bar([place * width for place in inside], means, width, align="edge", color=part.colour)
    axes.set_xlim(0, duration_s)


def _zoom(axes: Axes, steps: Sequence[StepSample], part: Part) -> None:
    axes.bar(
        [step.at_s - step.step_s for step in steps],
        [getattr(step, part.field) for step in steps],
        [step.step_s for step in steps],
        align="edge",
        color=part.colour,
        hatch=part.hatch,
        edgecolor="white",
        linewidth=0.2,
    )
    if not steps:
        axes.set_ylim(0, 1)
