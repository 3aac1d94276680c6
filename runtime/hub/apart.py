"""Run the program that fetches models from a service, before the service has threads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from runtime.hub.contents import Scope
from runtime.hub.names import HubModel, hub_model

_ROOT = Path(__file__).resolve().parents[2]


class FetchFailed(Exception):
    """The program has ended with `exit_code` and said why."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"a model of the hub was not fetched: exit code {exit_code}")
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Caller:
    """The service that needs a model: its kind and name, and how it logs."""

    kind: str
    name: str
    log_level: str
    log_format: str
    program: tuple[str, ...] = ("runtime.hub",)
    """The module that fetches, and flags of its own."""


def located(path: Path, scope: Scope, caller: Caller) -> tuple[Path, HubModel | None]:
    """Return the folder or file of the model that a flag names, and the pinned model if it is one of the hub.

    A model of the hub is fetched first; a path is returned as it is, whether it exists or not. Call it
    before this process forks others or handles SIGTERM. Raises `HubRefused`, and `FetchFailed` for what the
    program has already said.
    """
    model = hub_model(path)
    if model is None:
        return path, None
    result, to_result = os.pipe()
    own = ["--files", scope.value, "--service", f"{caller.kind} {caller.name}", "--result-fd", str(to_result)]
    logs = ["--log-level", caller.log_level, "--log-format", caller.log_format]
    program = subprocess.Popen(
        [sys.executable, "-m", *caller.program, str(model), *own, *logs],
        stdin=subprocess.PIPE,  # it ends when this end of the pipe is closed
        pass_fds=[to_result],
        cwd=_ROOT,
    )
    os.close(to_result)
    # The first process of a container ignores the signal unless it has a handler.
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        with os.fdopen(result) as answer:
            text = answer.read()
        code = program.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
        assert program.stdin is not None
        program.stdin.close()
    if code:
        raise FetchFailed(code if code > 0 else 128 - code)
    found = json.loads(text)
    return Path(found["path"]), HubModel(model.name, found["commit"], model.file)
