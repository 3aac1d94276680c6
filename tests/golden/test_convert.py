"""Stored recordings follow renamed classes and fields, and nothing is written that does not fit the code."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from scheduling.request import FailureReason
from tests.golden import stored
from tests.golden.convert import main
from tests.golden.schema import Kind

NAME = f"target-dies{stored.SUFFIX}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one of the stored recordings."""
    for name in (NAME, stored.SCHEMA):
        shutil.copy(stored.FOLDER / name, tmp_path)
    return tmp_path


def age(folder: Path, classes: Mapping[str, str]) -> None:
    """Let the schema be as if classes had had these names."""

    def old(kind: Kind) -> Kind:
        return [kind[0], *map(old, kind[1:])] if isinstance(kind, list) else classes.get(kind, kind)

    schema = stored.read_schema(folder)
    schema.types = {
        classes.get(name, name): {part: old(kind) for part, kind in row.items()}
        for name, row in schema.types.items()
    }
    schema.renamed = {stored_name: classes.get(stored_name, stored_name) for stored_name in classes}
    stored.write_schema(schema, folder)


def change(folder: Path, name: str, fields: Mapping[str, Kind], gone: dict[str, object]) -> None:
    """Let the rows of a class be as if it had had these fields; `gone` has values of those that are gone."""
    schema, recording = stored.read_schema(folder), stored.read(folder / NAME)
    parts = list(schema.types[name])
    for _, event, actions in recording.lines:
        for tagged in (event, *actions):
            if tagged[0] == name:
                cells = dict(zip(parts, tagged[1], strict=True)) | gone
                tagged[1] = [cells[part] for part in fields]
    schema.types[name] = dict(fields)
    stored.write(folder / NAME, recording)
    stored.write_schema(schema, folder)


def convert(folder: Path, *flags: str) -> int:
    return main([*flags, "--folder", str(folder)])


def assert_as_stored(folder: Path) -> None:
    assert stored.read(folder / NAME) == stored.read(stored.FOLDER / NAME)
    found, expected = stored.read_schema(folder), stored.read_schema()
    assert (found.types, found.enums) == (expected.types, expected.enums)


def test_what_differs_is_listed_and_nothing_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    age(folder, {"WorkerLost": "WorkerGone", "Fence": "Barrier"})
    before = (folder / stored.SCHEMA).read_bytes()
    assert convert(folder, "--class", "Barrier=Fence") == 1
    said = capsys.readouterr().out
    assert "class WorkerGone is stored, but not in the code" in said
    assert "Barrier" not in said
    assert (folder / stored.SCHEMA).read_bytes() == before


def test_new_names_change_no_recording(folder: Path) -> None:
    age(folder, {"WorkerLost": "WorkerGone", "Fence": "Barrier"})
    schema = stored.read_schema(folder)
    schema.types["Slo"] = {
        "first_ms" if part == "ttft_ms" else part: kind for part, kind in schema.types["Slo"].items()
    }
    stored.write_schema(schema, folder)
    flags = [
        "--class",
        "WorkerGone=WorkerLost",
        "--class",
        "Barrier=Fence",
        "--field",
        "Slo.first_ms=ttft_ms",
    ]
    assert convert(folder, *flags) == 0
    assert_as_stored(folder)
    assert (folder / NAME).read_bytes() == (stored.FOLDER / NAME).read_bytes()


def test_fields_are_dropped_and_added_and_put_in_order(folder: Path) -> None:
    change(folder, "GrantsAnswered", {"spare": "int", "worker_key": "str"}, {"spare": 7})
    relay = stored.read_schema(folder).types["Relay"]
    assert relay.pop("replayed") == "bool", "it is false in all rows of this recording"
    change(folder, "Relay", dict(reversed(relay.items())), {})
    assert convert(folder, "--drop", "GrantsAnswered.spare", "--add", "Relay.replayed=false") == 0
    assert_as_stored(folder)


def test_new_members_of_an_enum_need_no_flag(folder: Path) -> None:
    schema = stored.read_schema(folder)
    schema.enums["FailureReason"].remove(FailureReason.SUPERSEDED)
    stored.write_schema(schema, folder)
    assert convert(folder) == 0
    assert_as_stored(folder)
    assert (folder / NAME).read_bytes() == (stored.FOLDER / NAME).read_bytes()


def test_an_enums_values_are_changed(folder: Path) -> None:
    schema, recording = stored.read_schema(folder), stored.read(folder / NAME)
    schema.enums["TimerKind"] = sorted(kind.replace("chores", "work") for kind in schema.enums["TimerKind"])
    for _, event, actions in recording.lines:
        for name, row in (event, *actions):
            if name in ("TimerFired", "SetTimer"):
                row[0][0] = row[0][0].replace("chores", "work")
    stored.write(folder / NAME, recording)
    stored.write_schema(schema, folder)
    assert convert(folder, "--value", "TimerKind.work=chores") == 0
    assert_as_stored(folder)
