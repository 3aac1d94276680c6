"""Dynamo: its frontend with KV routing, before its mocker, which computes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
import urllib.request
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.peers.baton_arm import by_http
from benchmarks.peers.loads import Arm

HERE = Path(__file__).parent.parent.parent
ENVIRONMENT = HERE / ".venv-peers" / "dynamo"
LOCK = HERE / "requirements" / "peers" / "dynamo.lock"
PLANES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
START_S = 120.0
NAME = "demo"


class NotInstalled(Exception):
    """A peer that this machine cannot have."""


async def install() -> None:
    """Make Dynamo's environment if it is not there; raise `NotInstalled` if that fails."""
    ready = ENVIRONMENT / ".ready"
    if ready.exists():
        return
    print("Setting up .venv-peers/dynamo", file=sys.stderr)
    for command in (
        (sys.executable, "-m", "venv", str(ENVIRONMENT)),
        (str(ENVIRONMENT / "bin" / "pip"), "install", "--no-deps", "--require-hashes", "-r", str(LOCK)),
    ):
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await process.communicate()
        if process.returncode:
            raise NotInstalled(f"Dynamo cannot be installed: {errors.decode().strip().splitlines()[-1]}")
    ready.touch()


@asynccontextmanager
async def dynamo(model: Path) -> AsyncIterator[Arm]:
    """Run a frontend and a mocker with one worker, which take the model's tokenizer."""
    await install()
    with tempfile.TemporaryDirectory(prefix="dynamo-") as folder:
        async with AsyncExitStack() as stack:
            address = f"127.0.0.1:{_free_port()}"
            frontend = await stack.enter_async_context(
                _running(Path(folder), "frontend", "--router-mode", "kv", "--http-host", "127.0.0.1",
                         "--http-port", address.rpartition(":")[2])
            )  # fmt: skip
            mocker = await stack.enter_async_context(
                _running(Path(folder), "mocker", "--model-path", str(model), "--model-name", NAME)
            )
            async with asyncio.timeout(START_S):
                while not await asyncio.to_thread(_serves, address):
                    for process, name in ((frontend, "frontend"), (mocker, "mocker")):
                        if process.returncode is not None:
                            log = (Path(folder) / f"{name}.log").read_text(encoding="utf-8")
                            raise NotInstalled(f"Dynamo's {name} ended: {log[-500:]}")
                    await asyncio.sleep(0.2)
            yield Arm("Dynamo", {"frontend": frontend.pid}, partial(by_http, address, NAME))


@asynccontextmanager
async def _running(folder: Path, module: str, *arguments: str) -> AsyncIterator[Process]:
    command = (str(ENVIRONMENT / "bin" / "python"), "-m", f"dynamo.{module}", *PLANES, *arguments)
    environment = os.environ | {"DYN_FILE_KV": str(folder / "discovery"), "HF_HUB_OFFLINE": "1"}
    with (folder / f"{module}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _serves(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v1/models", timeout=2) as response:
            return bool(json.load(response)["data"])
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
