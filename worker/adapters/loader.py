"""Loads adapters into the model while steps run: reads the files, and writes to slots that no step reads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Protocol

import structlog

from engine.core.commands import AdapterLoaded, Command
from engine.core.report import AdapterLoad, StepReport
from engine.errors import AdapterRefused, GroupBrokenError
from engine.model.adapters.checkpoint import AdapterFiles
from runtime.state.records import LoraRecord
from worker.adapters.catalog import AdapterCatalog, refusal_of
from worker.adapters.load_times import LoadTimes
from worker.metrics import WorkerMetrics

MAX_REFUSED = 32
"""Adapters that cannot be served of which the fleet is told why; of others, the log says it."""

log = structlog.get_logger()


class Slots(Protocol):
    """The model's side: `engine.model.adapters.attaching.Adapters`."""

    def check(self, files: AdapterFiles) -> None:
        """Raise AdapterRefused for an adapter that no slot can hold."""
        ...

    def write(self, slot: int, files: AdapterFiles) -> None:
        """Put an adapter in a slot that no step reads. Raises AdapterRefused for one that cannot be there."""
        ...


class AdapterLoader:
    """Called on the event loop; loads one adapter at a time, in the order in which the engine asks."""

    def __init__(self, catalog: AdapterCatalog, times: LoadTimes, slots: Slots) -> None:
        self._catalog = catalog
        self._times = times
        self._slots = slots
        self._loaded: dict[str, None] = {}
        self._thread = ThreadPoolExecutor(1, "adapter-loads")

    def start(
        self, submit: Callable[[Command], None], metrics: WorkerMetrics, on_change: Callable[[], None]
    ) -> None:
        """Find adapters and load them from now on; `on_change` is called when `record` has changed."""
        self._submit, self._metrics, self._on_change = submit, metrics, on_change
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker ends
                loop.call_soon_threadsafe(on_change)

        self._catalog.start(self._slots.check, tell)

    def wait_until_known(self, timeout_s: float) -> None:
        """Wait until the folder was looked through for the first time, for so long at most."""
        self._catalog.wait_until_known(timeout_s)

    def stop(self) -> None:
        """Find and load nothing more."""
        self._catalog.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def on_report(self, report: StepReport) -> None:
        """Begin the loads that the engine asks for."""
        loop = asyncio.get_running_loop()
        for load in report.adapter_loads:
            if load.evicted is not None:
                del self._loaded[load.evicted]
                self._metrics.adapters.labels("evicted").inc()
            done = loop.run_in_executor(self._thread, self._load, load)
            done.add_done_callback(partial(self._end, load))

    def record(self) -> LoraRecord:
        """Return what the fleet is told."""
        found = self._catalog.all().values()
        served = [each for each in found if each.digest]
        return LoraRecord(
            adapters={each.name: each.digest for each in served},
            load_s={
                each.digest: self._times.expect_s(each.num_bytes)
                for each in served
                if each.digest not in self._loaded
            },
            loaded=tuple(self._loaded),
            refused=dict(islice(((each.name, each.refusal) for each in found if each.refusal), MAX_REFUSED)),
        )

    def _load(self, load: AdapterLoad) -> str:
        """Load one adapter; return why it cannot be, or nothing. Runs on the thread."""
        began = time.monotonic()
        found = self._catalog.find(load.digest)
        if found is None:
            return f"{load.digest} is gone from --lora-dir, or its files have changed"
        try:
            files = self._catalog.read(found)
            if files.digest != load.digest:
                return f"{found.name} has changed: its files have the digest {files.digest}"
            self._slots.write(load.slot, files)
        except AdapterRefused as error:
            return f"{found.name}: {refusal_of(error)}"
        except (Exception, GroupBrokenError) as error:
            log.exception("adapter_load_failed", name=found.name)
            return f"{found.name} cannot be loaded ({type(error).__name__}: {error})"
        seconds = time.monotonic() - began
        self._times.observe(found.num_bytes, seconds)
        log.info("adapter_loaded", name=found.name, digest=load.digest, evicted=load.evicted, seconds=seconds)
        return ""

    def _end(self, load: AdapterLoad, done: asyncio.Future[str]) -> None:
        if done.cancelled():  # the worker ends
            return
        refusal = done.result()
        if refusal:
            log.warning("adapter_not_loaded", digest=load.digest, reason=refusal)
            self._catalog.look_soon()
        else:
            self._loaded[load.digest] = None
        self._metrics.adapters.labels("refused" if refusal else "loaded").inc()
        self._submit(AdapterLoaded(load.digest, refusal))
        self._on_change()
