"""A group whose processes share no memory: its leader, and what a follower does.

A step begins with the leader's message and ends with the KV from each follower. In between, sums meet over
torch.distributed. `kv_mirror` says which KV travels, and `wires` how. Adapters are loaded while steps go on,
so what is said of them has connections of its own.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.errors import GroupBrokenError
from engine.execution.model_runner import ModelRunner
from engine.group.adapter_loads import begin_load, end_load, follow_loads
from engine.group.leader import wait_ready
from engine.group.links import Kind, Link
from engine.group.remote import kv_mirror
from engine.group.remote.kv_mirror import ForeignBlocks, Places
from engine.group.remote.sums import Connected, RemoteSums
from engine.group.remote.wires import Wires
from engine.group.steps import decoded, encoded
from engine.kv.kv_pool import KVPool, PoolPart
from engine.model.adapters.checkpoint import AdapterFiles
from engine.model.attention.step_batch import StepBatch
from engine.model.model import Model
from engine.model.parallel.joining import join
from engine.model.parallel.part import Part
from engine.proof.versions import TORCH, TRANSFORMERS, own_code
from engine.starting import OnProgress

_NUM_BLOCKS = struct.Struct("<q")
_CPU = torch.device("cpu")


class RemoteLeader:
    """The group of this process, which leads it; implements `Group` of the model runner."""

    def __init__(self, connected: Connected) -> None:
        self._connected = connected
        self._heads: list[PoolPart] = []
        """Each follower's heads in the leader's pool."""
        self._foreign: ForeignBlocks | None = None

    def wait_ready(self, fingerprint: str, on_progress: OnProgress) -> None:
        """Wait until all followers have loaded their parts of the weights of this fingerprint.

        Raises GroupRefused if one cannot serve, or has other weights or versions.
        """
        channels = self._connected.channels
        difference = partial(_difference, facts_of(fingerprint))
        wait_ready(f"--tensor-parallel {self._connected.part.size}", channels, difference, on_progress)

    def open(self, runner: ModelRunner, _tokens: int) -> None:
        """Join the runner's model with the other parts."""
        model, pool = runner.model, runner.pool
        for channel in self._connected.channels:
            channel.send(Kind.OPEN, [_NUM_BLOCKS.pack(pool.num_blocks)])
        heads = model.facts.num_kv_heads
        self._heads = [
            PoolPart(pool, heads=Part(rank, self._connected.part.size).share(heads))
            for rank, _ in enumerate(self._connected.channels, 1)
        ]
        self._foreign = ForeignBlocks(pool.num_blocks, pool.layout.block_size)
        _join(model, self._connected)

    def on_allocated(self, block: int) -> None:
        """Take in that a block of the pool was allocated."""
        assert self._foreign is not None, "it is opened first"
        self._foreign.add(block)

    def forward(self, batch: StepBatch, run: Callable[[StepBatch], Tensor]) -> Tensor:
        """Let followers compute a step too; the leader's pool then has the KV of all.

        If the step fails here, the followers wait for a result that does not come: nothing can follow.
        """
        assert self._foreign is not None, "it is opened first"
        on_host = batch.on(_CPU)
        if blocks := self._foreign.take(on_host):
            self._send_blocks(np.array(blocks, dtype=np.int64))
        content = encoded(on_host)
        for channel in self._connected.channels:
            channel.send(Kind.STEP, content)
        try:
            logits = run(batch)
        except Exception as error:
            raise GroupBrokenError(f"a step failed: {error}") from error
        places = Places.of_slots(batch.slot_mapping, self._heads[0].layout.block_size)
        for rank, heads in enumerate(self._heads, 1):
            written = kv_mirror.empty(heads, places)
            self._connected.wires.receive(written, rank)
            kv_mirror.write(heads, places, written)
        return logits

    def begin_load(self, slot: int, files: AdapterFiles) -> None:
        """Implements `Loading`."""
        begin_load(self._connected.loads, slot, files)

    def end_load(self, files: AdapterFiles) -> None:
        """Implements `Loading`."""
        end_load(self._connected.loads, files)

    def _send_blocks(self, blocks: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Send followers their heads of blocks whose content came from elsewhere."""
        places = Places.of_blocks(torch.from_numpy(blocks).to(self._heads[0].tensor.device))
        for rank, (channel, heads) in enumerate(zip(self._connected.channels, self._heads, strict=True), 1):
            channel.send(Kind.BLOCKS, [blocks.view(np.uint8).data])
            self._connected.wires.send(kv_mirror.read(heads, places), rank)


def follow_connected(model: Model, block_size: int, fingerprint: str, connected: Connected) -> bool:
    """Compute steps with a loaded part of a model until the leader ends; return False if it is just gone."""
    (leader,) = connected.channels
    leader.send(Kind.READY, [json.dumps(facts_of(fingerprint)).encode()])
    opening = leader.receive()
    if opening is None:
        return False
    assert opening.kind is Kind.OPEN
    (num_blocks,) = _NUM_BLOCKS.unpack(opening.content)
    heads = connected.part.share(model.facts.num_kv_heads)
    layout = replace(model.block_layout(block_size), num_kv_heads=heads.stop - heads.start)
    runner = ModelRunner(model, KVPool(layout, num_blocks, model.device))
    _join(model, connected)
    loads = model.adapters, connected.loads[0]
    threading.Thread(target=follow_loads, args=loads, name="adapter-loads", daemon=True).start()
    try:
        return _follow_steps(runner, leader, connected.wires)
    except GroupBrokenError:  # another process is gone in the middle of a step
        return False
    finally:
        runner.pool.close()


def _follow_steps(runner: ModelRunner, leader: Link, wires: Wires) -> bool:
    pool, device = runner.pool, runner.model.device
    while (message := leader.receive()) is not None:
        if message.kind is Kind.END:
            return True
        if message.kind is Kind.BLOCKS:
            blocks = torch.frombuffer(message.content, dtype=torch.int64).to(device)
            places = Places.of_blocks(blocks)
            content = kv_mirror.empty(pool, places)
            wires.receive(content, 0)
            kv_mirror.write(pool, places, content)
            continue
        batch = decoded(message.content).on(device)
        runner.forward(batch)
        places = Places.of_slots(batch.slot_mapping, pool.layout.block_size)
        wires.send(kv_mirror.read(pool, places), 0)
    return False


def _join(model: Model, connected: Connected) -> None:
    assert model.cuts is not None, "it was loaded as a part"
    join(model.module, model.cuts, RemoteSums(connected, model.facts.vocab_size))


def facts_of(fingerprint: str) -> dict[str, str]:
    """Return what all processes of a group must have in common, by its name."""
    return {
        "weights of the fingerprint": fingerprint,
        "Baton's code of the digest": own_code(),
        "torch": TORCH,
        "transformers": TRANSFORMERS,
    }


def _difference(own: dict[str, str], announced: str) -> tuple[str, str] | None:
    """Return the first fact of a follower that is not the leader's, and what would be accepted."""
    theirs = json.loads(announced)
    for name, value in own.items():
        if theirs.get(name) != value:
            return f"has {name} {theirs.get(name)}", f"{value}, the leader's"
    return None
