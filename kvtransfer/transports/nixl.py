"""Blocks of a process anywhere that NIXL reaches: over RDMA, or over TCP and shared memory without it.

The receiver reads straight from the sender's registered memory, without the sender's interpreter. The
manifest names the sender's agent, as NIXL packs it, and the address of its pool.

NIXL is optional: see `make test-nixl`. It neither encrypts nor authenticates, so a fleet with certificates
uses it only with `--transport nixl`.
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
"""NIXL offers nothing to wait on; a batch takes hundreds of microseconds."""
_MEMORY, _DEVICE = "DRAM", 0


def is_installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


class NixlAgent:
    """This process as NIXL knows it, under a unique name, with one pool registered.

    Raises TransportUnavailableError if NIXL is missing or cannot start.
    """

    def __init__(self, name: str, pool: BlockPool) -> None:
        address = int(np.frombuffer(pool.block_bytes_view(0), dtype=np.uint8).ctypes.data)
        try:
            api = importlib.import_module(f"{PACKAGE}._api")
            # NIXL logs to stdout, which the launcher reads for the worker's own lines.
            logging.getLogger("nixl").setLevel(logging.WARNING)
            self.api: Any = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
            regions = [(address, pool.num_blocks * pool.block_bytes, _DEVICE, "")]
            self._registered = self.api.register_memory(regions, mem_type=_MEMORY)
        except Exception as error:  # NIXL's own errors have no type in common
            raise TransportUnavailableError("nixl", "this process", str(error)) from error
        self.pool = pool
        self.address = address
        self.readers: Counter[str] = Counter()
        """Number of readers by sender: the sender is removed from the agent when the last one closes."""

    def describe(self) -> NixlPool:
        """Describe the pool for receivers."""
        return NixlPool(self.api.get_agent_metadata(), self.address, self.pool.num_blocks)

    def close(self) -> None:
        """Deregister the pool; nothing may read from it or into it any more."""
        self.api.deregister_memory(self._registered)


class NixlReader:
    """The receiver's end: reads into the pool of `agent` on a thread, all blocks of a batch at once.

    `on_lost` is called when a read fails: NIXL does not restore a broken connection.
    """

    transport = "nixl"

    def __init__(
        self, agent: NixlAgent, source: NixlPool, executor: Executor, on_lost: Callable[[], None]
    ) -> None:
        self._agent = agent
        self._source = source
        self._executor = executor
        self._on_lost = on_lost
        try:
            name = agent.api.add_remote_agent(source.agent)
        except Exception as error:  # NIXL's own errors have no type in common
            raise TransportUnavailableError("nixl", "the sender", str(error)) from error
        self._name = name.decode() if isinstance(name, bytes) else str(name)
        agent.readers[self._name] += 1

    async def read(self, fence: Fence, copies: Sequence[BlockCopy]) -> None:
        check_places(copies, self._source.num_blocks)
        try:
            await run_to_end(self._executor, lambda stop: self._read(copies, stop))
        except PeerLostError:
            self._on_lost()
            raise

    async def close(self) -> None:
        """Close the reader; no `read` may be running."""
        self._agent.readers[self._name] -= 1
        if not self._agent.readers[self._name]:
            with contextlib.suppress(Exception):  # the sender may be gone: nothing is kept of it either way
                self._agent.api.remove_remote_agent(self._name)

    def _read(self, copies: Sequence[BlockCopy], stop: threading.Event) -> None:
        """Read, and return when nothing is written any more: a transfer under way is not stopped."""
        if stop.is_set():
            return
        try:
            state = self._transfer(copies)
        except Exception as error:  # NIXL's own errors have no type in common
            raise PeerLostError(self._name, str(error)) from error
        if state != "DONE":
            raise PeerLostError(self._name, f"a read ended as {state}")

    def _transfer(self, copies: Sequence[BlockCopy]) -> str:
        """Transfer the blocks; return NIXL's name for how it ended."""
        api, size = self._agent.api, self._agent.pool.block_bytes
        local: list[tuple[int, int, int]] = []
        remote: list[tuple[int, int, int]] = []
        for target, source, length in runs(copies):
            local.append((self._agent.address + target * size, length * size, _DEVICE))
            remote.append((self._source.address + source * size, length * size, _DEVICE))
        ours, theirs = (api.get_xfer_descs(regions, mem_type=_MEMORY) for regions in (local, remote))
        handle = api.initialize_xfer("READ", ours, theirs, self._name)
        try:
            state: str = api.transfer(handle)
            while state == "PROC":
                time.sleep(POLL_S)
                state = api.check_xfer_state(handle)
            return state
        finally:
            api.release_xfer_handle(handle)
