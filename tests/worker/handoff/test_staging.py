"""Which pools take part in handoffs where they are, and how much of the host's memory the others get."""

from __future__ import annotations

import dataclasses
from typing import cast

import pytest
import torch

from engine.kv.kv_pool import BlockLayout, KVPool
from kvtransfer.pools.host_blocks import InPlace
from kvtransfer.pools.staging import ReceiveStaging, SendStaging
from kvtransfer.receiving.receiver import ReceiverLimits
from model_output.grammar.grammar import Grammars
from scheduling.cost_model import UNKNOWN_COST
from worker.engine.engine import Engine
from worker.engine.engine_thread import Loop
from worker.handoff import staging
from worker.handoff.staging import source_of, staging_bytes, target_of

LAYOUT = BlockLayout(2, 16, 2, 64, torch.float32)
ELSEWHERE = torch.device("meta")
"""Not host memory either."""


def engine_of(pool: KVPool, max_context: int = 160) -> Engine:
    grammars = cast(Grammars, None)
    return Engine(cast(Loop, None), pool, "name", max_context, UNKNOWN_COST, (), grammars)


async def test_a_pool_in_host_memory_is_used_where_it_is() -> None:
    engine = engine_of(KVPool(LAYOUT, 4))
    for end in (source_of(engine), target_of(engine.pool, ReceiverLimits())):
        assert isinstance(end, InPlace)
        assert end.pool is engine.pool


@pytest.mark.parametrize(
    ("num_blocks", "allowed_blocks", "expected"),
    [(64, 40, 40), (64, 3, 10), (5, 40, 5)],
    ids=["as allowed", "the longest sequence has room", "no more than there are"],
)
async def test_what_is_offered_from_elsewhere_has_bounded_host_memory(
    num_blocks: int, allowed_blocks: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "SEND_BYTES", allowed_blocks * LAYOUT.block_bytes)
    source = source_of(engine_of(KVPool(LAYOUT, num_blocks, ELSEWHERE)))
    assert isinstance(source, SendStaging)
    assert source.pool.num_blocks == expected
    assert source.pool.fd is not None, "other processes map it"
    source.close()


async def test_the_memory_of_handoffs_is_known_before_it_is_taken() -> None:
    """The longest sequence needs more than is allowed otherwise."""
    pool = KVPool(LAYOUT, 10**6, ELSEWHERE)
    max_context = 2 * staging.SEND_BYTES // LAYOUT.block_bytes * LAYOUT.block_size
    expected = staging_bytes(pool, max_context)
    received = target_of(pool, ReceiverLimits())
    assert expected == 2 * staging.SEND_BYTES + received.pool.num_blocks * pool.block_bytes
    assert staging_bytes(KVPool(LAYOUT, 4), max_context) == 0
    received.close()


async def test_staged_receives_have_slots_for_all_that_is_in_flight() -> None:
    limits = dataclasses.replace(ReceiverLimits(), max_batches=3)
    target = target_of(KVPool(LAYOUT, 64, ELSEWHERE), limits)
    assert isinstance(target, ReceiveStaging)
    assert target.pool.num_blocks == 3 * (4 * 1024 * 1024 // LAYOUT.block_bytes)
    target.close()
