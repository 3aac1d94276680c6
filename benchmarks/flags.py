"""Flags that every measurement has, and values of flags that are lists."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.commands import values
from sim.commands.recorded import add_source_flags

number = values.number(0, above=True)
numbers = values.numbers(0)
count = values.whole(1)

THREE_SEEDS = (1, 2, 3)
FIVE_SEEDS = (1, 2, 3, 4, 5)
DEMO_MODEL = Path(__file__).parent.parent / "demo_model"


def add_shared_flags(parser: argparse.ArgumentParser, seeds: Sequence[int]) -> None:
    """Add the flags that every measurement has; arms get the same seeds, to compare them seed by seed."""
    shared = parser.add_argument_group("for every measurement")
    shared.add_argument(
        "--seeds", type=whole_numbers, nargs="+", action=_Flat, default=list(seeds), metavar="N,N",
        help=f"seeds, one run for each ({','.join(map(str, seeds))})",
    )  # fmt: skip
    shared.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")


def add_model_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the model that is loaded or served."""
    parser.add_argument(
        "--model", type=Path, default=DEMO_MODEL, metavar="PATH", help="the checkpoint's folder (demo_model)"
    )


def add_traffic_flags(
    parser: argparse.ArgumentParser, duration_s: float, *, has_traces: bool = False
) -> None:
    """Add the flags for what is sent to a fleet, and for one that computes nothing."""
    add = parser.add_argument
    add("--timed", metavar="PROFILE", help="compute nothing; steps last as long as this profile says")
    add_source_flags(parser, has_traces=has_traces)
    add("--scale", type=number, default=0.2, metavar="X", help="multiplies all lengths (0.2)")
    processes = "poisson, gamma:CV, onoff or burst (poisson)"
    add("--arrivals", default="poisson", metavar="PROCESS", help=processes)
    duration = f"how long requests arrive ({duration_s:g})"
    add("--duration-s", type=number, default=duration_s, metavar="S", help=duration)


def names(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; accepted: NAME,NAME")
    return parts


def whole_numbers(text: str) -> list[int]:
    """Parse whole numbers from 0, each once."""
    numbers = [int(part) if part.strip().isdecimal() else -1 for part in text.split(",")]
    if min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: whole numbers, each once, as in 1,2,3")
    return numbers


class _Flat(argparse.Action):
    """Joins lists with commas, with spaces, or both."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        members = [member for part in values for member in part]
        if len(set(members)) < len(members):
            parser.error(f"argument {option_string}: {members} is not accepted: each once")
        setattr(namespace, self.dest, members)
