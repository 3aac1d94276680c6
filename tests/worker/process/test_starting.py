"""A worker that cannot serve ends with an exit code of its own and one sentence."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from engine.starting import Phase
from tests.adapters import write_adapter
from tests.model_zoo import build
from tests.worker.conftest import Pair, WorkerProcess, Workshop

pytestmark = pytest.mark.integration

STARTING = re.compile(r"STARTING decode_worker \S+ done=(\d+) total=(\d+) phase=(?P<phase>.+)\n")


def said(worker: WorkerProcess) -> str:
    """The only thing on stderr but for log lines."""
    lines = [line for line in worker.log.read_text().splitlines() if not line.startswith("{")]
    assert len(lines) == 1, lines
    return lines[0]


def test_a_start_is_told_phase_by_phase_on_stdout_and_in_the_log(workshop: Workshop) -> None:
    worker = workshop.start("decode", "--deterministic")
    told = [STARTING.fullmatch(line) for line in worker.starting]
    assert all(told), worker.starting
    phases = list(dict.fromkeys(line["phase"] for line in told if line is not None))
    assert phases == [phase.value for phase in Phase if phase.value in phases]
    assert {"importing", "reading weights", "proving determinism", "measuring steps"} <= set(phases)
    worker.process.terminate()
    worker.process.wait()  # its log is whole
    logged = [json.loads(line) for line in worker.log.read_text().splitlines() if line.startswith("{")]
    assert list(dict.fromkeys(entry["phase"] for entry in logged if entry["event"] == "starting")) == phases


def test_redis_that_does_not_answer(workshop: Workshop) -> None:
    worker = workshop.start("decode", redis_url="redis://127.0.0.1:1/0")
    assert worker.process.returncode == 3
    assert "Redis at redis://127.0.0.1:1/0 does not answer" in said(worker)


def test_a_model_directory_that_is_missing(workshop: Workshop, tmp_path: Path) -> None:
    worker = workshop.start("prefill", model=tmp_path / "nowhere")
    assert worker.process.returncode == 4
    assert str(tmp_path / "nowhere") in said(worker)


def test_an_adapter_of_another_base(workshop: Workshop, tmp_path: Path) -> None:
    other = write_adapter(build("phi3", tmp_path / "other"), tmp_path / "adapter", seed=1)
    worker = workshop.start("decode", f"--lora=red={other}")
    assert worker.process.returncode == 4
    assert f"--lora red={other}: " in said(worker)
    assert "is no linear layer of the base model that can be adapted" in said(worker)


def test_a_model_whose_weights_are_truncated(workshop: Workshop, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(workshop.model, broken)
    weights = next(broken.glob("*.safetensors"))
    os.truncate(weights, weights.stat().st_size // 2)
    worker = workshop.start("decode", model=broken)
    assert worker.process.returncode == 4
    assert str(broken) in said(worker)


def test_a_wrong_setting(workshop: Workshop) -> None:
    worker = workshop.start("decode", "--threads=-1")
    assert worker.process.returncode == 2
    assert said(worker).startswith("--threads is -1; accepted: 0 to ")


def test_another_block_size_than_the_fleets(pair: Pair, workshop: Workshop) -> None:
    worker = workshop.start("decode", "--block-size=8", redis_url=pair.redis_url)
    assert worker.process.returncode == 5
    assert "--block-size is 8" in said(worker)
    assert "has 16" in said(worker)


def test_other_weights_than_the_fleets(pair: Pair, workshop: Workshop) -> None:
    worker = workshop.start("prefill", "--dtype=float32", redis_url=pair.redis_url)
    assert worker.process.returncode == 5
    assert "fingerprint" in said(worker)


@pytest.mark.parametrize("flag", ["--listen", "--metrics-port"])
def test_an_address_in_use(pair: Pair, workshop: Workshop, flag: str) -> None:
    address = pair.target.address if flag == "--listen" else pair.target.metrics
    worker = workshop.start("decode", f"{flag}={address if flag == '--listen' else address.split(':')[1]}")
    assert worker.process.returncode == 2
    log = worker.log.read_text()
    last = log.splitlines()[-1]  # gRPC has its own word before
    assert last.startswith(f"{flag} is {address}, which cannot be bound: ")
    assert "; accepted: " in last
    assert "Traceback" not in log


def test_sockets_are_removed_at_the_end_and_after_a_kill(workshop: Workshop, tmp_path: Path) -> None:
    killed = workshop.start("prefill")
    assert len(list(tmp_path.glob("*.sock"))) == 1
    killed.kill()
    assert len(list(tmp_path.glob("*.sock"))) == 1
    second = workshop.start("prefill")
    assert len(list(tmp_path.glob("*.sock"))) == 1, "the successor's own"
    second.process.send_signal(signal.SIGINT)
    assert second.process.wait() == 0
    assert list(tmp_path.glob("*.sock")) == []
