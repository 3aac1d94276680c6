"""The plots of a measurement as SVG: legible in grey and with colour blindness, for one to six arms."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from sim.reporting.results import Results, Run, Spread, figures, spread
from sim.reporting.tables import rate_label

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
    # Text stays text, which is smaller and can be searched.
    "svg.fonttype": "none",
}
# A plot's white, black and greys, and what they become on a dark page.
DARK = {
    "#ffffff": "#0d1117",
    "#000000": "#e6edf3",
    "#dddddd": "#30363d",
    "#999999": "#8b949e",
    "#0072b2": "#58a6ff",
}
CDF_POINTS = 400
PANELS_IN_A_ROW = 3
CHARS_PER_INCH = 12.0
HANDLE_CHARS = 8
"""The width of a legend's line and the gaps around it."""


@dataclass(frozen=True, slots=True)
class Look:
    """How an arm is drawn, in every plot alike."""

    colour: str
    dash: str | tuple[int, tuple[int, ...]]
    marker: str


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """Return the look of each arm; more than six arms repeat colours with other dashes."""
    count = len(COLOURS)
    return {
        arm: Look(COLOURS[i % count], DASHES[(i + i // count) % count], MARKERS[(i + i // count) % count])
        for i, arm in enumerate(arms)
    }


def svg(draw: Callable[[Figure], None], width: float, height: float, name: str) -> str:
    """Return an `svg` element; `name` keeps its ids apart from those of others on the page."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def for_light_and_dark(drawing: str) -> str:
    """Return an `svg` element as a file that is legible by itself, whichever scheme its reader prefers."""
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media(prefers-color-scheme:dark){{{rules}text{{fill:{DARK['#000000']}}}}}</style>"
    root, end, rest = drawing.partition(">")
    return f"{root}{end}{style}{rest}\n"


def latency_cdfs(results: Results, rate: float) -> str:
    """Plot the shares of finished requests whose TTFT and TPOT stay below a time, all seeds together."""

    def draw(page: Figure) -> None:
        ttft_axes, tpot_axes = page.subplots(1, 2, sharey=True)
        _cdf(ttft_axes, results, rate, lambda run: run.ttft_s, "time to first token (ms)")
        _cdf(tpot_axes, results, rate, lambda run: run.tpot_s, "time per output token (ms)")
        ttft_axes.set_ylabel("share of finished requests")
        ttft_axes.set_ylim(0, 1.02)
        legend(page, ttft_axes)

    return svg(draw, 10, 3.9, f"cdf-{rate:g}")


def _cdf(
    axes: Axes, results: Results, rate: float, values_of: Callable[[Run], Sequence[float]], label: str
) -> None:
    axes.set_xscale("log")
    axes.set_xlabel(label)
    for arm, look in looks(results.arms).items():
        values = sorted(1000 * value for run in results.of(arm, rate) for value in values_of(run))
        points = values[:: 1 + len(values) // CDF_POINTS]
        if points:
            axes.ecdf(points, color=look.colour, linestyle=look.dash, label=arm, linewidth=1.6)
    axes.xaxis.set_major_locator(LogLocator(subs=tick_places(*axes.get_xlim())))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def goodput_by_rate(results: Results) -> str:
    """Plot good against offered requests per second: median, and range over seeds."""

    def draw(page: Figure) -> None:
        axes = page.subplots()
        rates = [rate for rate in results.rates if math.isfinite(rate)]
        axes.plot([0, max(rates)], [0, max(rates)], color="#999999", linewidth=1, label="all of them")
        # Arms measured at the same rate would hide each other's ranges.
        nudge = 0.008 * max(rates)
        for place, (arm, look) in enumerate(looks(results.arms).items()):
            shift = nudge * (place - (len(results.arms) - 1) / 2)
            points = _goodput(results, arm, rates)
            axes.errorbar(
                [rate + shift for rate, _ in points],
                [goodput.median for _, goodput in points],
                yerr=_away([goodput for _, goodput in points]),
                color=look.colour,
                linestyle=look.dash,
                marker=look.marker,
                markersize=5,
                capsize=3,
                label=arm,
            )
        axes.set_xlabel("offered (requests/s)")
        axes.set_ylabel("good (requests/s)")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        legend(page, axes)

    return svg(draw, 9, 4.4, "goodput")


def goodput_at(results: Results, rate: float) -> str:
    """Plot good requests per second, a bar for each arm: median, and range over seeds."""

    def draw(page: Figure) -> None:
        axes = page.subplots()
        offered = [run.summary.offered_per_s for run in results.runs if run.rate_per_s == rate]
        axes.axvline(statistics.median(offered), color="#999999", linewidth=1, label="offered")
        for arm, look in looks(results.arms).items():
            for _, goodput in _goodput(results, arm, [rate]):
                axes.barh(
                    arm, goodput.median, xerr=_away([goodput]), color=look.colour, height=0.6, capsize=3
                )
        axes.invert_yaxis()
        axes.set_xlabel("good (requests/s)")
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
        legend(page, axes)

    return svg(draw, 9, 1.2 + 0.3 * len(results.arms), "goodput")


def panels(
    by_panel: Mapping[str, Mapping[str, Mapping[float, float]]], x_label: str, y_label: str, name: str
) -> str:
    """Plot a line for each arm in a panel for each title: values by place."""
    num_rows = -(-len(by_panel) // PANELS_IN_A_ROW)

    def draw(page: Figure) -> None:
        grid = page.subplots(num_rows, min(PANELS_IN_A_ROW, len(by_panel)), squeeze=False)
        every = list(grid.flat)
        look_of = looks(list(dict.fromkeys(arm for by_arm in by_panel.values() for arm in by_arm)))
        for axes, (title, by_arm) in zip(every, by_panel.items(), strict=False):
            axes.set_title(title, fontsize=10)
            for arm, values in by_arm.items():
                look, places = look_of[arm], sorted(values)
                axes.plot(
                    places,
                    [values[place] for place in places],
                    color=look.colour,
                    linestyle=look.dash,
                    marker=look.marker,
                    markersize=4,
                    label=arm,
                )
            axes.set_ylim(bottom=0)
        for axes in every[len(by_panel) :]:
            axes.set_visible(False)
        for row in grid:
            row[0].set_ylabel(y_label)
        for axes in every:
            axes.set_xlabel(x_label)
        legend(page, every[0])

    return svg(draw, 11, 3.4 * num_rows, name)


def _goodput(results: Results, arm: str, rates: Sequence[float]) -> list[tuple[float, Spread]]:
    """Return the arm's good requests per second at each rate at which it was measured."""
    spreads = [(rate, spread(figures(results.of(arm, rate), "goodput_per_s"))) for rate in rates]
    return [(rate, goodput) for rate, goodput in spreads if goodput is not None]


def _away(points: Sequence[Spread]) -> list[list[float]]:
    """Return how far the ranges reach below and above the medians."""
    return [[point.median - point.low for point in points], [point.high - point.median for point in points]]


def legend(page: Figure, axes: Axes) -> None:
    """Draw the legend above the plots, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    widest = max(map(len, labels), default=0) + HANDLE_CHARS
    columns = int(page.get_figwidth() * CHARS_PER_INCH / widest)
    page.legend(handles, labels, loc="outside upper center", ncols=max(1, min(5, len(labels), columns)))


def tick_places(low: float, high: float) -> tuple[int, ...]:
    """Return the multiples of powers of ten to label on an axis: as many as have room."""
    decades = math.log10(high / low) if 0 < low < high else 0.0
    return (1, 2, 5) if decades < 2 else (1, 3) if decades < 3 else (1,)


def title_of(rate: float) -> str:
    """Return a section's heading."""
    return f"At {rate_label(rate)}" if math.isfinite(rate) else "All at once"
