"""The program that fetches a model of the hub into the cache, with progress on stdout and in the log.

Exit codes: 0 the model is there, or a path names it; 4 it cannot be fetched.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time

import structlog

from runtime.hub.contents import Scope
from runtime.hub.names import ACCEPTED, HubModel, hub_model, model_path
from runtime.hub.progress import Fetching, Rate, in_words
from runtime.hub.refusals import HubRefused
from runtime.hub.snapshot import Check, Snapshot, accept, fetch
from runtime.process.log import configure_logging, say_why
from runtime.process.reports import report

EXIT_MODEL = 4
PULSE_S = 1.0
LOG_S = 5.0


class Reporter:
    """Reports a download every second on stdout, and every five in the log, on a thread of its own."""

    def __init__(self, prefix: str, model: HubModel) -> None:
        self._prefix = prefix
        self._model = model
        self._state = Fetching()
        self._rate = Rate()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def __call__(self, state: Fetching) -> None:
        """Implements `OnFetching`."""
        self._state = state

    def end(self) -> None:
        """End the reports; stdout may be stuck for a second."""
        self._over.set()
        self._thread.join(PULSE_S)

    def _run(self) -> None:
        log, logged_at = structlog.get_logger(), time.monotonic()
        while True:
            state, now = self._state, time.monotonic()
            if state.total:
                self._rate.add(now, state.done)
            words = in_words(state, self._rate.bytes_per_s)
            with contextlib.suppress(OSError, ValueError):  # stdout may be closed
                report(f"{self._prefix} done={state.done} total={state.total} phase={words}")
            if now - logged_at >= LOG_S:
                logged_at = now
                log.info("fetching_model", model=str(self._model), phase=words, **_counts(state))
            if self._over.wait(PULSE_S):
                return


def _counts(state: Fetching) -> dict[str, int]:
    return {"done": state.done, "total": state.total} if state.total else {}


def run(args: argparse.Namespace, check: Check = accept) -> int:
    """Fetch what the parsed `flags` name and return the exit code."""
    always = {} if args.service is None else {"service": args.service.partition(" ")[2]}
    configure_logging(args.log_level, args.log_format, **always)
    if args.result_fd is not None:
        threading.Thread(target=_leave_with_parent, name="parent", daemon=True).start()
    try:
        model = hub_model(args.model)
        if model is None and (args.model.is_absolute() or args.model.exists()):
            structlog.get_logger().info("nothing_to_fetch", model=str(args.model), reason="it is a path")
            return 0
        if model is None:
            raise HubRefused(str(args.model), "it names no model of the hub", f"accepted: {ACCEPTED}")
        found = _fetch(model, Scope(args.files), args.service, check)
    except HubRefused as error:
        say_why(error)
        return EXIT_MODEL
    if args.result_fd is None:
        report(f"READY hub {found.model} address={found.model}")
    else:
        with os.fdopen(args.result_fd, "w") as result:
            json.dump({"path": str(found.path), "commit": found.model.revision}, result)
    return 0


def _fetch(model: HubModel, scope: Scope, service: str | None, check: Check) -> Snapshot:
    reporter = Reporter(f"STARTING {service or f'hub {model.served_name}'}", model)
    try:
        found = fetch(model, scope, reporter, check)
    finally:
        reporter.end()
    log = structlog.get_logger()
    facts = {"model": model.served_name, "revision": model.revision, "commit": found.model.revision}
    if found.unchecked:
        log.warning("model_from_cache", **facts, reason=found.unchecked)
    log.info("model_found", **facts, path=str(found.path))
    return found


def flags(name: str = "runtime.hub") -> argparse.ArgumentParser:
    """Return the parser of the command line of the module of this name."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {name}",
        description="Fetch a model of the hub into the cache (HF_HOME), where services find it.",
    )
    add = parser.add_argument
    add("model", type=model_path, metavar="ORG/NAME[@REVISION][:FILE.gguf]", help="the model")
    add(
        "--files",
        default=Scope.ALL.value,
        choices=[scope.value for scope in Scope],
        help="all, or the facts alone, which are all that routers need: config, tokenizer, template (all)",
    )
    # How services run this program.
    add("--service", help=argparse.SUPPRESS)
    add("--result-fd", type=int, help=argparse.SUPPRESS)
    add("--log-level", default="info", metavar="LEVEL", help="the least severe lines to log (info)")
    log_format = "console" if sys.stderr.isatty() else "json"
    add("--log-format", default=log_format, metavar="FORMAT", help="console or json (console on a terminal)")
    return parser


def _leave_with_parent() -> None:
    """End this process when its parent has ended: then the other end of its stdin is closed."""
    os.read(sys.stdin.fileno(), 1)  # unbuffered: a lock of stdin would outlive this thread
    os._exit(0)
