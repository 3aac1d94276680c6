"""Blocks of a process anywhere that NIXL reaches: over RDMA, or over TCP and shared memory without it.

The receiver reads straight from the sender's registered memory; the sender's interpreter has no part in it.
A sender's manifest says whom to read from: its agent, as NIXL packs it, and where its pool begins.

NIXL is optional: see `make test-nixl`. It neither encrypts nor asks who reads, so a fleet with certificates
does not take to it by itself (`worker/handoff/nixl.py`).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from kvtransfer.errors import PeerLostError, TransportUnavailableError
from kvtransfer.manifest import NixlPool
from kvtransfer.pools.pool import BlockPool
from kvtransfer.receiver_handoff import BlockCopy
from kvtransfer.threads import run_to_end
from kvtransfer.transports.transport import check_places, runs
from scheduling.request import Fence

PACKAGE = "nixl_cu13"
POLL_S = 20e-6
"""NIXL has nothing to wait on; a batch takes hundreds of microseconds."""
_MEMORY, _DEVICE = "DRAM", 0


def is_installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


class NixlAgent:
    """This process as NIXL knows it, under a name that no other agent has, with one pool registered.

    Raises TransportUnavailableError where NIXL is missing or cannot start.
    """

    def __init__(self, name: str, pool: BlockPool) -> None:
        address = int(np.frombuffer(pool.block_bytes_view(0), dtype=np.uint8).ctypes.data)
        try:
            api = importlib.import_module(f"{PACKAGE}._api")
            # It logs to stdout, where whoever starts a worker waits for what the worker says.
            logging.getLogger("nixl").setLevel(logging.WARNING)
            self.api: Any = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
            regions = [(address, pool.num_blocks * pool.block_bytes, _DEVICE, "")]
            self._registered = self.api.register_memory(regions, mem_type=_MEMORY)
        except Exception as error:  # NIXL's own errors have no type in common
            raise TransportUnavailableError("nixl", "this process", str(error)) from error
        self.pool = pool
        self.address = address
        self.readers: Counter[str] = Counter()
        """How many there are of each sender: it is known until the last has closed."""

    def describe(self) -> NixlPool:
        """What a receiver needs to read from the pool."""
        return NixlPool(self.api.get_agent_metadata(), self.address, self.pool.num_blocks)

    def close(self) -> None:
        """When nobody reads from the pool or into it any more."""
        self.api.deregister_memory(self._registered)


class NixlReader:
    """The receiver's end: reads into the pool of `agent` on a thread, all blocks of a batch at once.

    `on_lost` is called when a read fails: NIXL gives a connection that broke up for good.
    """

    transport = "nixl"

    def __init__(
        self, agent: NixlAgent, source: NixlPool, executor: Executor, on_lost: Callable[[], None]
    ) -> None:
        self._agent = agent
        self._source = source
        self._executor = executor
        self._on_lost = on_lost
        self._name = _introduce(agent, source)
        agent.readers[self._name] += 1

    async def read(self, fence: Fence, copies: Sequence[BlockCopy]) -> None:
        check_places(copies, self._source.num_blocks)
        try:
            await run_to_end(self._executor, lambda stop: self._read(copies, stop))
        except PeerLostError:
            self._on_lost()
            raise

    async def close(self) -> None:
        """Not while a `read` runs."""
        self._agent.readers[self._name] -= 1
        if not self._agent.readers[self._name]:
            with contextlib.suppress(Exception):  # it may be gone: nothing is kept of it either way
                self._agent.api.remove_remote_agent(self._name)

    def _read(self, copies: Sequence[BlockCopy], stop: threading.Event) -> None:
        """Returns when nothing is written any more: a read under way is not taken back."""
        if stop.is_set():
            return
        try:
            state = self._transfer(copies)
        except Exception as error:  # NIXL's own errors have no type in common
            raise PeerLostError(self._name, str(error)) from error
        if state != "DONE":
            raise PeerLostError(self._name, f"a read ended as {state}")

    def _transfer(self, copies: Sequence[BlockCopy]) -> str:
        """How it ended, as NIXL says it."""
        api, size = self._agent.api, self._agent.pool.block_bytes
        local: list[tuple[int, int, int]] = []
        remote: list[tuple[int, int, int]] = []
        for target, source, length in runs(copies):
            local.append((self._agent.address + target * size, length * size, _DEVICE))
            remote.append((self._source.address + source * size, length * size, _DEVICE))
        ours, theirs = (api.get_xfer_descs(one, mem_type=_MEMORY) for one in (local, remote))
        handle = api.initialize_xfer("READ", ours, theirs, self._name)
        try:
            state: str = api.transfer(handle)
            while state == "PROC":
                time.sleep(POLL_S)
                state = api.check_xfer_state(handle)
            return state
        finally:
            api.release_xfer_handle(handle)


def _introduce(agent: NixlAgent, source: NixlPool) -> str:
    """The name under which `agent` knows the sender from now on."""
    try:
        name = agent.api.add_remote_agent(source.agent)
    except Exception as error:  # NIXL's own errors have no type in common
        raise TransportUnavailableError("nixl", "the sender", str(error)) from error
    return name.decode() if isinstance(name, bytes) else str(name)
