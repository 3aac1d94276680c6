"""Adapters are loaded on a thread when the engine asks, and the fleet is told of what is in memory."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import pytest_asyncio

from engine.core.commands import AdapterLoaded, Command
from engine.core.report import AdapterLoad, StepReport
from engine.model.adapters.checkpoint import AdapterFiles, read_adapter
from tests.adapters import write_adapter
from tests.model_zoo import build
from tests.patience import PATIENCE_S
from worker.adapters.catalog import AdapterCatalog
from worker.adapters.load_times import LoadTimes
from worker.adapters.loader import AdapterLoader
from worker.metrics import WorkerMetrics

pytestmark = pytest.mark.asyncio


class Slots:
    """The digests that were written, by slot."""

    def __init__(self) -> None:
        self.written: dict[int, str] = {}

    def check(self, files: AdapterFiles) -> None:
        """Take everything."""

    def write(self, slot: int, files: AdapterFiles) -> None:
        self.written[slot] = files.digest


class Loading:
    """A loader over a folder with two adapters, and the commands that it submits."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.slots = folder, Slots()
        self.commands: asyncio.Queue[Command] = asyncio.Queue()
        self.num_changes = 0
        times = LoadTimes()
        self.catalog = AdapterCatalog(folder, times)
        self.loader = AdapterLoader(self.catalog, times, self.slots)
        self.digests = {name: read_adapter(name, folder / name).digest for name in ("red", "blue")}

    async def start(self) -> None:
        self.loader.start(self.commands.put_nowait, WorkerMetrics(), self._count)
        await asyncio.to_thread(self.loader.wait_until_known, PATIENCE_S)

    async def look_no_more(self) -> None:
        """Let what changes from now on not be found."""
        self.catalog.stop()
        await asyncio.to_thread(self.catalog._thread.join)

    async def load(self, name: str, slot: int, evicted: str | None = None) -> AdapterLoaded:
        digest = self.digests[name]
        load = AdapterLoad(digest, slot, None if evicted is None else self.digests[evicted])
        self.loader.on_report(StepReport(adapter_loads=[load]))
        done = await asyncio.wait_for(self.commands.get(), PATIENCE_S)
        assert isinstance(done, AdapterLoaded)
        assert done.digest == digest
        return done

    def _count(self) -> None:
        self.num_changes += 1


@pytest_asyncio.fixture
async def loading(tmp_path: Path) -> Loading:
    base = build("llama", tmp_path / "base")
    for seed, name in enumerate(("red", "blue")):
        write_adapter(base, tmp_path / "adapters" / name, seed=seed)
    made = Loading(tmp_path / "adapters")
    await made.start()
    return made


async def test_the_record_says_what_is_in_memory_and_what_the_rest_takes(loading: Loading) -> None:
    red, blue = loading.digests["red"], loading.digests["blue"]
    record = loading.loader.record()
    assert record.adapters == loading.digests
    assert record.loaded == ()
    assert set(record.load_s) == {red, blue}
    assert min(record.load_s.values()) > 0
    before = loading.num_changes
    assert not (await loading.load("red", 0)).refusal
    assert loading.slots.written == {0: red}
    assert loading.num_changes > before
    record = loading.loader.record()
    assert (record.loaded, set(record.load_s)) == ((red,), {blue})
    await loading.load("blue", 0, evicted="red")
    record = loading.loader.record()
    assert (record.loaded, set(record.load_s)) == ((blue,), {red})
    loading.loader.stop()


async def test_changed_files_are_not_loaded_under_the_old_digest(
    loading: Loading,
) -> None:
    await loading.look_no_more()
    shutil.copy(loading.folder / "blue" / "adapter_model.safetensors", loading.folder / "red")
    refusal = (await loading.load("red", 0)).refusal
    assert refusal.startswith("red has changed: its files have the digest ")
    assert loading.slots.written == {}
    assert loading.loader.record().loaded == ()


async def test_files_that_are_gone_are_refused_with_the_reason(loading: Loading) -> None:
    await loading.look_no_more()
    (loading.folder / "red" / "adapter_config.json").unlink()
    refusal = (await loading.load("red", 0)).refusal
    assert refusal == "red: adapter_config.json is missing; accepted: what peft's save_pretrained writes"
    assert not (await loading.load("blue", 0)).refusal
