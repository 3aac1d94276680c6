"""Measure the minute from a bare clone to the first streamed token, with its parts.

The repository's last commit is cloned into an empty folder. `make demo` runs there twice: it sets up an
environment first, and finds it the second time. What pip and uv have cached on this machine may be used, as
on the machine of someone who has installed torch before; `--no-cache` does without.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from baton.fleet.checkout import find_checkout
from benchmarks.report import report
from sim.reporting.section import Section, at_most, markdown
from sim.reporting.tables import cell

FIRST_S, AGAIN_S = 60.0, 15.0
"""The goals for the first streamed token, and for the end of a second demo."""
BAR = 40
"""Characters of the longest bar."""
_PIP = ".venv/bin/python -m pip --disable-pip-version-check"
_UV = ".venv/bin/uv pip install --python .venv/bin/python --no-deps"
_PARTS = {
    "venv": "Setting up .venv",
    "packages": f"{_UV} --require-hashes",
    "torch": f'{_PIP} install "$(sed',
    "Baton itself": f"{_UV} --no-build-isolation",
    "rest of the native layers": f"{_PIP} check",
    "processes start": "✓ redis",
    "first token": "Up in",
}
"""The line that begins a part; the clone is the part before the first."""
_DELIVERED = re.compile(r"^ \d+ +\d+→(\d+) ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-cache", action="store_true", help="download everything anew")


def run(args: argparse.Namespace) -> int:
    """Measure once for each seed."""
    return report(args, _sections(args))


def _sections(args: argparse.Namespace) -> Iterator[Section]:
    starts, again = [], []
    for _ in args.seeds:
        with tempfile.TemporaryDirectory(prefix="baton-start-") as name:
            clone, cache = Path(name) / "baton", Path(name) / "cache"
            starts.append(
                _start(clone, (f"PIP_CACHE_DIR={cache}", f"UV_CACHE_DIR={cache}") if args.no_cache else ())
            )
            since = time.monotonic()
            _demo(clone, (), {})
            again.append(time.monotonic() - since)
    parts = {part: tuple(start.get(part, 0.0) for start in starts) for part in ("clone", *_PARTS)}
    longest = max(max(seconds) for seconds in parts.values())
    rows = [
        (part, cell(seconds, spec=".1f"), "█" * round(BAR * max(seconds) / longest))
        for part, seconds in parts.items()
    ]
    yield Section(
        "From a bare clone to the first streamed token",
        "Seconds: `git clone`, then `make demo` until the first of its six answers has a token; then again.",
        (
            at_most("first streamed token, s", [sum(start.values()) for start in starts], FIRST_S, ".1f"),
            at_most("a second `make demo`, s", again, AGAIN_S, ".1f"),
        ),
        (markdown(("part", "s", ""), rows),),
    )


def _start(clone: Path, environment: Sequence[str]) -> dict[str, float]:
    """Return the seconds of each part."""
    since = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", "--no-local", str(find_checkout()), str(clone)], check=True)
    parts = {"clone": time.monotonic() - since}
    _demo(clone, environment, parts)
    return parts


def _demo(clone: Path, environment: Sequence[str], parts: dict[str, float]) -> None:
    """Run the demo; add the seconds of each of its parts. Raises `ValueError` if it fails."""
    part, since = "", time.monotonic()
    lines: list[str] = []
    command = ["env", *environment, "make", "--no-print-directory", "demo"]
    with subprocess.Popen(
        command,
        cwd=clone,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            next_part = next((name for name, begins in _PARTS.items() if line.startswith(begins)), None)
            if next_part is not None:
                now = time.monotonic()
                if part:
                    parts[part] = now - since
                part, since = next_part, now
    if process.returncode:
        raise ValueError(f"make demo ended with {process.returncode}: {''.join(lines[-20:])}")
    delivered_ms = [int(match[1]) for line in lines if (match := _DELIVERED.match(line))]
    parts[part] = min(delivered_ms) / 1000
