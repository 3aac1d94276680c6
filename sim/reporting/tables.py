"""Tables of a measurement, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Column, Table

from sim.reporting.quantiles import quantile
from sim.reporting.results import Results, figures, paired_ratios, spread

ROWS: tuple[tuple[str, str, float, str], ...] = (
    ("good (1/s)", "goodput_per_s", 1, ".2f"),
    ("good, of those sent (%)", "good_share", 100, ".1f"),
    ("accepted that kept TTFT (%)", "accepted_that_kept_ttft", 100, ".1f"),
    ("offered (1/s)", "offered_per_s", 1, ".2f"),
    ("completed (1/s)", "completed_per_s", 1, ".2f"),
    ("refused", "refused", 1, ".0f"),
    ("failed", "failed", 1, ".0f"),
    ("output tokens/s", "output_tokens_per_s", 1, ".0f"),
    ("prompt + output tokens/s", "total_tokens_per_s", 1, ".0f"),
    *(
        (f"{name.upper()} {part} (ms)", f"{name}.{part}", 1000, ".1f")
        for name in ("ttft", "tpot", "itl")
        for part in ("p50", "p90", "p99")
    ),
    ("end to end p50 (ms)", "e2e.p50", 1000, ".1f"),
    ("refusal p50 (ms)", "refusal.p50", 1000, ".1f"),
    ("allocated KV in use (%)", "kv_utilisation", 100, ".1f"),
    ("KV pool allocated (%)", "kv_allocated", 100, ".1f"),
    ("workers busy (%)", "busy_share", 100, ".1f"),
    ("router CPU per token (µs)", "router_cpu_us_per_token", 1, ".1f"),
)
"""Label, figure, factor, format."""

RATIOS = ("goodput_per_s", "output_tokens_per_s", "ttft.p50", "ttft.p99", "tpot.p50", "itl.p99")
"""Figures that are compared with the first arm's, seed by seed."""

LABELS = {metric: label.partition(" (")[0] for label, metric, _, _ in ROWS}


def cell(values: Sequence[float], factor: float = 1, spec: str = ".2f") -> str:
    """Return the median over the seeds, and the range if there is one."""
    figure = spread([value * factor for value in values])
    if figure is None:
        return "-"
    middle, low, high = (format(value, spec) for value in (figure.median, figure.low, figure.high))
    return middle if low == high else f"{middle} ({low} – {high})"


def cells(figures: Iterable[Sequence[float]], specs: str | Sequence[str] = ".2f") -> list[str]:
    """Return a cell for each figure, of which every seed has one; `specs` is one for all, or one for each."""
    columns = list(zip(*figures, strict=True))
    each = [specs] * len(columns) if isinstance(specs, str) else specs
    return [cell(column, spec=spec) for column, spec in zip(columns, each, strict=True)]


def p50_p99(values: Sequence[float], factor: float = 1000) -> str:
    """Return the median and the 99 % quantile, by default of seconds in ms; a dash without values."""
    return " / ".join(f"{quantile(values, share) * factor:.0f}" for share in (0.5, 0.99)) if values else "–"


def table_rows(results: Results, rate: float) -> Iterator[tuple[str, list[str]]]:
    """Yield every figure that any arm has at this rate, with a cell per arm."""
    for label, metric, factor, spec in ROWS:
        columns = [figures(results.of(arm, rate), metric) for arm in results.arms]
        if any(columns):
            yield label, [cell(values, factor, spec) for values in columns]


def ratio_rows(results: Results, rate: float) -> Iterator[tuple[str, list[str]]]:
    """Yield paired ratios to the first arm, with a cell for each of the others."""
    baseline, *others = results.arms
    for metric in RATIOS if others else ():
        yield LABELS[metric], [cell(paired_ratios(results, metric, arm, baseline, rate)) for arm in others]


def rate_label(rate: float) -> str:
    """Return a rate in words; arrivals that all come at once have none."""
    return f"{rate:g} requests/s" if math.isfinite(rate) else "all at once"


def print_results(console: Console, results: Results) -> None:
    """Print tables with the median over seeds and the range in brackets, and the facts to read them with."""
    for rate in results.rates:
        _print(console, f"{results.title} at {rate_label(rate)}", results.arms, table_rows(results, rate))
        if len(results.arms) > 1:
            title = f"ratio to {results.arms[0]}, seed by seed"
            _print(console, title, results.arms[1:], ratio_rows(results, rate))
    for name, fact in results.facts.items():
        console.print(f"{name}: {fact}", soft_wrap=True, markup=False, highlight=False)


def _print(
    console: Console, title: str, columns: Sequence[str], rows: Iterable[tuple[str, list[str]]]
) -> None:
    """Print a title and its table. A title of the table itself would wrap at the table's width."""
    table = Table("", *(Column(name, justify="right") for name in columns))
    for label, cells in rows:
        table.add_row(label, *cells)
    console.print(title, style="italic", soft_wrap=True, markup=False, highlight=False)
    console.print(table)
