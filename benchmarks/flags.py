"""Flags that every measurement has, and values of flags that are lists."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FIVE_SEEDS = (1, 2, 3, 4, 5)
DEMO_MODEL = Path(__file__).parent.parent / "demo_model"


def add_shared_flags(parser: argparse.ArgumentParser, seeds: Sequence[int] = FIVE_SEEDS) -> None:
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


def names(text: str) -> list[str]:
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; accepted: NAME,NAME")
    return found


def numbers(text: str) -> list[float]:
    """Parse numbers, each finite and above 0."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(math.isfinite(value) and value > 0 for value in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: finite numbers above 0, as in 0.5,2")
    return found


def number(text: str) -> float:
    """Parse one such number."""
    (found,) = numbers(text) if "," not in text else (math.nan,)
    if math.isnan(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: one finite number above 0")
    return found


def count(text: str) -> int:
    """Parse a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: a whole number from 1")
    return int(text)


def whole_numbers(text: str) -> list[int]:
    """Parse whole numbers from 0, each once."""
    found = [int(part) if part.strip().isdecimal() else -1 for part in text.split(",")]
    if min(found) < 0 or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: whole numbers, each once, as in 1,2,3")
    return found


class _Flat(argparse.Action):
    """Joins lists with commas, with spaces, or both."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        found = [member for part in values for member in part]
        if len(set(found)) < len(found):
            parser.error(f"argument {option_string}: {found} is not accepted: each once")
        setattr(namespace, self.dest, found)
