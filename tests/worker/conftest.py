"""Worker processes with a real Redis and a small random model."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.forked import ForkedProcess, Zygote
from tests.model_zoo import build
from tests.redis_server import redis_server
from tests.zygote import Order
from tools.house.source_tree import ROOT

READY = re.compile(r"READY (\S+) (\S+) address=(\S+) metrics=(\S+)\n")
SMALL = (
    *("--dtype=float64", "--num-blocks=64", "--max-num-seqs=16", "--token-budget=32"),
    *("--threads=1", "--log-format=json"),
)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("llama", tmp_path_factory.mktemp("llama") / "model")


@dataclass
class WorkerProcess:
    process: ForkedProcess
    log: Path
    worker_id: str = ""
    address: str = ""
    metrics: str = ""
    starting: list[str] = field(default_factory=list)
    """Lines in which it reported its start."""

    async def terminate(self) -> int:
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Workshop:
    """Starts workers, and kills at its end what still runs."""

    zygote: Zygote
    model: Path
    redis_url: str
    folder: Path
    started: list[WorkerProcess] = field(default_factory=list)

    def start(
        self, role: str, *flags: str, model: Path | None = None, redis_url: str | None = None
    ) -> WorkerProcess:
        """Returns when the worker serves, or has exited."""
        [worker] = self.start_all((role, *flags), model=model, redis_url=redis_url)
        return worker

    def start_all(
        self, *commands: tuple[str, ...], model: Path | None = None, redis_url: str | None = None
    ) -> list[WorkerProcess]:
        """The same for several that start at the same time; each command is a role and its flags."""
        workers = [
            self._launch(command, model or self.model, redis_url or self.redis_url) for command in commands
        ]
        for worker in workers:
            line = worker.process.stdout.readline()
            while line.startswith(b"STARTING "):
                worker.starting.append(line.decode())
                line = worker.process.stdout.readline()
            ready = READY.fullmatch(line.decode())
            if ready is None:
                worker.process.wait()
            else:
                _, worker.worker_id, worker.address, worker.metrics = ready.groups()
        return workers

    def close(self) -> None:
        for worker in self.started:
            worker.process.close()

    def _launch(self, command: tuple[str, ...], model: Path, redis_url: str) -> WorkerProcess:
        role, *flags = command
        worker_id = f"{role}-{len(self.started)}-{self.folder.name}"
        log = self.folder / f"{worker_id}.log"
        common = [f"--model={model}", f"--redis={redis_url}", f"--worker-id={worker_id}"]
        arguments = (*common, f"--shm-dir={self.folder}", *SMALL, *flags)
        order = Order(f"{role}_worker", arguments, str(ROOT), {"OMP_NUM_THREADS": "1"})
        with log.open("wb") as errors:
            process = self.zygote.fork(order, errors)
        self.started.append(WorkerProcess(process, log))
        return self.started[-1]


@pytest.fixture
def workshop(zygote: Zygote, redis_url: str, model: Path, tmp_path: Path) -> Iterator[Workshop]:
    """For workers that do not outlive the test."""
    with closing(Workshop(zygote, model, redis_url, tmp_path)) as shop:
        yield shop


@dataclass(frozen=True)
class Pair:
    source: WorkerProcess
    target: WorkerProcess
    redis_url: str


@pytest.fixture(scope="session")
def pair(zygote: Zygote, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A prefill and a decode worker for all tests that leave them as they were.

    In a Redis of their own: they go on announcing themselves, and other tests count who is there.
    """
    with (
        redis_server() as server,
        closing(Workshop(zygote, model, server.url, tmp_path_factory.mktemp("pair"))) as shop,
    ):
        source, target = shop.start_all(("prefill",), ("decode",))
        yield Pair(source, target, server.url)
