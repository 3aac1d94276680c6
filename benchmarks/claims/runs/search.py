"""Find the highest rate at which a condition holds."""

from __future__ import annotations

from collections.abc import Callable

FIRST_STEP = 2.0
MOST_DOUBLINGS = 12


def highest(holds: Callable[[float], bool], guess: float, *, precision: float = 0.04) -> float:
    """Return the highest rate that holds, within `precision` of itself; 0 if none does.

    The search begins at `guess`, and doubles or halves until one rate holds and one does not; then it bisects
    by ratio. Raise ValueError if guess or precision is not above 0.
    """
    if not (guess > 0 and precision > 0):
        raise ValueError(f"guess is {guess}, precision {precision}; accepted: numbers above 0")
    low, high = _bracket(holds, guess)
    if low == 0:
        return 0.0
    while high / low > 1 + precision:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _bracket(holds: Callable[[float], bool], guess: float) -> tuple[float, float]:
    low = high = guess
    if holds(guess):
        for _ in range(MOST_DOUBLINGS):
            low, high = high, high * FIRST_STEP
            if not holds(high):
                return low, high
        raise ValueError(f"even {high:g} holds; accepted: a guess closer to what is searched")
    for _ in range(MOST_DOUBLINGS):
        low, high = low / FIRST_STEP, low
        if holds(low):
            return low, high
    return 0.0, low
