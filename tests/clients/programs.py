"""Programs that others made, each in an environment of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from tools.house.source_tree import ROOT

ENVIRONMENTS = ROOT / ".venv-clients"


async def output_of(program: Path, *arguments: object, cwd: Path, environment: Mapping[str, str]) -> str:
    """Run a program to its end; return its output, which is a failure's message."""
    process = await asyncio.create_subprocess_exec(
        program,
        *map(str, arguments),
        cwd=cwd,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output
    return output
