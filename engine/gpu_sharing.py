"""A GPU's memory shared between processes of one host, by CUDA IPC as torch wraps it.

The handle is JSON of what torch needs to map a storage; nothing in it is executed. The memory is the owner's:
it is freed when its process has ended and nobody maps it any more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.copy_stream import copy_stream


def gpu_uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def gpus_in_reach(device: torch.device) -> tuple[str, ...]:
    """UUIDs of `device` itself and of those visible here that it can read from."""
    own = torch.empty(0, device=device).device  # with its index
    visible = (torch.device("cuda", index) for index in range(torch.cuda.device_count()))
    return tuple(
        gpu_uuid(other) for other in visible if other == own or torch.cuda.can_device_access_peer(own, other)
    )


def share(pool: Tensor) -> bytes:
    """A handle of the memory that `pool` begins; raises RuntimeError where CUDA or the driver refuses.

    Once for each pool: any number of processes may map it.
    """
    assert pool.is_contiguous()
    assert pool.storage_offset() == 0
    _, *shared = pool.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
    return json.dumps([part.hex() if isinstance(part, bytes) else part for part in shared]).encode()


def map_shared(handle: bytes, gpu: str, block_bytes: int, num_blocks: int) -> Tensor:
    """[num_blocks, block_bytes] uint8, the memory of another process; it is let go of with the tensor.

    Raises ValueError for a handle that is none, or of another size, and RuntimeError where CUDA refuses.
    """
    index = _index_of(gpu)
    memory, size, offset, counter, counter_offset, event, has_event = _parse(handle)
    if size < num_blocks * block_bytes:
        raise ValueError(f"the memory has {size} bytes; {num_blocks * block_bytes} were announced")
    with torch.cuda.device(index):
        storage: Any = torch.UntypedStorage  # as `torch.multiprocessing` uses it; torch has no other door
        shared = storage._new_shared_cuda(  # noqa: SLF001
            index, memory, size, offset, counter, counter_offset, event, has_event
        )
        everything = torch.empty(0, dtype=torch.uint8, device=shared.device).set_(shared)
    return everything[: num_blocks * block_bytes].view(num_blocks, block_bytes)


class PeerBlocks:
    """`theirs` [num_blocks, block_bytes] uint8, copied to `slots` of the same bytes.

    A block is a copy of its own or part of a longer one: on one GPU or between two that is by far shorter to
    start than to run, at the two megabytes that a block of an 8B model has.
    """

    def __init__(self, theirs: Tensor, slots: Tensor) -> None:
        self._theirs: Tensor | None = theirs
        self._slots = slots.flatten(1).view(torch.uint8)
        self._stream = copy_stream(slots.device)

    def fetch(self, stretches: Sequence[tuple[int, int, int]]) -> None:
        """Copies (slot, block of theirs, blocks); done on return. From any thread, not after `close`."""
        theirs = self._theirs
        assert theirs is not None
        with self._stream.behind(None):
            for slot, block, length in stretches:
                self._slots[slot : slot + length].copy_(theirs[block : block + length], non_blocking=True)
            copied = self._stream.mark()
        copied.synchronize()

    def close(self) -> None:
        self._theirs = None


def _index_of(gpu: str) -> int:
    for index in range(torch.cuda.device_count()):
        if gpu_uuid(torch.device("cuda", index)) == gpu:
            return index
    raise ValueError(f"GPU {gpu} is not visible to this process")


def _parse(handle: bytes) -> tuple[bytes, int, int, bytes, int, bytes, bool]:
    try:
        memory, size, offset, counter, counter_offset, event, has_event = json.loads(handle)
        return (
            bytes.fromhex(memory),
            int(size),
            int(offset),
            bytes.fromhex(counter),
            int(counter_offset),
            bytes.fromhex(event),
            bool(has_event),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"the handle does not describe shared memory: {error}") from error
