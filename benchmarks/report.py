"""The readable side of a measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from rich.table import Table

from benchmarks.metrics import Quantiles, Summary


def machine() -> dict[str, str]:
    """What a figure must be read with."""
    return {
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
    }


def _commit() -> str:
    root = Path(__file__).parent.parent
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or "unknown"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def summary_table(title: str, columns: dict[str, Summary]) -> Table:
    """Every metric as a row, every run as a column."""
    table = Table(title=title)
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    summaries = list(columns.values())
    for label, cells in _rows(summaries):
        table.add_row(label, *cells)
    return table


def _rows(summaries: list[Summary]) -> list[tuple[str, list[str]]]:
    return [
        (
            "requests: completed / refused / failed",
            [f"{one.completed} / {one.refused} / {one.failed}" for one in summaries],
        ),
        ("offered, completed (1/s)", [f"{s.offered_per_s:.2f}, {s.completed_per_s:.2f}" for s in summaries]),
        ("goodput (1/s)", [f"{one.goodput_per_s:.2f}" for one in summaries]),
        ("accepted that kept TTFT", [_share(one.accepted_that_kept_ttft) for one in summaries]),
        ("output tokens/s", [f"{one.output_tokens_per_s:.0f}" for one in summaries]),
        ("prompt + output tokens/s", [f"{one.total_tokens_per_s:.0f}" for one in summaries]),
        ("TTFT p50 / p90 / p99 (ms)", [_ms(one.ttft) for one in summaries]),
        ("TPOT p50 / p90 / p99 (ms)", [_ms(one.tpot) for one in summaries]),
        ("ITL p50 / p90 / p99 (ms)", [_ms(one.itl) for one in summaries]),
        ("end to end p50 / p90 / p99 (ms)", [_ms(one.e2e) for one in summaries]),
        ("refusal p50 / p90 / p99 (ms)", [_ms(one.refusal) for one in summaries]),
        ("KV utilisation", [_share(one.kv_utilisation) for one in summaries]),
        ("router CPU per token (us)", [_number(one.router_cpu_us_per_token) for one in summaries]),
    ]


def _ms(found: Quantiles | None) -> str:
    if found is None:
        return "-"
    return " / ".join(f"{value * 1000:.1f}" for value in (found.p50, found.p90, found.p99))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
