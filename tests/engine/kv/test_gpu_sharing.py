"""Which bytes CUDA is asked to share, map and copy; what stands for it here copies the host's memory."""

import ctypes
import enum
import sys
from types import SimpleNamespace

import pytest
import torch

from engine.kv.gpu_sharing import PeerBlocks, share

BLOCK = (2, 3)


Status = enum.IntEnum("Status", {"cudaSuccess": 0, "cudaErrorIllegalAddress": 700})
SUCCESS, ILLEGAL_ADDRESS = Status(0), Status(700)


class Handle:
    """The size of CUDA's own."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(64)

    def getPtr(self) -> int:
        return ctypes.addressof(self.memory)


class FakeCuda:
    """One allocation, which both processes reach."""

    def __init__(self, allocation: torch.Tensor) -> None:
        self.base, self.size = allocation.data_ptr(), allocation.nbytes
        self.opened: list[int] = []
        self.fails_at: int | None = None
        self.num_copies = 0

    def runtime(self) -> SimpleNamespace:
        return SimpleNamespace(
            cudaSetDevice=lambda index: (SUCCESS,),
            cudaIpcGetMemHandle=self.get,
            cudaIpcOpenMemHandle=self.open,
            cudaIpcCloseMemHandle=self.close,
            cudaIpcMemHandle_t=Handle,
            cudaIpcMemLazyEnablePeerAccess=1,
            cudaMemcpyKind=SimpleNamespace(cudaMemcpyDefault=4),
            cudaMemcpyAsync=self.copy,
        )

    def driver(self) -> SimpleNamespace:
        return SimpleNamespace(cuMemGetAddressRange=lambda address: (SUCCESS, self.base, self.size))

    def get(self, address: int) -> tuple[Status, Handle]:
        assert address == self.base, "an allocation is shared from its beginning"
        handle = Handle()
        handle.memory.raw = b"the allocation".ljust(64, b".")
        return SUCCESS, handle

    def open(self, handle: Handle, flags: int) -> tuple[Status, int]:
        assert handle.memory.raw == b"the allocation".ljust(64, b".")
        self.opened.append(self.base)
        return SUCCESS, self.base

    def close(self, address: int) -> tuple[Status]:
        self.opened.remove(address)
        return (SUCCESS,)

    def copy(self, target: int, source: int, num_bytes: int, kind: int, stream: int) -> tuple[Status]:
        if self.num_copies == self.fails_at:
            return (ILLEGAL_ADDRESS,)
        self.num_copies += 1
        ctypes.memmove(target, source, num_bytes)
        return (SUCCESS,)


ALLOCATION = torch.arange(100, dtype=torch.float32)
POOL = ALLOCATION[10:70].view(10, *BLOCK)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda(ALLOCATION)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", fake.runtime())
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake.driver())
    return fake


def test_blocks_come_from_where_the_pool_begins_in_its_allocation(cuda: FakeCuda) -> None:
    ours = torch.zeros(5, *BLOCK)
    blocks = PeerBlocks(share(POOL), 10, ours)
    blocks.fetch([(0, 8, 2), (3, 1, 1)])
    assert torch.equal(ours[[0, 1, 3]], POOL[[8, 9, 1]])
    assert not ours[[2, 4]].any(), "a bystander was written to"
    blocks.close()
    assert cuda.opened == []


def test_more_blocks_than_the_allocation_has_room_for_are_refused(cuda: FakeCuda) -> None:
    PeerBlocks(share(POOL), 15, torch.zeros(5, *BLOCK)).close()
    with pytest.raises(ValueError, match="16 blocks from 40 on were announced; there are 400 bytes"):
        PeerBlocks(share(POOL), 16, torch.zeros(5, *BLOCK))
    assert cuda.opened == [], "what is refused stays mapped"


def test_a_copy_that_fails_says_how(cuda: FakeCuda) -> None:
    blocks = PeerBlocks(share(POOL), 10, torch.zeros(5, *BLOCK))
    cuda.fails_at = 1
    with pytest.raises(RuntimeError, match="CUDA: cudaErrorIllegalAddress"):
        blocks.fetch([(0, 8, 1), (3, 1, 1)])
