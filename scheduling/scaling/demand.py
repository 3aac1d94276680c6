"""The requests that came to a fleet lately, in sums over slots of time.

A slot has the same size however many requests came in it, and the slots of several routers add up. Limits of
time are counted in buckets, each √2 times as long as the one before. A request counts with the lower edge of
its bucket, so no promise is taken for longer than it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter

from scheduling.value import value

SLOT_S = 5.0
NUM_SLOTS = 180
"""Slots that are kept: 15 minutes."""
BUCKETS = 26
LEAST_S = 0.005
"""The lower edge of the first bucket that has one; limits below it count as 0."""
_ZEROS = (0.0,) * BUCKETS


def bucket_of(limit_s: float) -> int:
    """Return the bucket of a limit in seconds."""
    if limit_s < LEAST_S:
        return 0
    return min(BUCKETS - 1, 1 + int(2 * math.log2(limit_s / LEAST_S) + 1e-9))


def edge_s(bucket: int) -> float:
    """Return the least limit that falls into a bucket."""
    return LEAST_S * 2 ** ((bucket - 1) / 2) if bucket else 0.0


@value
class Slot:
    """The requests that came in one slot, refused ones included."""

    prompts: float = 0.0
    prompt_tokens: float = 0.0
    """Tokens to compute: without those that are cached."""
    prompt_squares: float = 0.0
    """The sum of their squares, since attention costs grow by them."""
    promised: float = 0.0
    """Requests that state a limit for their first token; then the same sums for these alone."""
    promised_tokens: float = 0.0
    promised_squares: float = 0.0
    sequences: float = 0.0
    """Choices to decode."""
    context_tokens: float = 0.0
    """The prompts of these, cached tokens included."""
    output_tokens: float = 0.0
    """The output expected of these."""
    slacks: tuple[float, ...] = _ZEROS
    """Promised requests by the time that they could wait and still be in time, in buckets."""
    paces: tuple[float, ...] = _ZEROS
    """Sequences by the time between tokens that they ask for, in buckets."""

    @property
    def row(self) -> tuple[float, ...]:
        """All numbers in one row, in which several routers' slots are added."""
        return (*_sums_of(self), *self.slacks, *self.paces)


_SUMS = tuple(field.name for field in fields(Slot) if field.name not in ("slacks", "paces"))
_sums_of = attrgetter(*_SUMS)
ROW = len(_SUMS) + 2 * BUCKETS
"""Numbers in a row."""
EMPTY = Slot()


def of_row(row: Sequence[float]) -> Slot:
    """Return the slot of a row; raise ValueError if it has another length."""
    if len(row) != ROW:
        raise ValueError(f"a slot has {len(row)} numbers; accepted: {ROW}")
    first = len(_SUMS)
    sums = dict(zip(_SUMS, row, strict=False))
    return Slot(**sums, slacks=tuple(row[first : first + BUCKETS]), paces=tuple(row[first + BUCKETS :]))


def last_slots(present: int, rows: Iterable[str]) -> list[Slot]:
    """Return the slots before `present` of a ring's rows, oldest first, from the first that has requests.

    A row is the number of its slot and the slot's own; rows of other versions of this module are left out.
    """
    found: dict[int, Slot] = {}
    for row in rows:
        number, *numbers = row.split()
        if len(numbers) == ROW:
            found[int(number)] = of_row([float(number) for number in numbers])
    begun = [number for number in found if present - NUM_SLOTS < number < present]
    return [found.get(number, EMPTY) for number in range(min(begun, default=present), present)]


def total(slots: Iterable[Slot]) -> Slot:
    """Return the sum of slots."""
    rows = [slot.row for slot in slots]
    return of_row([sum(column) for column in zip(*rows, strict=True)]) if rows else EMPTY


def came(
    *,
    prompt_tokens: int,
    cached_tokens: float,
    num_seqs: int,
    output_tokens: float,
    slack_s: float | None,
    pace_s: float | None,
) -> Slot:
    """Return what one request adds to its slot; None is a limit that it does not state.

    `output_tokens` is expected of all its sequences together.
    """
    tokens = max(1.0, prompt_tokens - cached_tokens)
    stated = slack_s is not None
    return Slot(
        prompts=1.0,
        prompt_tokens=tokens,
        prompt_squares=tokens * tokens,
        promised=float(stated),
        promised_tokens=tokens * stated,
        promised_squares=tokens * tokens * stated,
        sequences=float(num_seqs),
        context_tokens=float(prompt_tokens * num_seqs),
        output_tokens=output_tokens,
        slacks=_ZEROS if slack_s is None else _one(bucket_of(slack_s), 1.0),
        paces=_ZEROS if pace_s is None else _one(bucket_of(pace_s), float(num_seqs)),
    )


def _one(bucket: int, count: float) -> tuple[float, ...]:
    return (*_ZEROS[:bucket], count, *_ZEROS[bucket + 1 :])
