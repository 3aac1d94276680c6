"""Paces share workers with their like, and workers are filled one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.placement import DecodeCandidate, choose_decode_worker
from scheduling.policies.polyserve import POLYSERVE, pace_bin

INFINITE = float("inf")
EMPTY = DecodeCandidate(
    "empty", draining=False, avoided=False, free_blocks=10, free_seqs=4, step_after_s=0.01,
    tpot_s=0.05, held_tpot_s=INFINITE, num_seqs=0, cached_blocks=0,
)  # fmt: skip
OWN = replace(EMPTY, key="own", held_tpot_s=0.045, num_seqs=3)
FULLER = replace(OWN, key="fuller", num_seqs=4)
STRICTER = replace(EMPTY, key="stricter", held_tpot_s=0.02, num_seqs=9)
STRICTEST = replace(EMPTY, key="strictest", held_tpot_s=0.005, num_seqs=9)
LOOSER = replace(EMPTY, key="looser", held_tpot_s=0.2, num_seqs=9)
UNPACED = replace(EMPTY, key="unpaced", held_tpot_s=INFINITE, num_seqs=9)
IN_ORDER = (FULLER, OWN, STRICTER, STRICTEST, EMPTY, LOOSER, UNPACED)


def chosen(candidates: list[DecodeCandidate]) -> str | None:
    found = choose_decode_worker(candidates, 1, POLYSERVE.scores)
    return None if found is None else found.key


@given(st.lists(st.sampled_from(range(len(IN_ORDER))), min_size=1, unique=True))
def test_the_fullest_of_the_bin_comes_before_all_others(places: list[int]) -> None:
    assert chosen([IN_ORDER[place] for place in places]) == IN_ORDER[min(places)].key


def test_a_worker_without_a_seat_is_passed_over() -> None:
    assert chosen([replace(FULLER, free_seqs=0), OWN, EMPTY]) == "own"
    assert chosen([replace(each, free_seqs=0) for each in IN_ORDER]) is None


def test_requests_without_a_pace_have_a_bin_of_their_own() -> None:
    without = [replace(each, tpot_s=INFINITE) for each in IN_ORDER]
    assert chosen(without) == "unpaced"
    assert chosen([each for each in without if each.key != "unpaced"]) == "looser"


def test_where_an_attempt_failed_is_the_last_resort() -> None:
    assert chosen([replace(FULLER, avoided=True), LOOSER]) == "looser"


@pytest.mark.parametrize(("tpot_s", "other_s"), [(0.035, 0.06), (0.02, 0.03)])
def test_a_bin_spans_a_factor_of_two(tpot_s: float, other_s: float) -> None:
    assert pace_bin(tpot_s) == pace_bin(other_s) == pace_bin(2 * tpot_s) - 1
