"""Values of flags: numbers within limits, lists of them, placements, and files with plots."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from scheduling.placement import Placement


def number(low: float, *, above: bool = False) -> Callable[[str], float]:
    """Return a parser of a finite number from `low`, or above it."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < low or (above and value == low):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not accepted: a number {'above' if above else 'from'} {low:g}"
            )
        return value

    return parse


POSITIVE = number(0, above=True)


def numbers(low: float) -> Callable[[str], list[float]]:
    """Return a parser of numbers above `low`, separated by commas."""
    read = number(low, above=True)
    return lambda text: [read(part) for part in text.split(",")]


def whole(low: int) -> Callable[[str], int]:
    """Return a parser of a whole number from `low`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not accepted: a whole number from {low}")
        return int(text)

    return parse


def placement(text: str) -> Placement:
    """Parse a placement's name."""
    try:
        return Placement(text)
    except ValueError as error:
        wanted = ", ".join(value.value for value in Placement)
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: {wanted}") from error


def plotted(text: str) -> Path:
    """Return the path of a file with plots, which take a package that a fleet does not need."""
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError(
            "plots are drawn by matplotlib, which is not installed; `make setup` installs it"
        )
    return Path(text)
