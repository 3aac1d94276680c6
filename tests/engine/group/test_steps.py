"""A step's batch survives its way to another process."""

from dataclasses import fields, replace

import torch

from engine.group.steps import decoded, encoded
from engine.model.attention.step_batch import StepBatch
from tests.engine.ragged import Piece, make_batch

BATCH = make_batch([Piece(0, [5, 6, 7], [9, 3]), Piece(11, [4], [1, 2, 8])], 4)


def sent(batch: StepBatch) -> StepBatch:
    return decoded(bytearray(b"".join(encoded(batch))))


def assert_same(got: StepBatch, want: StepBatch) -> None:
    for field in fields(StepBatch):
        one, other = getattr(got, field.name), getattr(want, field.name)
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype
            assert torch.equal(one, other), field.name
        else:
            assert one == other, field.name


def test_every_field_comes_back() -> None:
    assert_same(sent(BATCH), BATCH)


def test_a_step_may_ask_for_no_logits() -> None:
    batch = replace(BATCH, logit_rows=torch.empty(0, dtype=torch.int64))
    assert_same(sent(batch), batch)


def test_a_column_may_be_a_view() -> None:
    table = torch.arange(24, dtype=torch.int32).view(2, 12)
    batch = replace(BATCH, block_tables=table[:, :5])
    assert_same(sent(batch), batch)
