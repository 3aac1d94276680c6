"""Several processes of a router behind one port: start them, replace those that end, stop them together.

Each process is a whole router with an id of its own, and the kernel gives each connection to one of them. The
processes are forked, so modules are imported once; for that reason the parent starts no thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from router.config import RouterConfig
from runtime.process.reports import report
from runtime.rpc.listening import reserve_port

REST_S = 0.5
"""A process that has ended is replaced after this time."""
MAX_DEATHS, WITHIN_S = 3, 60.0
"""After more deaths than this in that time the parent ends too: its supervisor knows how long to wait."""
_STOPS = (signal.SIGTERM, signal.SIGINT)
_READY = re.compile(rb"^READY router \S+ address=(\S+) metrics=(\S+)$", re.MULTILINE)


@dataclass(slots=True)
class _Child:
    index: int
    pid: int = 0
    """0 while it is not running."""
    output: int = -1
    said: bytes = b""
    metrics: str = ""
    """The address of its metrics, once it has been ready."""
    starts_at: float = 0.0


def config_of(config: RouterConfig, index: int, port: int) -> RouterConfig:
    """Return the settings of one process: its own id and metrics port, and the port that all share."""
    service = config.service
    metrics_port = service.metrics_port and service.metrics_port + index
    listen = f"{service.host}:{port}"
    service = dataclasses.replace(service, listen=listen, metrics_port=metrics_port)
    return dataclasses.replace(config, service=service, router_id=f"{config.router_id}.{index}")


class Processes:
    """The parent of a router's processes. `serve` runs one of them and returns its exit code."""

    def __init__(self, config: RouterConfig, serve: Callable[[RouterConfig], int]) -> None:
        self._config = config
        self._serve = serve
        self._children = [_Child(index) for index in range(config.processes)]
        self._deaths: list[float] = []
        self._worst = 0
        self._stopping = self._ready = False
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Run until a signal, or until processes keep ending; return the worst exit code of the last ones.

        Raises `AddressUnusable`.
        """
        self._held, self._port = reserve_port(self._config.service.listen)
        # The processes see the end of this pipe if the parent is killed.
        self._outlived, self._lives = os.pipe()
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        signal.set_wakeup_fd(self._wakes)
        for number in (*_STOPS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._selector.register(self._woken, selectors.EVENT_READ)
        while not self._stopping or any(child.pid for child in self._children):
            self._start_due()
            for key, _ in self._selector.select(self._pause_s()):
                if key.fd == self._woken:
                    self._take_signals()
                else:
                    self._read(key.data)
        return self._worst

    def _pause_s(self) -> float | None:
        resting = [child.starts_at for child in self._children if not child.pid]
        return max(0.0, min(resting) - time.monotonic()) if resting and not self._stopping else None

    def _start_due(self) -> None:
        for child in self._children:
            if not (child.pid or self._stopping) and child.starts_at <= time.monotonic():
                self._start(child)

    def _start(self, child: _Child) -> None:
        child.output, stdout = os.pipe()
        child.said, child.metrics = b"", ""
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # until the new process has its own handlers
        child.pid = os.fork()
        if child.pid == 0:
            self._become(child.index, stdout)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        os.close(stdout)
        self._selector.register(child.output, selectors.EVENT_READ, child)

    def _become(self, index: int, stdout: int) -> None:
        """Be a process of the router, in the child."""
        signal.set_wakeup_fd(-1)
        # Ctrl-C in a terminal reaches parent and children alike; the parent forwards it as SIGTERM.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        os.dup2(stdout, sys.stdout.fileno())
        os.close(stdout)
        os.close(self._lives)
        self._held.close()
        self._selector.close()
        threading.Thread(target=_leave_with, args=(self._outlived,), name="parent", daemon=True).start()
        sys.exit(self._serve(config_of(self._config, index, self._port)))

    def _take_signals(self) -> None:
        for number in os.read(self._woken, 256):
            if number in _STOPS:
                self._stop()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children:  # others are orphans that a container's first process inherits
                if child.pid == pid:
                    self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: _Child, code: int) -> None:
        self._read(child)
        self._selector.unregister(child.output)
        os.close(child.output)
        child.pid, child.output = 0, -1
        if self._stopping:
            was_ending = code == -signal.SIGTERM and not child.metrics  # told to leave before it could drain
            self._worst = max(self._worst, 0 if was_ending else _shown(code))
            return
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if now - at < WITHIN_S] + [now]
        name = f"{self._config.router_id}.{child.index}"
        if self._ready and len(self._deaths) <= MAX_DEATHS:
            _say(f"router process {name} ended with exit code {code}; another takes its place")
            child.starts_at = now + REST_S
            return
        _say(f"router process {name} ended with exit code {code}; all stop")
        self._worst = _shown(code) or 1
        self._stop()

    def _stop(self) -> None:
        """Let all processes leave; a second time ends them at once."""
        self._stopping = True
        for child in self._children:
            if child.pid:
                os.kill(child.pid, signal.SIGTERM)

    def _read(self, child: _Child) -> None:
        """Take what a process says of its start, and report once all of them are ready."""
        os.set_blocking(child.output, False)
        with contextlib.suppress(BlockingIOError):
            while said := os.read(child.output, 4096):
                child.said += said
        found = _READY.search(child.said)
        if found is None:
            return
        child.metrics = found[2].decode()
        if not self._ready and all(each.metrics for each in self._children):
            self._ready = True
            metrics = ",".join(each.metrics for each in self._children)
            report(f"READY router {self._config.router_id} address={found[1].decode()} metrics={metrics}")


def _leave_with(parent: int) -> None:
    """Drain when the parent has ended, as if it had said so."""
    os.read(parent, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _shown(code: int) -> int:
    """Return an exit code as a shell shows it: a signal's number above 128."""
    return code if code >= 0 else 128 - code


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201 -- the log writes on a thread
