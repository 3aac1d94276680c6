"""Services of a fleet as children of a zygote instead of programs that import everything anew."""

from __future__ import annotations

import asyncio
import functools
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import pytest

from baton.fleet import ManagedProcess
from baton.fleet.processes.process import Child, ProcessSpec
from baton.fleet.processes.reaper import Reaper
from tests.zygote import Order

ROOT = Path(__file__).resolve().parents[1]


class Zygote:
    """A zygote for as long as the block lasts; `process` is a fleet's `make_process`."""

    def __init__(self, cwd: Path, log: Path) -> None:
        self._cwd, self._log = cwd, log

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.zygote", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stderr=log,
                cwd=self._cwd,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()
        self._process.wait()

    def process(self, spec: ProcessSpec, log_path: Path, reaper: Reaper) -> ManagedProcess:
        """Return a process that will be forked if it is a Python module, like all services but Redis."""
        if spec.command[1:2] != ("-m",):
            return ManagedProcess(spec, log_path, reaper)
        return _Forked(spec, log_path, reaper, self._control)

    def fork(self, order: Order, stderr: IO[bytes]) -> ForkedProcess:
        """Start a process whose stdin and stdout are pipes, as `subprocess.Popen` would."""
        return ForkedProcess(order, stderr, self._control)


_SHARED = ExitStack()


@functools.cache
def shared_zygote() -> Zygote:
    """Return the one zygote for all tests of a process: its imports cost as much as a whole start."""
    folder = _SHARED.enter_context(tempfile.TemporaryDirectory(prefix="baton-zygote-"))
    return _SHARED.enter_context(Zygote(ROOT, Path(folder) / "log"))


@pytest.fixture(scope="session")
def zygote() -> Zygote:
    return shared_zygote()


def pytest_sessionfinish() -> None:
    """End what it has forked, too."""
    _SHARED.close()


class _Forked(ManagedProcess):
    def __init__(self, spec: ProcessSpec, log_path: Path, reaper: Reaper, control: socket.socket) -> None:
        super().__init__(spec, log_path, reaper)
        self._control = control

    async def _launch(self, stdout: int, stderr: IO[bytes], register: int) -> Child:
        _, _, module, *arguments = self.spec.command
        order = Order(module, tuple(arguments), str(self.spec.cwd), dict(self.spec.environment))
        tells, told = os.pipe()
        try:
            with Path(os.devnull).open("rb") as stdin:
                order.send(self._control, (stdin.fileno(), stdout, stderr.fileno(), register, told))
        finally:
            os.close(told)
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(tells, "rb", buffering=0)
        )
        return _Child(int(await reader.readline()), reader, transport)


class _Child:
    def __init__(self, pid: int, reader: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self.pid = pid
        self._reader = reader
        self._transport = transport

    async def wait(self) -> int:
        code = int(await self._reader.readline())
        self._transport.close()  # the loop may end before the zygote closes its end
        return code


class ForkedProcess:
    """The part of `subprocess.Popen` that tests use, for a child of a zygote."""

    def __init__(self, order: Order, stderr: IO[bytes], control: socket.socket) -> None:
        self.returncode: int | None = None
        stdin, writes = os.pipe()
        reads, stdout = os.pipe()
        tells, told = os.pipe()
        self.stdin = os.fdopen(writes, "wb", buffering=0)
        self.stdout = os.fdopen(reads, "rb")
        self._status = os.fdopen(tells, "rb", buffering=0)
        with Path(os.devnull).open("wb") as register:
            order.send(control, (stdin, stdout, stderr.fileno(), register.fileno(), told))
        for fd in (stdin, stdout, told):
            os.close(fd)
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        """Return the exit code if the process has ended."""
        # Not select.select(), which takes no descriptor above 1023: pools of other tests may hold as many.
        status = select.poll()
        if self.returncode is None:
            status.register(self._status, select.POLLIN)
            if status.poll(0):
                self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        if self.returncode is None:
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill the process if it still runs, and close the pipes."""
        self.kill()
        self.wait()
        self.stdin.close()
        self.stdout.close()
