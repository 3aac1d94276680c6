"""The environment of commands: a client from the arguments, and an event loop that SIGTERM cancels."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from baton.async_client import AsyncClient
from baton.cli.target import target_of
from baton.client import Client
from baton.types import Timeout

T = TypeVar("T")
C = TypeVar("C", AsyncClient, Client)


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` like `asyncio.run`, and let SIGTERM cancel it like Ctrl-C."""

    async def watched() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    return asyncio.run(watched())


def client_of(kind: type[C], args: argparse.Namespace, total_s: float | None = None) -> C:
    """Return a client of the fleet that the arguments name."""
    target = target_of(args)
    return kind(
        target.addresses,
        tenant=args.tenant,
        model=args.model,
        credentials=target.credentials,
        timeout=Timeout(connect_s=args.connect_s, total_s=total_s),
    )
