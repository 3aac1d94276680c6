"""Sample what a router or a gateway does, and say to which part of a request's path each sample belongs.

py-spy looks many times a second for the thread that holds the interpreter's lock, and reads its stack. What
an extension does meanwhile counts as the Python function that called it. gRPC has threads of its own; the
operating system says how long they ran. All other processor time is shared out by the samples.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.doors.observe import memory_and_cpu
from benchmarks.peers.environments import NotInstalled, installed

SAMPLES_PER_S = 250
START_S = 60.0

PARTS: dict[str, tuple[str, ...]] = {
    "calls to Redis": ("(/runtime/state/", "(/router/links/store_calls.py", "/site-packages/redis/"),
    "commands to workers": ("_write (/router/links/worker_link.py", "(/router/links/discovery.py"),
    "reports of workers": ("(/router/links/worker_link.py",),
    "tokenising": ("(/router/intake/helpers/", "/multiprocessing/"),
    "events to clients": (
        *("_write (/router/api/", "_relay (/router/links/shell.py", "(/router/links/client_stream.py"),
        *("_rows (/router/api/many_call.py", "_move (/router/api/many_call.py"),
    ),
    "requests of clients": (
        *("(/router/api/service.py", "(/router/api/many_call.py", "(/router/api/error_interceptor.py"),
        *("(/router/auth/", "(/router/intake/", "(/scheduling/memory/block_hash.py"),
        "(/runtime/rpc/handlers.py",
    ),
    "decisions": ("(/router/core/", "(/scheduling/"),
    "decisions carried out": ("(/router/links/shell.py",),
    "metrics": ("(/router/links/metrics.py", "/prometheus_client/"),
    "tokens to HTTP callers": ("(/gateway/serving/direct.py", "write_now (/gateway/serving/streaming.py"),
    "messages of routers": (
        *("_read (/baton/wire/many.py", "_hear (/baton/wire/many.py", "(/baton/wire/rows.py"),
        "(/baton/stream.py",
    ),
    "HTTP requests": ("(/gateway/", "/uvicorn/", "/starlette/", "/fastapi/", "/pydantic"),
    "requests to routers": ("(/baton/",),
}
"""Each part of the path, and texts of which its frames have one. A sample belongs to the part of its
innermost frame that has a part; a frame to the first of its parts. Conversions have none: they belong to what
calls them.
"""
GRPC = "gRPC outside of these"
ELSE = "event loop, and what it calls of gRPC"
NATIVE = "gRPC's own threads"


@dataclass(frozen=True, slots=True)
class Stack:
    """Frames as `function (file)`, the outermost first, and how often they were seen."""

    frames: tuple[str, ...]
    count: int


@dataclass(slots=True)
class Profile:
    """Samples of a process, and its processor time."""

    stacks: list[Stack] = field(default_factory=list)
    cpu_s: float = 0.0
    """Processor time of all threads."""
    native_cpu_s: float = 0.0
    """The same of threads that are gRPC's own, which have a name of their own."""
    num_units: int = 0
    """The tokens or requests for which this was done."""

    def add(self, other: Profile) -> None:
        """Add another profile of the same load."""
        self.stacks += other.stacks
        self.cpu_s += other.cpu_s
        self.native_cpu_s += other.native_cpu_s
        self.num_units += other.num_units

    def parts(self) -> dict[str, float]:
        """Return the share of the processor time that each part has, the largest first."""
        counts: Counter[str] = Counter()
        for stack in self.stacks:
            counts[part_of(stack.frames)] += stack.count
        native = self.native_cpu_s / self.cpu_s
        shares = {part: (1 - native) * count / counts.total() for part, count in counts.items()}
        shares[NATIVE] = native
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def leaves(self, number: int) -> dict[str, float]:
        """Return the functions in which most samples are, with their share of the samples."""
        counts: Counter[str] = Counter()
        for stack in self.stacks:
            counts[stack.frames[-1]] += stack.count
        return {frame: count / counts.total() for frame, count in counts.most_common(number)}

    @property
    def num_samples(self) -> int:
        return sum(stack.count for stack in self.stacks)

    def as_dict(self) -> dict[str, object]:
        """Return the profile for JSON, with equal stacks as one, frames between semicolons."""
        counts: Counter[str] = Counter()
        for stack in self.stacks:
            counts[";".join(stack.frames)] += stack.count
        return {
            "cpu_s": self.cpu_s,
            "native_cpu_s": self.native_cpu_s,
            "num_units": self.num_units,
            "stacks": counts,
        }


def part_of(frames: Sequence[str]) -> str:
    """Return the part of the path that a stack belongs to."""
    for frame in reversed(frames):
        for part, texts in PARTS.items():
            if any(text in frame for text in texts):
                return part
    return GRPC if any("grpc" in frame for frame in frames) else ELSE


def parsed(raw: str, root: Path) -> list[Stack]:
    """Parse what py-spy wrote; files below `root` are named from there."""
    stacks = []
    for line in raw.splitlines():
        frames, _, count = line.rpartition(" ")
        frame_names = (frame.replace(f"({root}/", "(/") for frame in frames.split(";"))
        stacks.append(Stack(tuple(frame_names), int(count)))
    return stacks


@asynccontextmanager
async def profiled(pid: int, root: Path) -> AsyncIterator[Profile]:
    """Sample a process while the block lasts; the profile is complete after it.

    Raises `NotInstalled` if py-spy cannot be installed, or must not look into the process.
    """
    program, profile = await installed("py-spy") / "py-spy", Profile()
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        raw = Path(folder) / "raw"
        process = await asyncio.create_subprocess_exec(
            *(str(program), "record", "--pid", str(pid), "--rate", str(SAMPLES_PER_S), "--gil"),
            *("--nolineno", "--full-filenames", "--format", "raw", "--output", str(raw)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            await _begun(process)
            before_s, before = memory_and_cpu(pid)[1], _own_threads(pid)
            yield profile
            profile.cpu_s = memory_and_cpu(pid)[1] - before_s
            own = _own_threads(pid)
            profile.native_cpu_s = sum(used_s - before.get(thread, 0.0) for thread, used_s in own.items())
            process.send_signal(signal.SIGINT)
            await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        profile.stacks = parsed(raw.read_text(encoding="utf-8"), root)


async def _begun(process: asyncio.subprocess.Process) -> None:
    """Wait until py-spy says that it samples."""
    assert process.stdout is not None, "it is a pipe"
    output = b""
    async with asyncio.timeout(START_S):
        while b"Sampling process" not in output:
            piece = await process.stdout.readline()
            if not piece:
                raise NotInstalled(f"py-spy cannot look into the process: {output.decode().strip()[-300:]}")
            output += piece


def _own_threads(pid: int) -> dict[int, float]:
    """Return the processor time of each thread that an extension has named; Python's have the main one's."""
    cpu_s: dict[int, float] = {}
    tasks = Path(f"/proc/{pid}/task")
    python = (tasks / str(pid) / "comm").read_text(encoding="utf-8")
    for folder in tasks.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            if (folder / "comm").read_text(encoding="utf-8") != python:
                fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                ticks = int(fields[11]) + int(fields[12])
                cpu_s[int(folder.name)] = ticks / os.sysconf("SC_CLK_TCK")
    return cpu_s
