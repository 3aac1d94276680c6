"""Services of a fleet as children of a zygote instead of programs that import everything anew."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from baton.fleet import ManagedProcess
from baton.fleet.processes.process import Child, ProcessSpec
from baton.fleet.processes.reaper import Reaper
from tests.chaos.zygote import Order


class Zygote:
    """A zygote for as long as the block lasts; `process` is a fleet's `make_process`."""

    def __init__(self, cwd: Path, log: Path) -> None:
        self._cwd, self._log = cwd, log

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.zygote", str(theirs.fileno())],
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
        """One that will be forked."""
        return _Forked(spec, log_path, reaper, self._control)


class _Forked(ManagedProcess):
    def __init__(self, spec: ProcessSpec, log_path: Path, reaper: Reaper, control: socket.socket) -> None:
        super().__init__(spec, log_path, reaper)
        self._control = control

    async def _launch(self, stdout: int, stderr: IO[bytes], register: int) -> Child:
        _, dash_m, module, *arguments = self.spec.command
        assert dash_m == "-m", "services are modules"
        order = Order(module, tuple(arguments), str(self.spec.cwd), dict(self.spec.environment))
        tells, told = os.pipe()
        try:
            order.send(self._control, (stdout, stderr.fileno(), register, told))
        finally:
            os.close(told)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(tells, "rb", buffering=0)
        )
        return _Child(int(await reader.readline()), reader)


class _Child:
    def __init__(self, pid: int, reader: asyncio.StreamReader) -> None:
        self.pid = pid
        self._reader = reader

    async def wait(self) -> int:
        return int(await self._reader.readline())
