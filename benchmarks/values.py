"""Values of flags that are lists, separated by commas."""

from __future__ import annotations

import argparse
import math


def names(text: str) -> list[str]:
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; accepted: NAME,NAME")
    return found


def numbers(text: str) -> list[float]:
    """Finite and above 0."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(math.isfinite(one) and one > 0 for one in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: finite numbers above 0, as in 0.5,2")
    return found


def whole_numbers(text: str) -> list[int]:
    """From 0, each once."""
    found = [int(part) if part.strip().isdecimal() else -1 for part in text.split(",")]
    if min(found) < 0 or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: whole numbers, each once, as in 1,2,3")
    return found
