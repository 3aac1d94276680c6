"""The plots of a measurement, as SVG: legible in grey and to the colour-blind, for one to six arms."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.report import rate_label
from benchmarks.results import Results, Run, StepSample, figure, spread

# Okabe and Ito's colours without the yellow, which is too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")
DECODES, PREFILL = COLOURS[0], COLOURS[1]

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    # Text stays text: smaller, and it can be searched.
    "svg.fonttype": "none",
}
CDF_POINTS = 400
OVERVIEW_BINS = 120
ZOOM_STEPS = 60


@dataclass(frozen=True, slots=True)
class Look:
    """How one arm is drawn, in every plot alike."""

    colour: str
    dash: str | tuple[int, tuple[int, ...]]
    marker: str


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """More than six arms repeat colours with other dashes."""
    count = len(COLOURS)
    return {
        arm: Look(COLOURS[i % count], DASHES[(i + i // count) % count], MARKERS[(i + i // count) % count])
        for i, arm in enumerate(arms)
    }


def svg(draw: Callable[[Figure], None], width: float, height: float, name: str) -> str:
    """An `svg` element; `name` keeps its ids apart from those of others on the page."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        drawn = Figure(figsize=(width, height), layout="constrained")
        draw(drawn)
        out = io.StringIO()
        drawn.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def latency_cdfs(results: Results, rate: float) -> str:
    """Shares of the finished requests whose TTFT and TPOT stay below a time, all seeds together."""

    def draw(page: Figure) -> None:
        left, right = page.subplots(1, 2, sharey=True)
        _cdf(left, results, rate, lambda run: run.ttft_s, "time to first token (ms)")
        _cdf(right, results, rate, lambda run: run.tpot_s, "time per output token (ms)")
        left.set_ylabel("share of finished requests")
        left.set_ylim(0, 1.02)
        _legend(page, left)

    return svg(draw, 10, 3.9, f"cdf-{rate:g}")


def _cdf(
    axes: Axes, results: Results, rate: float, values_of: Callable[[Run], Sequence[float]], label: str
) -> None:
    axes.set_xscale("log")
    axes.set_xlabel(label)
    for arm, look in looks(results.arms).items():
        values = sorted(1000 * value for run in results.of(arm, rate) for value in values_of(run))
        if values:
            at = range(0, len(values), 1 + len(values) // CDF_POINTS)
            shares = [(place + 1) / len(values) for place in at]
            drawn = [values[place] for place in at]
            axes.step(
                drawn, shares, where="post", color=look.colour, linestyle=look.dash, label=arm, linewidth=1.6
            )
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def goodput_by_rate(results: Results) -> str:
    """Requests per second that met their promise against those offered: median, and range over seeds."""

    def draw(page: Figure) -> None:
        axes = page.subplots()
        rates = [rate for rate in results.rates if math.isfinite(rate)]
        axes.plot([0, max(rates)], [0, max(rates)], color="#999999", linewidth=1, label="all of them")
        # Arms measured at the same rate would hide each other's ranges.
        nudge = 0.008 * max(rates)
        for place, (arm, look) in enumerate(looks(results.arms).items()):
            shift = nudge * (place - (len(results.arms) - 1) / 2)
            _with_range(axes, results, arm, look, rates, shift)
        axes.set_xlabel("offered (requests/s)")
        axes.set_ylabel("good (requests/s)")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        _legend(page, axes)

    return svg(draw, 7, 4.2, "goodput")


def _with_range(
    axes: Axes, results: Results, arm: str, look: Look, rates: Sequence[float], shift: float
) -> None:
    found = [
        (rate, spread([value for run in runs if (value := figure(run.summary, "goodput_per_s")) is not None]))
        for rate in rates
        if (runs := results.of(arm, rate))
    ]
    points = [(rate, one) for rate, one in found if one is not None]
    axes.errorbar(
        [rate + shift for rate, _ in points],
        [one.median for _, one in points],
        yerr=[[one.median - one.low for _, one in points], [one.high - one.median for _, one in points]],
        color=look.colour,
        linestyle=look.dash,
        marker=look.marker,
        markersize=5,
        capsize=3,
        label=arm,
    )


def timeline(run: Run) -> str:
    """What each worker's steps were made of: the whole run averaged, then the busiest ones singly."""
    workers = sorted({step.worker for step in run.steps})

    def draw(page: Figure) -> None:
        grid = page.subplots(len(workers), 2, squeeze=False, width_ratios=(3, 2))
        begin = busiest(run.steps)
        for row, worker in zip(grid, workers, strict=True):
            steps = [step for step in run.steps if step.worker == worker]
            _overview(row[0], steps, worker)
            _zoom(row[1], [step for step in steps if step.at_s - step.step_s >= begin][:ZOOM_STEPS])
        for axes, label in zip(grid[-1], ("s since the run began, averaged", "s, step by step"), strict=True):
            axes.set_xlabel(label)
        _legend(page, grid[0][0])

    return svg(draw, 10, 0.9 + 1.7 * len(workers), f"timeline-{run.arm}-{run.rate_per_s:g}-{run.seed}")


def busiest(steps: Sequence[StepSample], span_s: float = 1.0) -> float:
    """When the second begins in which steps computed most prompt tokens; those are the steps that differ."""
    best, best_at, inside, first = -1, 0.0, 0, 0
    ordered = sorted(steps, key=lambda step: step.at_s)
    for step in ordered:
        inside += step.prefill_tokens
        while step.at_s - ordered[first].at_s > span_s:
            inside -= ordered[first].prefill_tokens
            first += 1
        if inside > best:
            best, best_at = inside, ordered[first].at_s - ordered[first].step_s
    return best_at


def _overview(axes: Axes, steps: Sequence[StepSample], worker: str) -> None:
    """Tokens per step, averaged over equal parts of the run."""
    width = max(step.at_s for step in steps) / OVERVIEW_BINS or 1.0
    bins = itertools.groupby(steps, key=lambda step: int(step.at_s / width))
    means = [(place, list(inside)) for place, inside in bins]
    at = [(place + 0.5) * width for place, _ in means]
    for colour, dash, label, counts in (
        (DECODES, "-", "decodes", [[step.num_decodes for step in inside] for _, inside in means]),
        (PREFILL, "--", "prompt tokens", [[step.prefill_tokens for step in inside] for _, inside in means]),
    ):
        mean = [sum(inside) / len(inside) for inside in counts]
        axes.plot(at, mean, color=colour, linestyle=dash, label=label, linewidth=1.4)
    axes.set_title(worker, loc="left", fontsize=10)
    axes.set_ylabel("tokens per step")
    axes.set_ylim(bottom=0)


def _zoom(axes: Axes, steps: Sequence[StepSample]) -> None:
    """Each step as wide as it lasted and as high as it had tokens."""
    starts = [step.at_s - step.step_s for step in steps]
    widths = [step.step_s for step in steps]
    decodes = [step.num_decodes for step in steps]
    axes.bar(starts, decodes, widths, align="edge", color=DECODES, edgecolor="white", linewidth=0.3)
    axes.bar(
        starts,
        [step.prefill_tokens for step in steps],
        widths,
        bottom=decodes,
        align="edge",
        color=PREFILL,
        hatch="///",
        edgecolor="white",
        linewidth=0.3,
    )
    axes.grid(visible=False, axis="x")


def _legend(page: Figure, axes: Axes) -> None:
    """Above the plots, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    page.legend(handles, labels, loc="outside upper center", ncols=min(4, max(1, len(labels))))


def title_of(rate: float) -> str:
    """A section's heading."""
    return f"At {rate_label(rate)}" if math.isfinite(rate) else "All at once"
