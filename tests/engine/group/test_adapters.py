"""LoRA adapters in a model that several processes compute: what one process computes, in all families."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import AdapterRefused
from engine.execution.model_runner import ModelRunner
from engine.group.adapter_loads import AdapterToLoad, GroupAdapters
from engine.group.leader import Leader
from engine.group.pipeline import Pipeline
from engine.group.remote.group import RemoteLeader
from engine.group.steps import decoded, encoded
from engine.kv.kv_pool import KVPool
from engine.model.adapters.attaching import AdapterRoom
from engine.model.adapters.checkpoint import AdapterFiles, read_adapter
from engine.model.attention.step_batch import StepBatch, adapter_rows
from engine.model.model import load_model
from engine.model.parallel.part import Part
from engine.model.parallel.stage import Stage
from tests import model_zoo
from tests.adapters import copy_adapter, write_adapter
from tests.engine.group_driver import apart, grouped, staged, whole
from tests.engine.ragged import Piece, generate_greedily, make_batch

CPU = torch.device("cpu")
NUM_TOKENS, CHUNK = 8, 8
PROMPTS = [
    [3 + (i * step) % 60 for i in range(length)] for step, length in ((1, 11), (3, 23), (5, 5), (7, 9))
]
NUM_ADAPTERS = 2
ROOM = AdapterRoom(4 * 1024 * 1024, 8)


@dataclass(frozen=True)
class AdaptedRunner:
    """Runs steps in which each sequence has an adapter, or none, by the first of its blocks."""

    runner: ModelRunner

    @property
    def pool(self) -> KVPool:
        return self.runner.pool

    def forward(self, batch: StepBatch) -> Tensor:
        of_sequence = batch.block_tables[:, 0] % (NUM_ADAPTERS + 1) - 1
        slots = torch.repeat_interleave(of_sequence, batch.cu_seqlens_q.diff()).to(torch.int64)
        return self.runner.forward(replace(batch, adapters=adapter_rows(slots.numpy(), CPU)))


def generate(runner: ModelRunner) -> list[tuple[list[int], Tensor]]:
    return generate_greedily(AdaptedRunner(runner), PROMPTS, NUM_TOKENS, CHUNK)  # type: ignore[arg-type]


def assert_equal(split: ModelRunner, one: ModelRunner, tolerance: float) -> None:
    for (tokens, logits), (expected_tokens, expected_logits) in zip(
        generate(split), generate(one), strict=True
    ):
        assert tokens == expected_tokens
        torch.testing.assert_close(logits, expected_logits, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[AdapterFiles]]]:
    @lru_cache
    def made(name: str) -> tuple[Path, list[AdapterFiles]]:
        folder = tmp_path_factory.mktemp(name)
        base = model_zoo.build(name, folder / "base")
        paths = [
            write_adapter(base, folder / f"adapter-{seed}", seed=seed, rank=2 + 2 * seed)
            for seed in range(NUM_ADAPTERS)
        ]
        return base, [read_adapter(path.name, path) for path in paths]

    return made


Zoo = Callable[[str], tuple[Path, Sequence[AdapterFiles]]]


@pytest.mark.parametrize("name", model_zoo.CASES)
def test_two_stages_of_two_processes_compute_what_one_process_does(name: str, zoo: Zoo) -> None:
    # The norm over OLMo 2's heads is in float32, and two parts of it are added in another order than all.
    tolerance = 1e-4 if name == "olmo2" else 1e-9
    base, files = zoo(name)
    one = whole(base, torch.float64, adapters=files)
    with staged(base, torch.float64, 2, num_parts=2, adapters=files) as split:
        assert_equal(split, one, tolerance)
    plain = generate(whole(base, torch.float64, adapters=[replace(files[0], scale=0.0), *files[1:]]))
    assert any(not torch.equal(had, has) for (_, had), (_, has) in zip(plain, generate(one), strict=True))


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt_oss", "gpt2"])
def test_two_processes_compute_what_one_does(name: str, zoo: Zoo) -> None:
    base, files = zoo(name)
    with grouped(base, torch.float64, 2, adapters=files) as split:
        assert_equal(split, whole(base, torch.float64, adapters=files), 1e-9)


@pytest.mark.parametrize("name", ["llama", "gemma2", "phi3", "granite", "mixtral"])
def test_fused_layers_compute_what_those_of_one_process_do(name: str, zoo: Zoo) -> None:
    # Logits are about 10 here, so this is some 100 times float32's rounding.
    base, files = zoo(name)
    with grouped(base, torch.float32, 2, fused=True, adapters=files) as split:
        one = whole(base, torch.float32, fused=True, adapters=files)
        assert split.model.fusion.is_native == one.model.fusion.is_native
        assert_equal(split, one, 2e-4)


def group_adapters(split: ModelRunner) -> GroupAdapters:
    assert isinstance(split._group, Leader | Pipeline | RemoteLeader)
    assert split.model.adapters is not None
    return GroupAdapters(split.model.adapters, split._group)


@pytest.mark.parametrize("name", ["llama", "phi3", "mixtral"])
def test_fused_layers_of_stages_compute_what_those_of_one_process_do(name: str, zoo: Zoo) -> None:
    base, files = zoo(name)
    with staged(base, torch.float32, 2, fused=True, adapters=files) as split:
        one = whole(base, torch.float32, fused=True, adapters=files)
        assert split.model.fusion.is_native == one.model.fusion.is_native
        assert_equal(split, one, 2e-4)


@pytest.mark.parametrize("split_by", [grouped, staged, partial(staged, num_parts=2), apart])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_adapters_loaded_later_are_cut_the_same(name: str, split_by: Any, zoo: Zoo) -> None:
    base, files = zoo(name)
    with split_by(base, torch.float64, 2, adapter_room=ROOM) as split:
        adapters = group_adapters(split)
        for slot, each in enumerate(reversed(files)):  # what is there is replaced
            adapters.write(slot, each)
        for slot, each in enumerate(files):
            adapters.write(slot, each)
        assert_equal(split, whole(base, torch.float64, adapters=files), 1e-9)


@pytest.mark.parametrize("split_by", [grouped, apart])
def test_files_that_a_follower_finds_changed_are_refused(split_by: Any, zoo: Zoo, tmp_path: Path) -> None:
    base, files = zoo("llama")
    read = read_adapter("red", copy_adapter(files[0].path, tmp_path / "red"))
    copied = copy_adapter(files[0].path, tmp_path / "later", lora_alpha=1)
    (copied / "adapter_config.json").replace(read.path / "adapter_config.json")
    with split_by(base, torch.float64, 2, adapter_room=ROOM) as split:
        adapters = group_adapters(split)
        with pytest.raises(AdapterRefused, match="by process 1 of the group \\(its files have the digest"):
            adapters.write(0, read)
        for slot, each in enumerate(files):
            adapters.write(slot, each)
        assert_equal(split, whole(base, torch.float64, adapters=files), 1e-9)


def test_all_stages_have_room_for_as_many_adapters(zoo: Zoo) -> None:
    """The leader's number of slots holds for all, and the first of three stages has two of four layers."""
    base, _ = zoo("llama")
    slots = []
    for rank in range(3):
        model = load_model(base, torch.float64, CPU, stage=Stage(rank, 3), part=Part(1, 2), adapter_room=ROOM)
        assert model.adapters is not None
        slots.append(model.adapters.num_slots)
    # Half of each product's outputs or inputs: q and o, k and v, gate, up and down, of 64, 32 and 96.
    features = (64 + 32) * 2 + (64 + 16) * 2 + (64 + 48) * 3
    assert slots == [ROOM.num_bytes // (2 * features * ROOM.rank * 8)] * 3


def test_a_load_is_named_to_followers_as_it_is() -> None:
    load = AdapterToLoad(3, "red", "/a folder/red", "1" * 32)
    assert AdapterToLoad.from_bytes(bytearray(load.to_bytes())) == load


def test_the_adapters_of_a_step_come_to_followers() -> None:
    batch = make_batch([Piece(0, [5, 6, 7], [9, 3]), Piece(11, [4], [1, 2, 8])], 4)
    slots = torch.tensor([1, 1, 1, -1])
    sent = replace(batch, adapters=adapter_rows(slots.numpy(), CPU))
    got = decoded(bytearray(b"".join(encoded(sent))))
    assert got.adapters is not None
    assert got.adapters.slots.tolist() == slots.tolist()
