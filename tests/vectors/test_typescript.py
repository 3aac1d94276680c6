"""The TypeScript SDK plays the vectors, in one process of Node.js."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from tests.clients.node import BIN, SDK
from tests.vectors.playing import Seen, Vector, play, vectors

pytestmark = [pytest.mark.node, pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        BIN / "node",
        "test/observe.ts",
        cwd=SDK,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    yield process
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 0


@pytest.mark.parametrize("multiplex", [False, True], ids=["alone", "multiplexed"])
@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector["name"])
async def test_a_vector(vector: Vector, node: asyncio.subprocess.Process, *, multiplex: bool) -> None:
    async def observe(vector: Vector, addresses: Sequence[str], saw: Seen) -> Any:
        assert node.stdin is not None
        assert node.stdout is not None
        client = {**vector.get("client", {}), "multiplex": multiplex}
        asked = {**vector, "client": client, "addresses": addresses}
        node.stdin.write(json.dumps(asked).encode() + b"\n")
        async for line in node.stdout:
            written = json.loads(line)
            if "outcome" in written:
                return written["outcome"]
            saw()
        raise EOFError("the process ended")

    await play(vector, observe)
