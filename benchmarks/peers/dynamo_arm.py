"""Dynamo: its frontend with KV routing, before its mocker, which computes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import urllib.request
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.doors.arms import Arm
from benchmarks.peers.baton_arm import by_http
from benchmarks.peers.environments import NotInstalled, installed

PLANES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
START_S = 120.0
NAME = "demo"


@dataclass(frozen=True, slots=True)
class Dynamo:
    """A running frontend, and its workers."""

    address: str
    frontend: Process
    workers: tuple[Process, ...]


@asynccontextmanager
async def dynamo(model: Path) -> AsyncIterator[Arm]:
    """Run a frontend and one worker, and return the way to ask them."""
    async with running(model, num_workers=1) as deployment:
        yield Arm(
            "Dynamo",
            {"frontend": deployment.frontend.pid},
            partial(by_http, deployment.address, {"model": NAME}),
        )


@asynccontextmanager
async def running(
    model: Path, num_workers: int, *flags: str, worker_flags: Sequence[str] = ()
) -> AsyncIterator[Dynamo]:
    """Run a frontend with these flags and mockers, one worker each, which take the model's tokenizer.

    Raises `NotInstalled` if Dynamo cannot be installed, or one of its processes ends.
    """
    programs = await installed("dynamo")
    with tempfile.TemporaryDirectory(prefix="dynamo-") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            address = f"127.0.0.1:{_free_port()}"
            port = address.rpartition(":")[2]
            kinds = {
                "frontend": ("--router-mode", "kv", "--http-host", "127.0.0.1", "--http-port", port, *flags)
            }
            for index in range(num_workers):
                kinds[f"mocker-{index}"] = ("--model-path", str(model), "--model-name", NAME, *worker_flags)
            started = {
                log: await stack.enter_async_context(_running(programs, folder, log, *arguments))
                for log, arguments in kinds.items()
            }
            async with asyncio.timeout(START_S):
                while await asyncio.to_thread(_num_served, address) < num_workers:
                    for log, process in started.items():
                        if process.returncode is not None:
                            output = (folder / f"{log}.log").read_text(encoding="utf-8")
                            raise NotInstalled(f"Dynamo's {log} ended: {output[-500:]}")
                    await asyncio.sleep(0.2)
            frontend, *workers = started.values()
            yield Dynamo(address, frontend, tuple(workers))


@asynccontextmanager
async def _running(programs: Path, folder: Path, name: str, *arguments: str) -> AsyncIterator[Process]:
    module = name.partition("-")[0]
    command = (str(programs / "python"), "-m", f"dynamo.{module}", *PLANES, *arguments)
    environment = os.environ | {"DYN_FILE_KV": str(folder / "discovery"), "HF_HUB_OFFLINE": "1"}
    with (folder / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _num_served(address: str) -> int:
    """Return the number of workers to which the frontend routes."""
    try:
        with urllib.request.urlopen(f"http://{address}/v1/models", timeout=2) as response:
            has_model = bool(json.load(response)["data"])
        with urllib.request.urlopen(f"http://{address}/health", timeout=2) as response:
            instances = json.load(response)["instances"]
    except OSError:
        return 0
    return sum(instance["endpoint"] == "generate" for instance in instances) if has_model else 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
