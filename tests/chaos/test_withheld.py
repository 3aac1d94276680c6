"""Memory and descriptors are withheld from a process, and a process is forked instead of executed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from baton.fleet.processes.process import ManagedProcess, ProcessSpec
from baton.fleet.processes.reaper import Reaper
from tests.chaos.arena import CHECKOUT
from tests.chaos.limits import Limit, Recording
from tests.chaos.plan import Kind
from tests.forked import Zygote
from tests.patience import PATIENCE_S

TRIES = """
import sys
for line in sys.stdin:
    try:
        if line == "memory\\n":
            bytearray(1 << 26)
        elif line == "files\\n":
            open("/dev/null").close()
        else:
            with open(sys.argv[1], "wb", buffering=0) as file:
                file.write(b"x")
        print("had", flush=True)
    except (OSError, MemoryError) as error:
        print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize(
    ("kind", "what", "error"),
    [
        (Kind.NO_MEMORY, "memory", "MemoryError"),
        (Kind.NO_FILES, "files", "OSError"),
        (Kind.DISK_FULL, "disk", "OSError"),
    ],
)
def test_what_is_withheld_is_missing_until_it_is_given_back(
    kind: Kind, what: str, error: str, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TRIES, str(tmp_path / "file")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def tried() -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert tried() == "had"
        limit = Limit(process.pid, kind)
        assert tried() == error
        limit.lift()
        assert tried() == "had"
        process.stdin.close()


@pytest.mark.parametrize("is_reaped", [False, True])
def test_nothing_is_withheld_from_what_has_died_of_something_else(is_reaped: bool) -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if is_reaped:
            process.wait()
        with pytest.raises(ProcessLookupError):
            Limit(process.pid, Kind.NO_FILES)


async def test_a_recording_that_nobody_reads_becomes_full(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    recording = Recording(path)
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    recording.block()
    assert not recording.release(), "nothing was written"
    recording.block()
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    assert recording.release()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                os.write(writer, bytes(4096))
                break
            except BlockingIOError:
                await asyncio.sleep(0.01)
    os.close(writer)
    recording.close()


async def test_a_forked_service_behaves_like_an_executed_one(tmp_path: Path) -> None:
    reaper = Reaper()
    spec = ProcessSpec("router", (sys.executable, "-m", "router", "--listen", "nowhere"), CHECKOUT)

    async def outcome(process: ManagedProcess) -> tuple[int, str]:
        await process.start()
        code = await process.wait()
        await process.close()
        return code, process.log_tail()

    with Zygote(CHECKOUT, tmp_path / "zygote.log") as zygote:
        executed = await outcome(ManagedProcess(spec, tmp_path / "executed.log", reaper))
        forked = await outcome(zygote.process(spec, tmp_path / "forked.log", reaper))
        assert forked == executed
        assert forked[0] == 2
        waits = ProcessSpec(
            "decode", (sys.executable, "-m", "decode_worker", "--redis", "unix:///nowhere"), CHECKOUT
        )
        killed = zygote.process(waits, tmp_path / "killed.log", reaper)
        await killed.start()
        killed.kill()
        assert await killed.wait() == -signal.SIGKILL
        await killed.close()
    await asyncio.to_thread(reaper.close)
