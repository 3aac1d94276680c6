"""Processes that share no memory compute together what one computes, and the leader's pool has all KV."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import GroupBrokenError, GroupRefused
from engine.execution.model_runner import ModelRunner
from engine.group.links import Kind, Link
from engine.group.remote.group import RemoteLeader, facts_of
from engine.group.remote.kv_mirror import ForeignBlocks
from engine.group.remote.sums import Connected, gloo
from engine.group.remote.wires import ProcessGroup
from engine.model.model import load_model
from engine.model.parallel.part import Part
from engine.model.quantised.quantisation import Quantisation
from engine.starting import ignore_progress
from tests.engine.group.test_equality import PROMPTS, assert_equal
from tests.engine.group_driver import (
    BLOCK_SIZE,
    CPU,
    MOST_TOKENS,
    WEIGHTS,
    Connect,
    apart,
    new_store,
    pool_of,
    whole,
)
from tests.engine.ragged import Piece, make_batch

# Processes on GPUs send tensors as those in the second case do.
CONNECTIONS = [
    pytest.param(Connected.on_cpus, id="by-links"),
    pytest.param(Connected.on_gpus, id="by-the-group"),
]


# OLMo 2 sums in the middle of a layer too; the parts of GPT-2 have other token counts.
@pytest.mark.parametrize("connect", CONNECTIONS)
@pytest.mark.parametrize(("name", "size"), [("llama", 2), ("olmo2", 2), ("qwen3_moe", 2), ("gpt2", 4)])
def test_processes_on_several_hosts_compute_what_one_does(
    name: str, size: int, connect: Connect, zoo: Callable[[str], Path]
) -> None:
    tolerance = 1e-4 if name == "olmo2" else 1e-9
    with apart(zoo(name), torch.float64, size, connect) as split:
        assert_equal(split, whole(zoo(name), torch.float64), tolerance)


class OverTheHost:
    """Sums and tensors of processes on one GPU, which NCCL does not connect: gloo's, by way of the CPU."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def allreduce(self, tensors: list[Tensor]) -> OnTheHost:
        return OnTheHost(tensors[0], self._group.allreduce)

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        return self._group.send([tensors[0].cpu()], rank, tag)

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> OnTheHost:
        return OnTheHost(tensors[0], lambda on_host: self._group.recv(on_host, rank, tag))


class OnTheHost:
    """Work on a copy of a tensor, which `wait` brings back."""

    def __init__(self, tensor: Tensor, begin: Callable[[list[Tensor]], Any]) -> None:
        self._tensor, self._copy = tensor, tensor.cpu()
        self._work = begin([self._copy])

    def wait(self) -> None:
        self._work.wait()
        self._tensor.copy_(self._copy)


def on_one_gpu(part: Part, channels: Sequence[Link], loads: Sequence[Link], sums: ProcessGroup) -> Connected:
    return Connected.on_gpus(part, channels, loads, OverTheHost(sums))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["llama", "phi3", "gemma2", "mixtral"])
def test_fused_parts_apart_compute_what_one_process_does(
    name: str, device: str, zoo: Callable[[str], Path]
) -> None:
    where = torch.device(device)
    with apart(zoo(name), torch.float32, 2, on_one_gpu, where, fused=True) as split:
        assert split.model.is_fused
        assert not split.model.fusion.is_native
        assert_equal(split, whole(zoo(name), torch.float32, where, fused=True), 1e-3)


