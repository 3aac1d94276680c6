"""The files that a chat touches in the processes of a live fleet, from its arrival to its last token.

Every process of a fleet of the demo model is started with `hook/` on its path, which records the functions
that are called while a switch is on: once while nobody asks for anything, and once during a chat of a few
tokens. A file belongs to the chat if the chat called a function of it that the idle fleet did not call. A
chat was served before, so what is loaded and built once does not count.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import httpx

from baton import AsyncClient, Chat, ChatMessage, Stop
from baton.fleet import Fleet, FleetSpec
from tools.house.source_tree import ROOT, product

DEMO_MODEL = ROOT / "demo_model"
HOOK = Path(__file__).parent / "hook"
IDLE_S = 3.0
"""Longer than any period in which an idle fleet does something."""
WRITTEN_S = 30.0
SETTLES_S = 0.5
"""The processes look for the switch much more often than this; and what follows a chat is part of it."""

Calls = dict[str, set[tuple[str, str]]]
"""Functions, as file and name, by the kind of process that called them."""


def files_of_a_chat() -> dict[str, dict[str, set[str]]]:
    """Return the files of a chat over gRPC and over HTTP, by kind of process."""
    return asyncio.run(_trace())


async def _trace() -> dict[str, dict[str, set[str]]]:
    with tempfile.TemporaryDirectory(prefix="baton-calls-") as name:
        folder = Path(name)
        spec = FleetSpec(
            model=DEMO_MODEL,
            gateways=1,
            environment={"BATON_CALLS": name, "PYTHONPATH": f"{HOOK}:{ROOT}"},
        )
        async with (
            Fleet(spec) as fleet,
            AsyncClient(fleet.router_addresses) as client,
            httpx.AsyncClient(base_url=fleet.gateway_urls[0], timeout=60) as http,
        ):

            async def over_grpc() -> None:
                chat = Chat([ChatMessage("user", "Hello")])
                async for _ in client.generate(chat, stop=Stop(max_tokens=8)):
                    pass

            async def over_http() -> None:
                body = {
                    "model": "demo_model",
                    "messages": [{"role": "user", "content": "Hello"}],
                    "max_tokens": 8,
                    "stream": True,
                }
                async with http.stream("POST", "/v1/chat/completions", json=body) as response:
                    response.raise_for_status()
                    async for _ in response.aiter_lines():
                        pass

            await over_grpc()
            await over_http()
            idle = await _recorded(folder, lambda: asyncio.sleep(IDLE_S))
            return {
                way: _files(await _recorded(folder, ask), idle)
                for way, ask in (("gRPC", over_grpc), ("HTTP", over_http))
            }


async def _recorded(folder: Path, work: Callable[[], Awaitable[None]]) -> Calls:
    """Return what all processes call during the work, and shortly after."""
    _switch_on(folder)
    await asyncio.sleep(SETTLES_S)
    await work()
    await asyncio.sleep(SETTLES_S)
    _switch_off(folder)
    num_before = 0
    async with asyncio.timeout(WRITTEN_S):
        while num_before == 0 or len(_written(folder)) != num_before:
            num_before = len(_written(folder))
            await asyncio.sleep(SETTLES_S)
    return _calls(_written(folder))


def _switch_on(folder: Path) -> None:
    for old in _written(folder):
        old.unlink()
    (folder / "on").touch()


def _switch_off(folder: Path) -> None:
    (folder / "on").unlink()


def _written(folder: Path) -> list[Path]:
    return list(folder.glob("*.txt"))


def _calls(paths: Sequence[Path]) -> Calls:
    calls: Calls = {}
    own = {str(path) for path in product()}
    for path in paths:
        command, *lines = path.read_text().split("\n")
        kind = re.search(r"-m (\w+)", command)
        pairs = {(file, name) for file, _, name in (line.partition("\t") for line in lines) if file in own}
        calls.setdefault(kind[1] if kind else "other", set()).update(pairs)
    return calls


def _files(calls: Calls, idle: Calls) -> dict[str, set[str]]:
    return {
        kind: {str(Path(file).relative_to(ROOT)) for file, _ in functions - idle.get(kind, set())}
        for kind, functions in calls.items()
    }


def main() -> None:
    """Print how many files each kind of process uses for a chat."""
    for way, by_kind in files_of_a_chat().items():
        everywhere = set[str]().union(*by_kind.values())
        counts = ", ".join(f"{kind} {len(files)}" for kind, files in sorted(by_kind.items()) if files)
        print(f"A chat over {way} touches {len(everywhere)} files: {counts}")


if __name__ == "__main__":
    main()
