"""A page with the plots and tables of a measurement; it needs no other files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from sim.reporting import plots, timeline
from sim.reporting.results import Results, Run, capacity
from sim.reporting.tables import ratio_rows, table_rows

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2em auto; padding: 0 1em; color: #111;
       background: #fff }
h1 { font-size: 1.6em; overflow-wrap: anywhere }
h2 { font-size: 1.25em; margin-top: 2.2em; border-bottom: 1px solid #ccc }
.wide { overflow-x: auto; margin: 1em 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2em .6em; text-align: right; border-bottom: 1px solid #e5e5e5 }
th { background: #f6f6f6; vertical-align: bottom }
.figures { font-size: .93em } .figures small { white-space: nowrap; color: #444 }
.figures th:first-child, .figures td:first-child { text-align: left; position: sticky; left: 0 }
.figures td:first-child { background: #fff; min-width: 9em }
.facts th, .facts td { text-align: left; vertical-align: top } .facts th { white-space: nowrap }
.facts td { overflow-wrap: anywhere }
svg { max-width: 100%; min-width: 600px; height: auto }
p.note { color: #444; max-width: 46em } code { font-size: .95em }
"""


def write_page(results: Results, path: Path) -> None:
    """Write the page; raise `ValueError` for results without a run."""
    path.write_text(page(results), encoding="utf-8")


def page(results: Results) -> str:
    """Return the page's HTML."""
    if not results.runs:
        raise ValueError("runs is empty; accepted: at least one run")
    body = "\n".join(_body(results))
    title = escape(results.title)
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def _body(results: Results) -> Iterator[str]:
    yield _facts(results.facts)
    yield _note(_reading(results))
    promised = any(run.summary.good_share is not None for run in results.runs)
    rates = [rate for rate in results.rates if math.isfinite(rate) and promised]
    if len(rates) == 1:
        yield "<h2>Goodput</h2>"
        yield _wide(plots.goodput_at(results, rates[0]))
    elif rates:
        yield "<h2>Goodput against rate</h2>"
        yield _wide(plots.goodput_by_rate(results))
        yield _table(("", *results.arms), [_capacities(results)])
    for rate in results.rates:
        yield from _at_rate(results, rate)
    yield from _timelines(results)


def _reading(results: Results) -> str:
    good = "Good is a request that met every promise it asked for."
    if len({run.seed for run in results.runs}) == 1:
        return good
    return (
        "Figures are the median over seeds, with the lowest and the highest in brackets; the same seed means "
        f"the same requests at the same times for every arm. {good}"
    )


def _at_rate(results: Results, rate: float) -> Iterator[str]:
    yield f"<h2>{escape(plots.title_of(rate))}</h2>"
    if any(run.ttft_s for run in results.runs if run.rate_per_s == rate):
        yield _wide(plots.latency_cdfs(results, rate))
    yield _table(("", *results.arms), table_rows(results, rate))
    if len(results.arms) > 1:
        yield _note(f"Ratios to {escape(results.arms[0])}, seed by seed:")
        yield _table(("", *results.arms[1:]), ratio_rows(results, rate))


def _timelines(results: Results) -> Iterator[str]:
    """Yield the steps of each arm's first seed, at the highest rate that has any."""
    runs = [run for arm in results.arms if (run := _with_steps(results, arm)) is not None]
    if not runs:
        return
    yield "<h2>Steps and what they were made of</h2>"
    yield _note(
        "First how busy each worker was. Then, on the left, what its steps held over the whole run, and on "
        "the right the second in which most prompt tokens were computed, step by step; a decode is a token. "
        f"Of a fleet of more than {timeline.MOST_WORKERS} workers the first are shown."
    )
    for run in runs:
        yield f"<h3>{escape(run.arm)}, {escape(plots.title_of(run.rate_per_s).lower())}, seed {run.seed}</h3>"
        yield _wide(timeline.utilisation(run))
        yield _wide(timeline.timeline(run))


def _with_steps(results: Results, arm: str) -> Run | None:
    runs = [run for rate in reversed(results.rates) for run in results.of(arm, rate) if run.steps]
    return runs[0] if runs else None


def _capacities(results: Results) -> tuple[str, list[str]]:
    rates = [capacity(results, arm) for arm in results.arms]
    label = "capacity: highest rate tried with 90 % good (1/s)"
    return label, ["none" if rate is None else f"{rate:g}" for rate in rates]


def _facts(facts: dict[str, str]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(fact)}</td></tr>" for name, fact in facts.items())
    return _wide(f'<table class="facts">{rows}</table>')


def _note(text: str) -> str:
    return f'<p class="note">{text}</p>'


def _table(head: Sequence[str], rows: Iterable[tuple[str, list[str]]]) -> str:
    cells = "".join(f"<th>{escape(name).replace('/', '/<wbr>')}</th>" for name in head)
    body = "".join(
        f"<tr><td>{escape(label)}</td>{''.join(f'<td>{_cell(text)}</td>' for text in row)}</tr>"
        for label, row in rows
    )
    return _wide(f'<table class="figures"><tr>{cells}</tr>{body}</table>')


def _cell(text: str) -> str:
    """Return a median, with its range on its own line if the column is narrow."""
    median, bracket, rest = escape(text).partition("(")
    return f"{median}<small>{bracket}{rest}</small>" if bracket else median


def _wide(element: str) -> str:
    """Let a narrow window scroll the element, and not the page."""
    return f'<div class="wide">{element}</div>'
