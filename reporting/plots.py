"""The plots of a measurement, as SVG: legible in grey and to the colour-blind, for one to six arms."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from reporting.results import Results, Run, StepSample, figure, spread
from reporting.tables import rate_label

# Okabe and Ito's colours without the yellow, which is too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")

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
ZOOM_S = 1.0


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
    """What each worker's steps were made of: the whole run averaged, then the busiest second step by step."""
    workers = sorted({step.worker for step in run.steps})
    begin = busiest(run.steps)

    def draw(page: Figure) -> None:
        rows = [(worker, part) for worker in workers for part in PARTS]
        grid = page.subplots(len(rows), 2, squeeze=False, sharex="col", width_ratios=(3, 2))
        for (left, right), (worker, part) in zip(grid, rows, strict=True):
            steps = [step for step in run.steps if step.worker == worker]
            _overview(left, steps, part, run.ended_s - run.began_s)
            _zoom(right, [step for step in steps if begin <= step.at_s <= begin + ZOOM_S], part)
            left.set_title(f"{worker}: {part.label}", loc="left", fontsize=9)
        for axes, label in zip(
            grid[-1],
            ("s since the run began: mean per step", "s: each step as wide as it lasted"),
            strict=True,
        ):
            axes.set_xlabel(label)
        grid[-1][1].set_xlim(begin, begin + ZOOM_S)

    return svg(draw, 10, 0.6 + 2.3 * len(workers), f"timeline-{run.arm}-{run.rate_per_s:g}-{run.seed}")


@dataclass(frozen=True, slots=True)
class Part:
    """What a step computes one kind of; the two kinds differ too much in number to share an axis."""

    label: str
    field: str
    colour: str
    hatch: str


PARTS = (
    Part("decodes", "num_decodes", COLOURS[0], ""),
    Part("prompt tokens", "prefill_tokens", COLOURS[1], "////"),
)


def busiest(steps: Sequence[StepSample], span_s: float = ZOOM_S) -> float:
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


def _overview(axes: Axes, steps: Sequence[StepSample], part: Part, duration_s: float) -> None:
    """Tokens per step, averaged over equal parts of the run; nothing where no step ended."""
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


def _legend(page: Figure, axes: Axes) -> None:
    """Above the plots, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    page.legend(handles, labels, loc="outside upper center", ncols=min(4, max(1, len(labels))))


def title_of(rate: float) -> str:
    """A section's heading."""
    return f"At {rate_label(rate)}" if math.isfinite(rate) else "All at once"
