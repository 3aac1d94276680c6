"""Adapters that are loaded into a model while it computes: the right tokens, under a budget of memory."""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from engine.core.adapters import AdapterSlots
from engine.core.commands import AdapterLoaded, Cancel, Command, Decode
from engine.core.report import AdapterLoad, StepReport
from engine.errors import AdapterRefused
from engine.model.adapters.attaching import AdapterRoom, Adapters
from engine.model.adapters.checkpoint import AdapterFiles, read_adapter
from engine.model.model import Model, load_model
from scheduling.request import FailureReason, StopRules
from tests.adapters import merge, write_adapter
from tests.engine.loop_driver import spec
from tests.engine.real_engine import Engine
from tests.model_zoo import CASES, build, stock_generate

CPU = torch.device("cpu")
RANK = 8
MEBIBYTE = 1024 * 1024
NUM_TOKENS = 9
NAMES = ["red", "green", "", "blue", "red", "green"]
PROMPTS = [[5], list(range(3, 20)), [7, 9] * 9, [60, 50, 40, 30], list(range(3, 32)), [11, 12]]


@dataclass(frozen=True)
class Family:
    """A model with room for adapters, the files of three, and checkpoints with each merged in."""

    base: Path
    files: dict[str, AdapterFiles]
    merged: dict[str, Path]

    def decode(self, handle: int, prompt: list[int], name: str, num_tokens: int = NUM_TOKENS) -> Decode:
        digest = self.files[name].digest if name else ""
        return Decode(
            replace(spec(handle, prompt, stop=StopRules(num_tokens, ignore_eos=True)), adapter=digest)
        )

    def expected(self, prompt: list[int], name: str) -> list[int]:
        return stock_generate(self.merged[name], prompt, NUM_TOKENS).tokens


def family(name: str, folder: Path) -> Family:
    base = build(name, folder / "base")
    ranks = {"red": 4, "green": 2, "blue": RANK}
    targets = {"red": ("q_proj", "down_proj"), "green": (), "blue": ()} if name == "llama" else {}
    paths = {
        adapter: write_adapter(base, folder / adapter, seed=seed, rank=rank, targets=targets.get(adapter, ()))
        for seed, (adapter, rank) in enumerate(ranks.items())
    }
    files = {adapter: read_adapter(adapter, path) for adapter, path in paths.items()}
    merged = {adapter: merge(base, path, folder / f"merged-{adapter}") for adapter, path in paths.items()}
    return Family(base, files, {"": base} | merged)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return family("llama", tmp_path_factory.mktemp("llama"))


