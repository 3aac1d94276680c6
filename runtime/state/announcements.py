"""The texts by which workers announce themselves in Redis.

A fleet is replaced process by process, so a text may come from an older or a newer version: a field that it
lacks has its default, and one that is not known here is ignored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from runtime.state.records import LinkRecord, LoraRecord, StartingRecord, TierRecord, WorkerRecord


def text_of(record: WorkerRecord | StartingRecord) -> str:
    """Return the text of an announcement."""
    return json.dumps(asdict(record))


_PARTS = {"host": TierRecord, "disk": TierRecord, "link": LinkRecord, "lora": LoraRecord}
"""The fields of a worker's record that are records."""


def worker_of(text: str) -> WorkerRecord:
    """Return the worker that a text announces."""
    announced = json.loads(text)
    for name, part_type in _PARTS.items():
        if announced.get(name) is not None:
            announced[name] = part_type(**_known(part_type, announced[name]))
    return WorkerRecord(**_known(WorkerRecord, announced))


def starting_of(text: str) -> StartingRecord:
    """Return the starting worker that a text announces."""
    return StartingRecord(**_known(StartingRecord, json.loads(text)))


_Record = WorkerRecord | TierRecord | LinkRecord | LoraRecord | StartingRecord


def _known(record_type: type[_Record], announced: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(record_type)}
    known = {name: value for name, value in announced.items() if name in names}
    # Records have tuples, of which JSON makes lists.
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
