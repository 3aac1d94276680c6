"""NIXL's interface between two pools of one process: what is asked for is copied when it is looked after."""

import ctypes
import json
import threading
from collections import Counter

import numpy as np

from kvtransfer.pools.pool import BlockPool
from kvtransfer.transports.nixl import NixlAgent

Descriptors = list[tuple[int, int, int]]


class FakeApi:
    """A `nixl_agent`. A transfer ends when `polls` looks have been taken at it, in `end`."""

    def __init__(self, name: str, polls: int = 2, end: str = "DONE") -> None:
        self.name = name
        self.polls, self.end = polls, end
        self.known: set[str] = set()
        self.held = threading.Event()
        """No transfer ends before it is set."""
        self.held.set()
        self.num_descriptors = 0
        self.under_way: dict[int, tuple[Descriptors, Descriptors]] = {}

    def get_agent_metadata(self) -> bytes:
        return json.dumps(self.name).encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        name: str = json.loads(metadata)
        self.known.add(name)
        return name.encode()

    def remove_remote_agent(self, name: str) -> None:
        self.known.remove(name)

    def get_xfer_descs(self, regions: Descriptors, mem_type: str) -> Descriptors:
        assert mem_type == "DRAM"
        return regions

    def initialize_xfer(self, operation: str, local: Descriptors, remote: Descriptors, name: str) -> int:
        assert operation == "READ"
        assert name in self.known
        handle = len(self.under_way)
        self.under_way[handle] = local, remote
        self.num_descriptors += len(local)
        return handle

    def transfer(self, handle: int) -> str:
        assert handle in self.under_way
        return "PROC"

    def check_xfer_state(self, handle: int) -> str:
        self.polls -= 1
        if self.polls > 0 or not self.held.is_set():
            return "PROC"
        for (target, length, _), (source, size, _) in zip(*self.under_way[handle], strict=True):
            assert length == size
            ctypes.memmove(target, source, length)
        return self.end

    def release_xfer_handle(self, handle: int) -> None:
        del self.under_way[handle]


def fake_agent(name: str, pool: BlockPool, **options: object) -> NixlAgent:
    agent = NixlAgent.__new__(NixlAgent)
    agent.api = FakeApi(name, **options)  # type: ignore[arg-type]  # any of its options
    agent.pool = pool
    agent.readers = Counter()
    agent.address = int(np.frombuffer(pool.block_bytes_view(0), dtype=np.uint8).ctypes.data)
    return agent
