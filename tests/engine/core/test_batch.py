"""Rows of a batch, and the micro-batches that share them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.core.batches import batch_of, sequence


@given(num_rows=st.integers(1, 8), num_micro_batches=st.integers(2, 5))
def test_micro_batches_take_turns_with_all_rows(num_rows: int, num_micro_batches: int) -> None:
    choices = [sequence(handle, 5, 100) for handle in range(num_rows)]
    batch, served = batch_of(choices, num_micro_batches), Counter[int]()
    in_flight: list[list[int]] = []
    for _ in range(6 * num_micro_batches):
        rows = batch.next_rows()
        assert isinstance(rows, np.ndarray)
        assert len(rows) <= -(-num_rows // num_micro_batches)
        assert not set(rows.tolist()) & {row for flight in in_flight for row in flight}
        batch.mark_pending(rows)
        in_flight.append(rows.tolist())
        served.update(rows.tolist())
        if len(in_flight) == num_micro_batches:
            batch.mark_known(np.array(in_flight.pop(0), dtype=np.int64))
    counts = [served[row] for row in range(num_rows)]
    assert min(counts) >= 5
    assert max(counts) - min(counts) <= 1


def test_the_slack_of_a_micro_batch_is_that_of_all_rows() -> None:
    batch = batch_of([sequence(0, 5, 100, 50), sequence(1, 5, 100, 300)], num_micro_batches=2)
    load = batch.decode_load(0.01, np.array([1]))
    assert (load.num_seqs, load.context_tokens) == (1, 6)
    assert load.slack_s == pytest.approx(0.04)
    assert load.gap_limit_s == pytest.approx(0.05)
