"""An engine in a process of its own, and what all engines are started with."""

from __future__ import annotations

import asyncio
import json
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu.engines.loads import Load, Played

CHECKOUT = Path(__file__).parents[3]


class NotMeasured(Exception):
    """An engine that this machine does not have; the text says how to get it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that all engines share."""

    model: Path
    dtype: str
    threads: int
    token_budget: int
    """Most tokens of a step, for engines that split prompts."""


@dataclass(frozen=True, slots=True)
class ProcessEngine:
    """An engine that plays one load at a time."""

    name: str
    process: Process
    log: Path

    async def play(self, load: Load, prompts: Sequence[Sequence[int]]) -> Played:
        output = load.longest_output
        request = {"prompts": prompts, "output_tokens": output, "num_steps": load.num_steps}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        await self.process.stdin.drain()
        return Played(**await self.reply())

    async def reply(self) -> dict[str, Any]:
        """Return the next reply. Raises NotMeasured, with the end of the log, if the process has ended."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            ended = self.log.read_text(encoding="utf-8", errors="replace").strip()[-500:]
            raise NotMeasured(f"the process of {self.name} ended: {ended}")
        reply: dict[str, Any] = json.loads(line)
        return reply


@asynccontextmanager
async def running(name: str, *command: str) -> AsyncIterator[ProcessEngine]:
    """Run an engine's process while the block lasts. Raises NotMeasured if it ends before it is ready."""
    with tempfile.TemporaryDirectory(prefix="cpu-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=CHECKOUT, stdin=PIPE, stdout=PIPE, stderr=errors
            )
        try:
            engine = ProcessEngine(name, process, log)
            await engine.reply()
            yield engine
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