@pytest.mark.parametrize(
    ("quantisation", "tolerance"),
    # A key or value near the middle between two steps of 8 bits may be rounded to either.
    [(Quantisation.INT8, 1e-4), (Quantisation.INT8_KV8, 0.1), (Quantisation.KVFP8, 0.1)],
)
@pytest.mark.parametrize("connect", CONNECTIONS)
def test_kv_in_8_bits_travels_with_its_scales(
    connect: Connect, quantisation: Quantisation, tolerance: float, zoo: Callable[[str], Path]
) -> None:
    options: dict[str, Any] = {"quantisation": quantisation}
    with apart(zoo("llama"), torch.float32, 2, connect, **options) as split:
        one = whole(zoo("llama"), torch.float32, **options)
        assert_equal(split, one, tolerance)
        if one.pool.layout.stored is not None:
            heads = (one.pool, split.pool)
            expected, found = (pool.scales(1) for pool in heads)
            assert expected is not None
            assert found is not None
            written = expected.isfinite()
            torch.testing.assert_close(found[written], expected[written], rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("quantisation", [Quantisation.NONE, Quantisation.KV8])
@pytest.mark.parametrize("num_before", [8, 10], ids=["whole-blocks", "with-a-part"])
@pytest.mark.parametrize("connect", CONNECTIONS)
def test_blocks_from_elsewhere_are_read_by_all(
    connect: Connect, num_before: int, quantisation: Quantisation, zoo: Callable[[str], Path]
) -> None:
    """The leader's pool has blocks that no step of this group has written, as after a handoff."""
    tokens, table = PROMPTS[1][:13], [7, 2, 9, 4]
    options: dict[str, Any] = {"quantisation": quantisation}
    one = whole(zoo("llama"), torch.float32, **options)
    first = make_batch([Piece(0, tokens[:num_before], table)], BLOCK_SIZE)
    then = make_batch([Piece(num_before, tokens[num_before:], table)], BLOCK_SIZE)
    one.forward(first)
    with apart(zoo("llama"), torch.float32, 2, connect, **options) as split:
        poisoned = make_batch([Piece(0, tokens[::-1], table)], BLOCK_SIZE)
        split.forward(poisoned)  # followers have something else in these blocks
        blocks = table[: -(-num_before // BLOCK_SIZE)]
        for block in table:
            leader_of(split).on_allocated(block)
        split.pool.tensor[blocks] = one.pool.tensor[blocks]
        torch.testing.assert_close(split.forward(then), one.forward(then), rtol=0, atol=1e-4)


def leader_of(runner: ModelRunner) -> RemoteLeader:
    group = runner._group
    assert isinstance(group, RemoteLeader)
    return group


def test_only_blocks_that_no_step_has_begun_are_sent_and_only_once() -> None:
    foreign = ForeignBlocks(10, BLOCK_SIZE)
    for block in (1, 2, 3):
        foreign.add(block)
    begins = make_batch([Piece(0, range(5), [1, 2])], BLOCK_SIZE)
    assert foreign.take(begins) == []
    # Block 3 came from elsewhere, block 2 from the step before; 4 was allocated for this step's tokens.
    foreign.add(4)
    reads = make_batch([Piece(6, range(4), [3, 2, 4]), Piece(4, range(1), [3, 5])], BLOCK_SIZE)
    assert foreign.take(reads) == [3]
    assert foreign.take(reads) == []
    foreign.add(2)  # it was freed, and belongs to another sequence now
    assert foreign.take(reads) == [2]


@pytest.mark.parametrize(
    ("fact", "sentence"),
    [
        ("weights of the fingerprint", "has weights of the fingerprint other; accepted: fingerprint"),
        ("torch", "has torch other; accepted: 2"),
        ("Baton's code of the digest", "has Baton's code of the digest other; accepted: [0-9a-f]+"),
    ],
)
def test_a_follower_with_other_weights_or_versions_is_refused(fact: str, sentence: str) -> None:
    own, theirs = Link.pair()
    leader = RemoteLeader(
        Connected.on_cpus(Part(0, 2), [own], [], gloo(new_store(), Part(0, 1), "127.0.0.1"))
    )
    theirs.send(Kind.READY, [json.dumps(facts_of(WEIGHTS) | {fact: "other"}).encode()])
    with pytest.raises(GroupRefused, match=f"--tensor-parallel 2: its process of rank 1 {sentence}"):
        leader.wait_ready(WEIGHTS, ignore_progress)
    own.close()
    theirs.close()


def test_a_follower_that_is_gone_ends_the_group(zoo: Callable[[str], Path]) -> None:
    own, theirs = Link.pair()
    model = load_model(zoo("llama"), torch.float32, CPU, part=Part(0, 2))
    leader = RemoteLeader(
        Connected.on_cpus(Part(0, 2), [own], [], gloo(new_store(), Part(0, 1), "127.0.0.1"))
    )
    runner = ModelRunner(model, pool_of(model), leader)
    leader.open(runner, MOST_TOKENS)
    theirs.close()
    with pytest.raises(GroupBrokenError, match="a process of the group is gone"):
        runner.forward(make_batch([Piece(0, [5, 6, 7], [9])], BLOCK_SIZE))
    own.close()
