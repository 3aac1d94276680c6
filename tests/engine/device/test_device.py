"""A step's inputs go to the device in one copy, and nothing that a copy still reads is overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.core.batch import Batch, ChunkWork
from engine.core.sequence import Goal, SequenceGroup
from engine.device import ALIGNMENT, Download, StepUpload
from engine.execution.device_rows import DeviceRows, StepAssembler
from model_output.text.output import output_rules
from tests.engine.loop_driver import spec

CPU = torch.device("cpu")


class FakeEvent:
    """Reached only by waiting; keeps what its buffer held when the copy was queued."""

    def __init__(self) -> None:
        self.waits = 0
        self.upload: StepUpload
        self.held: NDArray[np.uint8] | None = None

    @property
    def memory(self) -> NDArray[np.uint8]:
        [staging] = [each for each in self.upload._buffers if each.copied is self]
        return staging._memory.numpy()

    def record(self) -> None:
        self.held = self.memory.copy()

    def synchronize(self) -> None:
        self.waits += 1
        if self.held is not None:
            np.testing.assert_array_equal(self.memory, self.held, "overwritten while a copy may read it")


def make_upload() -> tuple[StepUpload, list[FakeEvent]]:
    events: list[FakeEvent] = []

    def new_event() -> FakeEvent:
        events.append(FakeEvent())
        return events[-1]

    upload = StepUpload(CPU, new_event)
    for event in events:
        event.upload = upload
    return upload, events


def make_columns(sizes: Sequence[int], first: int = 0) -> list[NDArray[Any]]:
    dtypes = (np.int64, np.int32)
    return [np.arange(first, first + size, dtype=dtypes[place % 2]) for place, size in enumerate(sizes)]


@given(st.lists(st.integers(0, 70), min_size=1, max_size=9).filter(any))
def test_columns_arrive_whole_and_aligned(sizes: list[int]) -> None:
    columns = make_columns(sizes)
    upload, _ = make_upload()
    for column, tensor in zip(columns, upload(columns), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), column, strict=True)
        assert tensor.storage_offset() * tensor.element_size() % ALIGNMENT == 0
        assert tensor.is_contiguous()


def test_a_part_of_a_table_arrives_packed() -> None:
    table = np.arange(60, dtype=np.int32).reshape(6, 10)
    upload, _ = make_upload()
    [part] = upload([table[:4, :3]])
    assert part.tolist() == table[:4, :3].tolist()
    assert part.is_contiguous()


def test_steps_are_one_piece_of_memory_each_and_keep_what_they_held() -> None:
    upload, _ = make_upload()
    steps = [(make_columns([9, 4], first), upload(make_columns([9, 4], first))) for first in range(5)]
    for columns, tensors in steps:
        assert [tensor.tolist() for tensor in tensors] == [column.tolist() for column in columns]
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1


def test_a_buffer_is_waited_for_before_it_is_used_again() -> None:
    upload, events = make_upload()
    for step in range(6):
        # The fourth outgrows its buffer, which must not go while it is read either.
        upload(make_columns([10 if step < 3 else 20_000], first=step))
    assert [event.waits for event in events] == [3, 3]


def make_assembler(max_rows: int = 8) -> StepAssembler:
    """Four rows in the middle of their contexts, by hand."""
    rows = DeviceRows(max_rows, 12, 97, CPU)
    batch = Batch(max_rows, 4, rows)
    rows.token_ids[:] = np.arange(20, 20 + max_rows)
    batch.positions[:] = np.arange(3, 3 + 5 * max_rows, 5)
    rows.block_tables[:] = np.arange(max_rows * 12).reshape(max_rows, 12)
    return StepAssembler(batch, rows, 4, CPU)


def chunk(begin: int, end: int, block_table: list[int], *, wants_logits: bool) -> ChunkWork:
    one = spec(1, list(range(end)))
    group = SequenceGroup(1, one, Goal.DECODE, output_rules(one.stop, (), end, 100), [], 0.0)
    group.block_table = block_table
    return ChunkWork(group, begin, end, wants_logits, range(0))


CHUNKS = [chunk(2, 9, [90, 91, 92], wants_logits=True), chunk(0, 3, [93], wants_logits=False)]


@pytest.mark.parametrize(("num_decodes", "chunks"), [(4, []), (1, []), (4, CHUNKS), (0, CHUNKS)])
def test_a_step_is_the_same_with_and_without_copying(num_decodes: int, chunks: list[ChunkWork]) -> None:
    assembler = make_assembler()
    rows = slice(0, num_decodes)
    plain = assembler.assemble(rows, chunks, {}, {})
    assembler._upload, _ = make_upload()
    copied = assembler.assemble(rows, chunks, {}, {})
    for field in fields(plain):
        want, got = getattr(plain, field.name), getattr(copied, field.name)
        if want is None or isinstance(want, int):
            assert got == want
        else:
            assert got.dtype == want.dtype, field.name
            assert torch.equal(got, want), field.name


@pytest.mark.gpu
def test_many_steps_are_queued_before_the_first_is_over() -> None:
    upload = StepUpload(torch.device("cuda"))
    busy = torch.randn(4096, 4096, device="cuda")
    for _ in range(50):
        busy = torch.nn.functional.normalize(busy @ busy)
    steps = [(columns := make_columns([256, 3000], first), upload(columns)) for first in range(40)]
    for columns, tensors in steps:
        for column, tensor in zip(columns, tensors, strict=True):
            np.testing.assert_array_equal(Download(tensor).wait(), column)
