import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from tools.house.request_path import CORE, WITH_DECISIONS, CallRecorder, trace_request

CALLER = """
def run(other):
    return [other(n) for n in sorted((2, 1), key=lambda n: other(n))]
"""
CALLED = """
def inner(n):
    return n

def other(n):
    return inner(n)

def numbers():
    yield 1
    yield 2
"""


def _load(path: Path, source: str) -> ModuleType:
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _record(root: Path, folders: set[str], call: Callable[[], Any]) -> CallRecorder:
    recorder = CallRecorder(frozenset(folders), root)

    def profile(frame: FrameType, what: str, _: object) -> None:
        if what == "call":
            recorder.called(frame)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return recorder


def test_calls_between_files_are_crossings(tmp_path: Path) -> None:
    caller, called = _load(tmp_path / "a/caller.py", CALLER), _load(tmp_path / "a/called.py", CALLED)
    recorder = _record(tmp_path, {"a"}, lambda: caller.run(called.other))
    run, other = ("a/caller.py", "run"), ("a/called.py", "other")
    assert recorder.functions == {run, other, ("a/called.py", "inner")}
    assert recorder.files == {"a/caller.py", "a/called.py"}
    assert recorder.crossings == {(run, other): 4}


def test_functions_of_other_folders_are_not_counted(tmp_path: Path) -> None:
    caller, called = _load(tmp_path / "a/caller.py", CALLER), _load(tmp_path / "b/called.py", CALLED)
    recorder = _record(tmp_path, {"a"}, lambda: caller.run(called.other))
    assert recorder.functions == {("a/caller.py", "run")}
    assert not recorder.crossings


def test_a_resumed_generator_is_one_call(tmp_path: Path) -> None:
    called = _load(tmp_path / "b/called.py", CALLED)
    loop = _load(tmp_path / "a/loop.py", "def loop(numbers):\n    for n in numbers():\n        pass\n")
    recorder = _record(tmp_path, {"a", "b"}, lambda: loop.loop(called.numbers))
    assert recorder.crossings == {(("a/loop.py", "loop"), ("b/called.py", "numbers")): 1}


def test_a_request_path_leads_from_arrival_to_first_token() -> None:
    core, with_decisions = CallRecorder(CORE), CallRecorder(WITH_DECISIONS)
    events = trace_request(core, with_decisions)
    assert events[0] == "Arrived"
    assert events[-1] == "StepReported"
    assert {"Enqueued", "Granted", "SettleAnswered"} <= set(events)
    assert core.functions < with_decisions.functions
    assert any(name == "RouterCore.on" for _, name in core.functions)
    assert 0 < len(core.crossings) <= core.crossings.total()
