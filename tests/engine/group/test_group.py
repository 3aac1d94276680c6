"""A group refuses what it cannot compute, and ends when a process of it is gone."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.building.build import build, follow_leader
from engine.building.settings import EngineSettings
from engine.errors import GroupBrokenError, GroupRefused
from engine.execution.model_runner import ModelRunner
from engine.group.leader import Leader
from engine.group.links import Kind, Link
from engine.group.opening import Opening
from engine.model.adapters.attaching import AdapterRoom
from engine.model.allow_list import read_config
from engine.model.fingerprint import fingerprint
from engine.model.model import load_model
from engine.model.parallel.cutting import check_divides
from engine.model.parallel.part import Part
from engine.starting import ignore_progress
from tests import model_zoo
from tests.engine.group_driver import BLOCK_SIZE, CPU, MOST_TOKENS, grouped, pool_of
from tests.engine.ragged import Piece, make_batch
from tests.engine.small_settings import small_settings

BATCH = make_batch([Piece(0, [5, 6, 7], [9])], BLOCK_SIZE)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_zoo.build("llama", tmp_path_factory.mktemp("llama") / "model")


def settings(model: Path, part: Part) -> EngineSettings:
    return small_settings(model, dtype=torch.float64, block_size=BLOCK_SIZE, part=part)


def wait_for(settings: EngineSettings, name: str) -> None:
    """Let a leader with weights of the fingerprint `name` wait for a follower with these settings."""
    own, theirs = Link.pair()
    thread = threading.Thread(target=follow_leader, args=(settings, theirs))
    thread.start()
    try:
        Leader([own]).wait_ready(name, ignore_progress)
    finally:
        own.close()
        thread.join()
        theirs.close()


def test_a_follower_with_the_leader_s_weights_is_taken(llama: Path) -> None:
    layout = load_model(llama, torch.float64, CPU).block_layout(BLOCK_SIZE)
    wait_for(settings(llama, Part(1, 2)), fingerprint(llama, layout))


def test_a_follower_with_other_weights_is_refused(llama: Path, tmp_path: Path) -> None:
    layout = load_model(llama, torch.float64, CPU).block_layout(BLOCK_SIZE)
    other = model_zoo.build("llama", tmp_path / "other", seed=2)
    own = fingerprint(llama, layout)
    expected = f"rank 1 holds weights of the fingerprint [0-9a-f]+; accepted: {own}, the leader's"
    with pytest.raises(GroupRefused, match=expected):
        wait_for(settings(other, Part(1, 2)), own)


def test_a_follower_with_other_room_for_adapters_is_refused(llama: Path) -> None:
    own = replace(settings(llama, Part(1, 2)), adapter_room=AdapterRoom(1024 * 1024, 8))
    expected = (
        "rank 1 holds weights of the fingerprint [0-9a-f]+ with [0-9]+ slots for adapters of rank 8; acc"
    )
    with pytest.raises(GroupRefused, match=expected):
        wait_for(own, "name with 2 slots for adapters of rank 16")


def test_what_a_follower_refuses_the_leader_says(llama: Path, tmp_path: Path) -> None:
    expected = r"--tensor-parallel 2: its process of rank 1 cannot serve \(model .* is not a directory"
    with pytest.raises(GroupRefused, match=expected):
        wait_for(settings(tmp_path / "none", Part(1, 2)), "name")


def test_a_follower_that_ends_while_it_loads_is_noticed() -> None:
    own, theirs = Link.pair()
    theirs.close()
    with pytest.raises(GroupRefused, match="rank 1 ended while it started"):
        Leader([own]).wait_ready("name", ignore_progress)
    own.close()


@pytest.mark.parametrize(
    ("name", "size", "sentence"),
    [
        (
            "llama",
            3,
            "--tensor-parallel is 3; accepted: 1, 2, as the model has .*4 attention heads and 2 KV heads",
        ),
        ("llama", 4, "--tensor-parallel is 4; accepted: 1, 2, as"),
        ("gpt2", 8, "--tensor-parallel is 8; accepted: 1, 2, 4, as the model has 4 attention heads"),
        ("qwen3_moe", 64, "32 rows of an expert"),
    ],
)
def test_parts_that_are_not_equal_are_refused(name: str, size: int, sentence: str, tmp_path: Path) -> None:
    config = read_config(model_zoo.build(name, tmp_path / "model"))
    check_divides(config, 2)
    with pytest.raises(ValueError, match=sentence):
        check_divides(config, size)


def test_a_model_that_cannot_be_cut_is_refused_before_it_is_read(llama: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((llama / name).read_bytes())
    with pytest.raises(ValueError, match="--tensor-parallel is 3; accepted: 1, 2, as"):
        build(settings(tmp_path, Part(0, 3)))


def test_a_step_that_fails_ends_the_group(
    llama: Path, monkeypatch: pytest.MonkeyPatch, without_native: None
) -> None:
    with grouped(llama, torch.float64, 2) as runner:
        runner.forward(BATCH)

        def fail(*_: object) -> None:
            raise MemoryError("no memory")

        monkeypatch.setattr(runner, "_run", fail)
        with pytest.raises(GroupBrokenError, match="a step failed: no memory"):
            runner.forward(BATCH)


def test_a_follower_that_is_gone_ends_the_group(llama: Path, without_native: None) -> None:
    """Where native ops wait, they cannot see it: the worker watches its processes."""
    own, theirs = Link.pair()
    model = load_model(llama, torch.float64, CPU, part=Part(0, 2))
    theirs.send(Kind.READY, [b"name"])
    leader = Leader([own])
    leader.wait_ready("name", ignore_progress)
    runner = ModelRunner(model, pool_of(model), leader)
    leader.open(runner, MOST_TOKENS)
    message = theirs.receive()
    assert message is not None
    opening = Opening.received(message)
    opening.close_memory()
    opening.close_sockets()
    with pytest.raises(GroupBrokenError, match="a process of the group is gone"):
        runner.forward(BATCH)
    theirs.close()
    with pytest.raises(GroupBrokenError, match="a process of the group is gone"):
        runner.forward(BATCH)
    own.close()
    leader.close()


def test_a_follower_ends_with_its_leader(llama: Path) -> None:
    with grouped(llama, torch.float64, 2) as runner:
        runner.forward(BATCH)
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("(follow)")]
