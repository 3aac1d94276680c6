"""Groups whose processes are threads of this one: all else is as in a worker's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.execution.model_runner import ModelRunner
from engine.group.follower import follow
from engine.group.leader import Leader
from engine.group.links import Kind, Link
from engine.group.pipeline import Pipeline
from engine.group.remote.group import RemoteLeader, follow_connected
from engine.group.remote.sums import Connected, gloo
from engine.group.remote.wires import ProcessGroup
from engine.kv.kv_pool import KVPool
from engine.model.attention.step_batch import StepBatch
from engine.model.model import Model, load_model
from engine.model.parallel.part import Part
from engine.model.parallel.stage import Stage
from engine.starting import ignore_progress

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS, MOST_TOKENS = 4, 160, 128
WEIGHTS = "fingerprint"


Connect = Callable[[Part, Sequence[Link], Sequence[Link], ProcessGroup], Connected]


class CopyingRunner(ModelRunner):
    """Takes batches on the CPU, and returns logits there that outlive the next step."""

    def forward(self, batch: StepBatch) -> Tensor:
        return super().forward(batch.on(self.model.device)).clone().cpu()


@contextmanager
def grouped(directory: Path, dtype: torch.dtype, size: int, **options: Any) -> Iterator[ModelRunner]:
    """The leader's runner of a group; `options` are those of `load_model`."""
    # One after the other: transformers sets torch's default dtype, for all threads, while it loads.
    models = [load_model(directory, dtype, CPU, part=Part(rank, size), **options) for rank in range(size)]
    with following(models) as links:
        leader = Leader(links)
        try:
            yield opened(models[0], leader)
        finally:
            leader.close()


@contextmanager
def staged(
    directory: Path, dtype: torch.dtype, size: int, num_parts: int = 1, **options: Any
) -> Iterator[ModelRunner]:
    """The runner of a pipeline, all of whose stages compute each step before the next one is sent."""
    models = [
        load_model(
            directory,
            dtype,
            CPU,
            stage=Stage(rank, size),
            part=Part(part, num_parts) if num_parts > 1 else None,
            **options,
        )
        for rank in range(size)
        for part in range(num_parts)
    ]
    with following(models) as links:
        pipeline = Pipeline(links, num_parts)
        try:
            yield opened(models[0], pipeline)
        finally:
            pipeline.close()


@contextmanager
def apart(
    directory: Path,
    dtype: torch.dtype,
    size: int,
    connect: Connect = Connected.on_cpus,
    device: torch.device = CPU,
    **options: Any,
) -> Iterator[ModelRunner]:
    """The leader's runner of a group whose processes share no memory."""
    options |= {"shares_memory": False}
    models = [load_model(directory, dtype, device, part=Part(rank, size), **options) for rank in range(size)]
    steps, loads = ([Link.pair() for _ in models[1:]] for _ in range(2))
    own = [[[leader for leader, _ in pairs], *([theirs] for _, theirs in pairs)] for pairs in (steps, loads)]
    with ThreadPoolExecutor(size) as threads:
        store, parts = new_store(), [Part(rank, size) for rank in range(size)]
        sums = list(threads.map(lambda part: gloo(store, part, "127.0.0.1"), parts))
        connected = list(map(connect, parts, *own, sums))
        following = [
            threads.submit(follow_connected, model, BLOCK_SIZE, WEIGHTS, each)
            for model, each in zip(models[1:], connected[1:], strict=True)
        ]
        try:
            yield opened(models[0], RemoteLeader(connected[0]))
            for leader, _ in steps:
                leader.send(Kind.END, [])
            assert all(follower.result() for follower in following)
        finally:
            for leader, _ in (*steps, *loads):
                leader.close()
    for _, theirs in (*steps, *loads):
        theirs.close()


def new_store() -> Any:
    """A store of torch.distributed for the threads of this process."""
    library: Any = torch.distributed
    return library.HashStore()


def opened(model: Model, group: Leader | Pipeline | RemoteLeader) -> ModelRunner:
    """The runner of the first process of a group whose others follow."""
    group.wait_ready(WEIGHTS, ignore_progress)
    runner = CopyingRunner(model, pool_of(model), group)
    group.open(runner, MOST_TOKENS)
    return runner


@contextmanager
def following(models: Sequence[Model]) -> Iterator[list[Link]]:
    """The links of the first process of a group to the others, which follow it."""
    links = [Link.pair() for _ in models[1:]]
    threads = [
        threading.Thread(target=follow, args=(model, BLOCK_SIZE, WEIGHTS, theirs))
        for model, (_, theirs) in zip(models[1:], links, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield [own for own, _ in links]
    finally:
        for own, _ in links:
            own.close()
        for thread in threads:
            thread.join()
        for _, theirs in links:
            theirs.close()


def whole(directory: Path, dtype: torch.dtype, device: torch.device = CPU, **options: Any) -> ModelRunner:
    """The runner of one process."""
    model = load_model(directory, dtype, device, **options)
    return CopyingRunner(model, pool_of(model))


def pool_of(model: Model) -> KVPool:
    """A pool in which every number that was not written shows."""
    pool = KVPool(model.block_layout(BLOCK_SIZE), NUM_BLOCKS, model.device)
    if model.stored is None:
        pool.tensor.fill_(float("nan"))
    else:
        pool.tensor.fill_(0xFF)
    return pool
