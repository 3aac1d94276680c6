"""A recording is decided again exactly, and one that is damaged says where."""

from __future__ import annotations

import asyncio
import enum
import errno
import json
import os
import random
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.core import RouterCore
from router.core.model.events import Event, Granted, Nudged, QueueSeen
from router.core.model.state import CoreConfig
from router.replay import recording
from router.replay.recording import Recorder, decode_event, encode_event, footer, header, line
from router.replay.replay import RecordingError, main, read, replay
from scheduling.cost_model import CostModel

EVENT_TYPES = typing.get_args(Event)
_PRIMITIVES: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=5),
    bool: st.booleans(),
    type(None): st.none(),
    bytes: st.binary(max_size=5),
    CostModel: st.builds(CostModel, st.just((0.1,) * 6), st.floats(0, 1e3)),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Anything of that type; sequences are lists, as they are after reading."""
    if hint in _PRIMITIVES:
        return _PRIMITIVES[hint]
    if typing.get_origin(hint) is not None:
        return many(hint)
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    assert isinstance(hint, type)
    assert is_dataclass(hint), hint
    hints = typing.get_type_hints(hint)
    return st.builds(hint, **{field.name: values(hints[field.name]) for field in fields(hint) if field.init})


def many(hint: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Sequence:
        return st.lists(values(arguments[0]), max_size=3)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(values(argument) for argument in arguments))
    if origin is Mapping:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    return st.one_of(*(values(argument) for argument in arguments))


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_event_survives_being_written(kind: type, data: st.DataObject) -> None:
    event = data.draw(values(kind))
    assert decode_event(json.loads(json.dumps(encode_event(event)))) == event


def recorded(seed: int, count: int = 20) -> list[str]:
    """The lines of a core that saw a few events."""
    config = CoreConfig("router-1", queue_capacity=7)
    core, rng = RouterCore(config), random.Random(seed)
    lines = [header(config)]
    for place in range(count):
        choices: list[Event] = [Nudged(), QueueSeen(rng.randrange(9), 5), Granted("a/b/0", "w:1", "d:1")]
        event = rng.choice(choices)
        lines.append(line(event, place / 7, core.on(event, place / 7)))
    return [*lines, footer(count)]


def test_a_replay_decides_the_same() -> None:
    found = list(replay(recorded(1)))
    assert len(found) == 20
    assert all(entry.identical for entry in found)
    assert any(entry.actions for entry in found), "nothing was decided, so nothing was compared"


def test_the_configuration_is_read() -> None:
    config, _ = read(recorded(1))
    assert config == CoreConfig("router-1", queue_capacity=7)


def test_another_decision_is_seen() -> None:
    lines = recorded(1)
    other = [header(CoreConfig("router-2", queue_capacity=7)), *lines[1:]]
    config = CoreConfig("router-1")
    lines[3] = line(Nudged(), 0.3, RouterCore(config).on(Granted("x/y/0", "w:1", "d:1"), 0.3))
    assert [entry.recorded.line for entry in replay(lines) if not entry.identical] == [4]
    assert all(entry.identical for entry in replay(other)), "no decision here depends on the router's name"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: [], r"line 1: the recording is empty"),
        (lambda lines: ["{}\n", *lines[1:]], r"line 1: this does not begin like a recording"),
        (lambda lines: lines[:8], r"line 8: the recording breaks off after 7 events"),
        (lambda lines: [*lines[:8], lines[8][:20]], r"line 9: the recording breaks off in the middle"),
        (lambda lines: [*lines[:4], lines[4].replace("0.4", "0.5"), *lines[5:]], r"line 5: .*checksum"),
        (lambda lines: [*lines[:4], lines[4][3:], *lines[5:]], r"line 5: the line is damaged"),
        (lambda lines: [*lines[:4], *lines[5:]], r"line 21: the last line is \{'events': 20\}"),
        (lambda lines: [*lines, lines[-2]], r"line 23: there is more after the end"),
        (lambda lines: [lines[0].replace('"key"', '"id"'), *lines[1:]], r"line 1: StoreFailed was recorded"),
    ],
)
def test_a_damaged_recording_says_where(damage: Any, said: str) -> None:
    with pytest.raises(RecordingError, match=said):
        list(replay(damage(recorded(1))))


async def test_a_recorder_writes_what_the_core_saw(tmp_path: Path) -> None:
    config = CoreConfig("router-1")
    core = RouterCore(config)
    failures: list[OSError] = []
    recorder = Recorder(tmp_path / "log", config, failures.append)
    for place in range(5):
        event = Granted("a/b/0", "w:1", "d:1")
        recorder.record(event, float(place), core.on(event, float(place)))
    recorder.close()
    recorder.record(Nudged(), 9.0, [])
    with (tmp_path / "log").open() as lines:
        found = list(replay(lines))
    assert not failures
    assert [entry.recorded.now for entry in found] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert all(entry.identical for entry in found)


async def test_events_of_one_loop_turn_are_written_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Event] = []

    def counting(event: Event, *rest: Any) -> str:
        written.append(event)
        return line(event, *rest)

    monkeypatch.setattr(recording, "line", counting)
    path, event = tmp_path / "recording", Granted("a" * 10_000, "w:1", "d:1")
    recorder = Recorder(path, CoreConfig("router-1"), lambda _: None)
    for _ in range(200):
        recorder.record(event, 0.0, [])
    turns = []
    while len(written) < 100:
        await asyncio.sleep(0)
        turns.append(len(written))
    assert turns[0] <= 2 + recording.CHARS_PER_TURN // 10_000
    recorder.close()
    assert [json.loads(entry)[1] for entry in path.read_text().splitlines()[1:-1]] == [
        encode_event(event)
    ] * 200


async def test_a_full_disk_ends_the_recording_and_nothing_else() -> None:
    failures: list[OSError] = []
    recorder = Recorder(Path("/dev/full"), CoreConfig("router-1"), failures.append)
    recorder.record(Nudged(), 0.0, [])
    recorder.close()
    assert [error.strerror for error in failures] == ["No space left on device"]


async def test_an_unread_pipe_ends_the_recording_not_the_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_WAITING_BYTES", 200_000)
    monkeypatch.setattr(recording, "_CLOSE_TIMEOUT_S", 0.1)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="No such device"):
        Recorder(path, CoreConfig("router-1"), lambda _: None)
    failures: list[OSError] = []
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    recorder = Recorder(path, CoreConfig("router-1"), failures.append)
    for second in range(20):
        for _ in range(200):
            recorder.record(Granted("a" * 100, "w:1", "d:1"), 2.0 * second, [])
        recorder.flush()
    assert [error.errno for error in failures] == [errno.EAGAIN]
    recorder.close()
    assert len(failures) == 1
    os.close(reader)


def test_the_command_says_identical_or_where_it_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same, other, broken = (tmp_path / name for name in ("same", "other", "broken"))
    lines = recorded(1)
    same.write_text("".join(lines))
    changed = line(Nudged(), 0.3, RouterCore(CoreConfig("router-1")).on(Granted("x/y/0", "w:1", "d:1"), 0.3))
    other.write_text("".join([*lines[:3], changed, *lines[4:]]))
    broken.write_text("".join(lines[:-1]))
    assert main([str(same)]) == 0
    assert main([str(same), str(other)]) == 1
    assert main([str(broken), str(other), str(tmp_path / "none")]) == 2
    said = capsys.readouterr()
    assert f"{same}: identical, 20 events" in said.out
    assert f"{other}: different, 1 of 20 events; the first in line 4, Nudged at 0.3" in said.out
    assert f"{broken}: line 21: the recording breaks off after 20 events" in said.err
    assert "No such file" in said.err
