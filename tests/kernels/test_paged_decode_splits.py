from hypothesis import given
from hypothesis import strategies as st

from kernels.paged_decode.splits import MAX_SPLITS, choose_num_splits

capacities = st.integers(0, 1 << 20)
windows = st.none() | st.integers(1, 1 << 20)


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
