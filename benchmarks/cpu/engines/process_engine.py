"""Engines in processes of their own: stock transformers, and OpenVINO GenAI if its environment is set up."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu.engines.loads import KV_TOKENS, Load, Played

CHECKOUT = Path(__file__).parents[3]
OPENVINO = CHECKOUT / ".venv-openvino"
EXPORTED = CHECKOUT / ".baton" / "openvino"
MODULES = "benchmarks.cpu.engines."


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
async def transformers(setting: Setting) -> AsyncIterator[ProcessEngine]:
    """Run stock transformers while the block lasts."""
    command = (sys.executable, "-m", f"{MODULES}transformers_process")
    arguments = (str(setting.model.resolve()), setting.dtype, str(setting.threads))
    async with _running("transformers", *command, *arguments) as arm:
        yield arm


@asynccontextmanager
async def openvino(setting: Setting) -> AsyncIterator[ProcessEngine]:
    """Run OpenVINO GenAI while the block lasts, on an export that is made if it is missing.

    Raises NotMeasured without its environment, or if it does not take the model.
    """
    if not (OPENVINO / ".ready").exists():
        raise NotMeasured(
            "OpenVINO GenAI is not measured; `make .venv-openvino/.ready` sets up its environment"
        )
    command = (str(OPENVINO / "bin" / "python"), "-m", f"{MODULES}openvino_process")
    exported = EXPORTED / _name_of(setting)
    if not exported.exists():
        await _export(command, setting, exported)
    numbers = (setting.threads, KV_TOKENS, setting.token_budget)
    arguments = ("serve", str(exported), setting.dtype, *map(str, numbers))
    async with _running("OpenVINO GenAI", *command, *arguments) as arm:
        yield arm


def _name_of(setting: Setting) -> str:
    """Return a name that changes with the files of the model."""
    digest = hashlib.sha256(str(setting.model.resolve()).encode())
    for path in sorted(setting.model.iterdir()):
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"{setting.model.resolve().name}-{setting.dtype}-{digest.hexdigest()[:12]}"


async def _export(command: Sequence[str], setting: Setting, target: Path) -> None:
    print(f"Exporting {setting.model.name} for OpenVINO in {setting.dtype}", file=sys.stderr)
    EXPORTED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=EXPORTED) as folder:
        arguments = ("export", str(setting.model.resolve()), f"{folder}/model", setting.dtype)
        process = await asyncio.create_subprocess_exec(
            *command, *arguments, cwd=CHECKOUT, stdout=asyncio.subprocess.DEVNULL, stderr=PIPE
        )
        _, errors = await process.communicate()
        if process.returncode:
            output = errors.decode(errors="replace").strip()[-500:]
            raise NotMeasured(f"OpenVINO GenAI is not measured; its export failed: {output}")
        shutil.move(f"{folder}/model", target)


@asynccontextmanager
async def _running(name: str, *command: str) -> AsyncIterator[ProcessEngine]:
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
