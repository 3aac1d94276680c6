"""Environments of their own for programs that Baton does not depend on.

They are in `.venv-peers`, and `deploy/requirements/peers` pins what they hold.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

HERE = Path(__file__).parent.parent.parent


class NotInstalled(Exception):
    """A program that this machine cannot have."""


async def installed(name: str) -> Path:
    """Return an environment's folder of programs; make it if it is not there.

    Raises `NotInstalled` if that fails.
    """
    folder, lock = HERE / ".venv-peers" / name, HERE / "deploy" / "requirements" / "peers" / f"{name}.lock"
    programs, ready = folder / "bin", folder / ".ready"
    if ready.exists():
        return programs
    print(f"Setting up .venv-peers/{name}", file=sys.stderr)
    for command in (
        (sys.executable, "-m", "venv", str(folder)),
        (str(programs / "pip"), "install", "--no-deps", "--require-hashes", "-r", str(lock)),
    ):
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        if process.returncode:
            *_, why = ["it failed without a word", *output.decode().strip().splitlines()]
            raise NotInstalled(f"{name} cannot be installed: {why}")
    ready.touch()
    return programs
