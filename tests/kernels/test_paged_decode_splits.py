from hypothesis import given
from hypothesis import strategies as st

from kernels.paged_decode.splits import MAX_SPLITS, choose_num_splits, plan_splits

capacities = st.integers(0, 1 << 20)
windows = st.none() | st.integers(1, 1 << 20)
tiles = st.sampled_from([16, 32, 64])


@given(capacities, windows, st.integers(1, MAX_SPLITS), tiles, st.data())
def test_programs_cover_all_that_a_context_sees(
    capacity: int, window: int | None, num_splits: int, tile: int, data: st.DataObject
) -> None:
    plan = plan_splits(capacity, window, num_splits, tile)
    context_len = data.draw(st.integers(0, capacity))
    first_visible = 0 if window is None else max(0, context_len - window)
    first_split = first_visible // plan.split_len
    assert (first_split + plan.num_splits) * plan.split_len >= context_len


@given(capacities, windows, st.integers(1, MAX_SPLITS), tiles)
def test_splits_are_whole_tiles_and_no_more_than_asked_for(
    capacity: int, window: int | None, num_splits: int, tile: int
) -> None:
    plan = plan_splits(capacity, window, num_splits, tile)
    assert 1 <= plan.num_splits <= num_splits
    assert plan.split_len > 0
    assert plan.split_len % tile == 0


def test_a_window_splits_what_it_sees_and_not_the_whole_capacity() -> None:
    plan = plan_splits(capacity=1 << 17, window=4096, num_splits=9, tile=64)
    assert (plan.num_splits, plan.split_len) == (9, 512)


@given(capacities, windows, st.integers(1, 10_000), st.integers(1, 200))
def test_default_is_accepted_as_a_number_of_splits(
    capacity: int, window: int | None, num_rows: int, num_sms: int
) -> None:
    assert 1 <= choose_num_splits(capacity, window, num_rows, num_sms) <= MAX_SPLITS


def test_default_splits_a_small_batch_with_long_contexts_and_no_other() -> None:
    assert choose_num_splits(1 << 17, None, num_rows=8, num_sms=132) == 33
    assert choose_num_splits(1 << 17, None, num_rows=1024, num_sms=132) == 1
    assert choose_num_splits(300, None, num_rows=8, num_sms=132) == 1
    assert choose_num_splits(1 << 17, 128, num_rows=8, num_sms=132) == 1