def model_for(
    base: Path, num_slots: int, dtype: torch.dtype = torch.float64, *, fused: bool = False
) -> Model:
    """Load a model with room for exactly so many adapters."""
    for num_bytes in range(MEBIBYTE // 64, 64 * MEBIBYTE, MEBIBYTE // 64):
        try:
            model = load_model(base, dtype, CPU, fused=fused, adapter_room=AdapterRoom(num_bytes, RANK))
        except ValueError:
            continue
        assert model.adapters is not None
        slot_bytes = num_bytes // model.adapters.num_slots
        if model.adapters.num_slots == num_slots:
            return model
        room = AdapterRoom(num_slots * slot_bytes, RANK)
        return load_model(base, dtype, CPU, fused=fused, adapter_room=room)
    raise AssertionError("no size fits")


class Loading:
    """An engine beside a loader, as in a worker: loads are carried out between turns, each after `delay`."""

    def __init__(self, made: Family, model: Model, token_budget: int = 12, delay: int = 0) -> None:
        assert model.adapters is not None
        self.adapters: Adapters = model.adapters
        self._files = {files.digest: files for files in made.files.values()}
        slots = AdapterSlots(model.adapters.num_slots, loadable=self._files)
        self.engine = Engine(model, token_budget, adapters=slots)
        self._delay = delay
        self.loads: list[AdapterLoad] = []
        self._due: deque[tuple[int, AdapterLoad]] = deque()
        self._turn = 0
        self.broken: set[str] = set()

    def finish(self, *commands: Command) -> None:
        inbox, is_done = list(commands), False

        def drain(timeout_s: float) -> list[Command]:
            nonlocal is_done
            self._turn += 1
            taken = inbox[:]
            inbox.clear()
            while self._due and (self._due[0][0] <= self._turn or timeout_s == math.inf):
                taken.append(self._load(self._due.popleft()[1]))
            is_done = timeout_s == math.inf and not taken
            return taken

        def emit(report: StepReport) -> None:
            self.engine.reports.append(report)
            self.loads += report.adapter_loads
            self._due += [(self._turn + self._delay, load) for load in report.adapter_loads]

        self.engine.loop.run(drain, emit, lambda: is_done)
        self.engine.loop.check_integrity()

    def _load(self, load: AdapterLoad) -> AdapterLoaded:
        files = self._files[load.digest]
        if files.name in self.broken:
            return AdapterLoaded(load.digest, f"{files.name}: its file is gone")
        self.adapters.write(load.slot, files)
        return AdapterLoaded(load.digest)


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_merged_weights_with_room_for_one_adapter(name: str, tmp_path: Path) -> None:
    made = family(name, tmp_path)
    loading = Loading(made, model_for(made.base, 1))
    loading.finish(*(made.decode(h, p, n) for h, (p, n) in enumerate(zip(PROMPTS, NAMES, strict=True))))
    for handle, (prompt, adapter) in enumerate(zip(PROMPTS, NAMES, strict=True)):
        assert loading.engine.tokens(handle) == made.expected(prompt, adapter), adapter
    assert [load.evicted for load in loading.loads] == [
        None, made.files["red"].digest, made.files["green"].digest
    ]  # fmt: skip


def test_others_go_on_while_an_adapter_is_loaded(llama: Family) -> None:
    loading = Loading(llama, model_for(llama.base, 2), delay=5)
    loading.finish(llama.decode(1, PROMPTS[0], "red"), llama.decode(2, PROMPTS[2], ""))
    first = {
        handle: next(
            place for place, report in enumerate(loading.engine.reports) if handle in report.tokens.handles
        )
        for handle in (1, 2)
    }
    assert first[1] > first[2] + 3
    assert loading.engine.tokens(1) == llama.expected(PROMPTS[0], "red")
    assert loading.engine.tokens(2) == llama.expected(PROMPTS[2], "")


def test_a_slot_keeps_nothing_of_the_adapter_before(llama: Family) -> None:
    """Blue has the largest rank and all layers; red has a smaller rank, and two of them."""
    loading = Loading(llama, model_for(llama.base, 1))
    for handle, name in enumerate(("blue", "red")):
        loading.finish(llama.decode(handle, PROMPTS[1], name))
        assert loading.engine.tokens(handle) == llama.expected(PROMPTS[1], name)


def test_a_loaded_adapter_is_not_loaded_again(llama: Family) -> None:
    loading = Loading(llama, model_for(llama.base, 2))
    for handle, name in enumerate(("red", "green", "red", "green", "blue", "green", "red")):
        loading.finish(llama.decode(handle, PROMPTS[3], name))
    digests = {files.digest: name for name, files in llama.files.items()}
    assert [digests[load.digest] for load in loading.loads] == ["red", "green", "blue", "red"]


def test_an_adapter_that_cannot_be_loaded_fails_its_sequences_alone(llama: Family) -> None:
    loading = Loading(llama, model_for(llama.base, 1))
    loading.broken = {"red"}
    loading.finish(
        llama.decode(1, PROMPTS[0], "red"), llama.decode(2, PROMPTS[1], "green"), llama.decode(3, [4], "red")
    )
    failures = [failure for report in loading.engine.reports for failure in report.failures]
    assert [(each.handle, each.reason) for each in failures] == [
        (1, FailureReason.REFUSED), (3, FailureReason.REFUSED)
    ]  # fmt: skip
    assert failures[0].message == "adapter red: its file is gone"
    assert loading.engine.tokens(2) == llama.expected(PROMPTS[1], "green")


def test_sequences_that_end_while_they_wait_leave_nothing_behind(llama: Family) -> None:
    loading = Loading(llama, model_for(llama.base, 1), delay=3)
    requests = [llama.decode(handle, PROMPTS[1], name) for handle, name in enumerate(("red", "green", "red"))]
    loading.finish(*requests, Cancel(1), Cancel(2))
    assert loading.engine.tokens(0) == llama.expected(PROMPTS[1], "red")
    loading.finish(llama.decode(9, PROMPTS[1], "green"))
    assert loading.engine.tokens(9) == llama.expected(PROMPTS[1], "green")


@pytest.mark.parametrize("fused", [False, True])
def test_a_slot_is_written_while_steps_of_another_run(llama: Family, fused: bool) -> None:
    """A second thread writes adapters to a free slot over and over; nobody's tokens change."""
    model = model_for(llama.base, 2, torch.float32, fused=fused)
    loading = Loading(llama, model)
    assert model.adapters is not None
    loading.finish(llama.decode(1, PROMPTS[1], "red", 40))
    want, stopped = loading.engine.tokens(1), threading.Event()
    free = 1 - loading.loads[0].slot

    def write() -> None:
        while not stopped.is_set():
            for name in ("blue", "green"):
                loading.adapters.write(free, llama.files[name])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for handle in range(2, 8):
            loading.finish(llama.decode(handle, PROMPTS[1], "red", 40))
            assert loading.engine.tokens(handle) == want
    finally:
        stopped.set()
        thread.join()


def test_an_adapter_of_a_larger_rank_than_the_slots_is_refused(llama: Family, tmp_path: Path) -> None:
    model = model_for(llama.base, 1)
    files = read_adapter("big", write_adapter(llama.base, tmp_path / "big", seed=3, rank=RANK + 1))
    assert model.adapters is not None
    with pytest.raises(AdapterRefused) as refused:
        model.adapters.write(0, files)
    assert (refused.value.field, refused.value.found) == ("r", "is 9")
    assert refused.value.accepted == "1 to 8, the --lora-rank of this worker"


def test_room_for_no_adapter_is_refused(llama: Family) -> None:
    with pytest.raises(ValueError, match=r"--lora-memory-mb is 0; accepted: 1 or more, which one adapter of"):
        load_model(llama.base, torch.float64, CPU, adapter_room=AdapterRoom(1000, RANK))
