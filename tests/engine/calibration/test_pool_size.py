"""The pool is what the weights and the largest step leave, less a reserve."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.calibration import pool_size
from engine.calibration.pool_size import MEBIBYTE, CudaMemory, blocks_in, blocks_that_fit
from engine.kv.kv_pool import BlockLayout, KVPool
from engine.model.model import Model, load_model
from engine.model.parallel.part import Part
from tests import model_zoo


class FakeMemory(CudaMemory):
    """Has `free` MiB, of which the largest step takes `step`."""

    def __init__(self, free: int, step: int) -> None:
        self._free, self._step = free, step
        self.pools: list[weakref.ref[KVPool]] = []

    def free_bytes(self) -> int:
        gc.collect()
        assert [pool() for pool in self.pools] == [None], "the trial's own pool counts as taken"
        return self._free * MEBIBYTE

    def peak_bytes(self, work: Callable[[], object]) -> int:
        work()
        return self._step * MEBIBYTE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = model_zoo.build("llama", tmp_path_factory.mktemp("llama"))
    return load_model(directory, torch.float32, torch.device("cpu"))


def fit(model: Model, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch, **sizes: int) -> int:
    def make(layout: BlockLayout, num_blocks: int, device: torch.device) -> KVPool:
        pool = KVPool(layout, num_blocks, device)
        memory.pools.append(weakref.ref(pool))
        return pool

    monkeypatch.setattr(pool_size, "KVPool", make)
    return blocks_that_fit(model, model.block_layout(16), memory, **sizes)


def test_nine_tenths_of_what_is_left_hold_blocks(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = FakeMemory(free=1000, step=200)
    num_blocks = fit(model, memory, monkeypatch, max_num_seqs=4, token_budget=40)
    assert num_blocks == int(0.9 * 800 * MEBIBYTE) // model.block_layout(16).block_bytes


def test_the_step_of_a_part_is_tried_without_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = model_zoo.build("llama", tmp_path)
    model = load_model(directory, torch.float32, torch.device("cpu"), part=Part(1, 2))
    before = dict(model.module.named_modules())
    fit(model, FakeMemory(1000, 200), monkeypatch, max_num_seqs=4, token_budget=40)
    assert dict(model.module.named_modules()) == before  # it can be joined with the others now


@pytest.mark.parametrize(
    ("max_num_seqs", "token_budget", "tokens", "rows"),
    [(4, 40, 40, 4), (64, 40, 40, 40), (1, 1, 1, 1), (4, 1000, 3 + model_zoo.MAX_CONTEXT, 4)],
)
def test_the_largest_step_is_tried(
    model: Model,
    max_num_seqs: int,
    token_budget: int,
    tokens: int,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, int]] = []

    def look(module: torch.nn.Module, args: object, kwargs: dict[str, torch.Tensor]) -> None:
        seen.append((kwargs["input_ids"].shape[1], len(kwargs["logits_to_keep"])))

    hook = model.module.register_forward_pre_hook(look, with_kwargs=True)
    sizes = {"max_num_seqs": max_num_seqs, "token_budget": token_budget}
    fit(model, FakeMemory(1000, 200), monkeypatch, **sizes)
    hook.remove()
    assert seen == [(tokens, rows)]


def test_a_device_that_is_full_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"--token-budget is 40, and such a step takes 200 MiB; .* 150 MiB"):
        fit(model, FakeMemory(150, 200), monkeypatch, max_num_seqs=4, token_budget=40)


def test_memory_for_less_than_a_block_is_refused(model: Model) -> None:
    layout = BlockLayout(32, 16, 8, 128, torch.bfloat16)
    assert blocks_in(layout.block_bytes, 5) == 2
    with pytest.raises(ValueError, match="--kv-memory-mb is 1; accepted for this model: 2 or more"):
        blocks_in(layout.block_bytes, 1)


@pytest.mark.gpu
def test_a_gpu_s_memory_is_counted() -> None:
    memory = CudaMemory(torch.device("cuda"))
    free = memory.free_bytes()
    size = 256 * MEBIBYTE
    assert memory.peak_bytes(lambda: torch.empty(size, dtype=torch.uint8, device="cuda")) == size
    kept = torch.empty(size, dtype=torch.uint8, device="cuda")
    assert memory.free_bytes() <= free - kept.numel()
