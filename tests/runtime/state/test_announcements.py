"""Announcements of other versions are read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from runtime.state.announcements import starting_of, text_of, worker_of
from runtime.state.records import StartingRecord, TierRecord, WorkerRecord
from tests.runtime.state.common import worker

DISK = TierRecord(num_blocks=10, wait_s=0.5, block_s=1e-3)
STARTING = StartingRecord("w1", "a", "decode", "loading", 3, 10)


@pytest.mark.parametrize("record", [worker(), replace(worker(), num_stages=4, disk=DISK)])
def test_a_worker_is_read_as_it_was_announced(record: WorkerRecord) -> None:
    assert worker_of(text_of(record)) == record


def test_a_field_of_a_newer_version_is_ignored() -> None:
    record = replace(worker(), disk=DISK)
    newer = _with(record, num_planets=8)
    newer["disk"]["colour"] = "red"
    assert worker_of(json.dumps(newer)) == record
    assert starting_of(json.dumps(_with(STARTING, mood="good"))) == STARTING


def test_a_field_that_an_older_version_lacks_has_its_default() -> None:
    older = _with(worker())
    del older["num_stages"]
    assert worker_of(json.dumps(older)) == worker()


def _with(record: WorkerRecord | StartingRecord, **more: object) -> dict[str, Any]:
    announced: dict[str, Any] = json.loads(text_of(record))
    return announced | more
