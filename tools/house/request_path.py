"""The path of one request through the router core, from its arrival to its first token.

The simulator plays one request with a TTFT and a TPOT target to an idle fleet of one prefill and one decode
worker, under the policy and placement that routers use by default. Every call made inside `RouterCore.on` is
recorded, from the event `Arrived` up to the event whose actions relay the first token. What happens between
events, in the simulator, is not part of the path.

A function is a Python function or method of a file below the counted folders. Comprehensions, generator
expressions and lambdas belong to the function they are written in, and resuming a generator is no new call.
Methods that dataclasses generate are in no file and are not counted.

A crossing is one call of a function in one file by a function in another. The caller is the nearest counted
function up the stack, so a call through the standard library, or through a folder that is not counted, still
counts. Distinct crossings are the different pairs of caller and callee among them.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from unittest import mock

from router.core.core import RouterCore
from router.core.model.actions import Action, Relay
from router.core.model.events import Arrived, Event
from runtime.profiles import load_profile
from scheduling import policies
from sim.play.simulation import run
from sim.spec import FleetShape, SimSpec
from sim.workloads.trace import TraceRequest
from tools.house.source_tree import ROOT

CORE = frozenset({"router"})
WITH_DECISIONS = CORE | {"scheduling", "runtime/state"}

Function = tuple[str, str]
"""A file, relative to the root, and a qualified name in it."""


@dataclass(slots=True)
class CallRecorder:
    """Records calls of functions whose files are below `folders`, which are relative to `root`."""

    folders: frozenset[str]
    root: Path = ROOT
    functions: set[Function] = field(default_factory=set)
    crossings: Counter[tuple[Function, Function]] = field(default_factory=Counter)
    _generators: set[FrameType] = field(default_factory=set)

    @property
    def files(self) -> set[str]:
        """Return the files whose functions were called."""
        return {file for file, _ in self.functions}

    def called(self, frame: FrameType) -> None:
        """Take the frame of a function that was just entered."""
        function = self._function(frame.f_code)
        if function is None or frame.f_code.co_name.startswith("<") or self._is_resumed(frame):
            return
        self.functions.add(function)
        caller = self._caller(frame)
        if caller is not None and caller[0] != function[0]:
            self.crossings[caller, function] += 1

    def _is_resumed(self, frame: FrameType) -> bool:
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return False
        is_resumed = frame in self._generators
        self._generators.add(frame)
        return is_resumed

    def _caller(self, frame: FrameType) -> Function | None:
        above = frame.f_back
        # Above this module's own frame is the simulator's core, which hands events on to the live one.
        while above is not None and above.f_code.co_filename != __file__:
            caller = self._function(above.f_code)
            if caller is not None:
                return caller
            above = above.f_back
        return None

    def _function(self, code: CodeType) -> Function | None:
        path = Path(code.co_filename)
        if not path.is_relative_to(self.root):
            return None
        file = path.relative_to(self.root)
        if not any(file.is_relative_to(folder) for folder in self.folders):
            return None
        return str(file), code.co_qualname.partition(".<locals>.<")[0]


def trace_request(*recorders: CallRecorder) -> list[str]:
    """Record one request's path; return the names of the events it was made of."""
    spec = SimSpec(
        profile=load_profile("h200-llama-3.1-8b"),
        fleet=FleetShape(prefill=1, decode=1),
        trace=(TraceRequest(at_s=1.0, prompt_tokens=500, output_tokens=20, ttft_ms=1000, tpot_ms=50),),
        policy=policies.DEFAULT,
        placement=policies.by_name(policies.DEFAULT).placement,
    )
    names: list[str] = []
    handle = RouterCore.on
    is_relayed = False

    def record(frame: FrameType, what: str, _: object) -> None:
        if what == "call":
            for recorder in recorders:
                recorder.called(frame)

    def on(core: RouterCore, event: Event, now: float) -> list[Action]:
        nonlocal is_relayed
        if is_relayed or not (names or isinstance(event, Arrived)):
            return handle(core, event, now)
        names.append(type(event).__name__)
        before = sys.getprofile()
        sys.setprofile(record)
        try:
            actions = handle(core, event, now)
        finally:
            sys.setprofile(before)
        is_relayed = any(isinstance(action, Relay) for action in actions)
        return actions

    with mock.patch.object(RouterCore, "on", on):
        run(spec)
    assert is_relayed, "the simulated request was relayed no token"
    return names
