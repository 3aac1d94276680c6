"""The read that saves the most is begun, and none that saves nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost_model import UNKNOWN_COST, CostModel
from scheduling.memory.disk_reads import read_limit_s
from scheduling.memory.preemption import recompute_s
from scheduling.memory.prefix_reads import ChosenRead, PrefixRead, choose_read

COST = CostModel((5e-3, 1e-5, 2e-4, 5e-8, 1e-8, 1e-9), 20.0)
READS = st.lists(st.builds(PrefixRead, st.integers(1, 5000), st.floats(0, 5)), max_size=4)
BEFORE = st.integers(0, 5000)


def saved_s(read: PrefixRead, num_before: int) -> float:
    return recompute_s(read.num_tokens, COST, num_before) - read.read_s


@given(READS, BEFORE)
def test_no_other_read_saves_more(reads: list[PrefixRead], num_before: int) -> None:
    chosen = choose_read(reads, num_before, COST)
    paying = [read for read in reads if read_limit_s(read.num_tokens, num_before, read.read_s, COST)]
    if chosen is None:
        assert not paying
        return
    best = reads[chosen.place]
    assert best in paying
    assert saved_s(best, num_before) == max(saved_s(read, num_before) for read in paying)


@given(READS, BEFORE)
def test_a_read_is_stopped_after_the_time_of_computing(reads: list[PrefixRead], num_before: int) -> None:
    chosen = choose_read(reads, num_before, COST)
    if chosen is not None:
        read = reads[chosen.place]
        assert chosen.limit_s <= recompute_s(read.num_tokens, COST, num_before)
        assert read.read_s < chosen.limit_s


@given(READS, st.builds(PrefixRead, st.integers(1, 5000), st.floats(0, 5)), BEFORE)
def test_one_more_way_never_saves_less(reads: list[PrefixRead], more: PrefixRead, num_before: int) -> None:
    def most_s(ways: list[PrefixRead]) -> float:
        chosen = choose_read(ways, num_before, COST)
        return 0.0 if chosen is None else saved_s(ways[chosen.place], num_before)

    assert most_s([*reads, more]) >= most_s(reads)


def test_without_known_costs_the_read_with_the_most_tokens_is_taken() -> None:
    reads = [PrefixRead(16, 0.0), PrefixRead(64, 0.5), PrefixRead(512, 1e6)]
    chosen = choose_read(reads, 0, UNKNOWN_COST)
    assert chosen is not None
    assert chosen.place == 1


def test_equal_reads_go_to_the_first() -> None:
    read = PrefixRead(100, 0.001)
    assert choose_read([read, read], 0, COST) == ChosenRead(0, recompute_s(100, COST))


def test_without_reads_all_is_computed() -> None:
    assert choose_read([], 0, COST) is None
