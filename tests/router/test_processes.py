"""`python -m router --processes`: one port for all, one end for all, and a replacement for one that dies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import pytest

from baton.operators.v1 import fleet_pb2, fleet_pb2_grpc
from benchmarks.doors.observe import child_processes
from router.config import parse_config
from router.processes import MAX_DEATHS, WITHIN_S, config_of
from tests.patience import PATIENCE_S
from tests.ports import free_port

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
ATTEMPTS = 3


@contextlib.contextmanager
def started(*flags: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Start a router named r, and yield it with its ready line."""
    with subprocess.Popen(
        [sys.executable, "-m", "router", "--router-id", "r", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            words = process.stdout.readline().split()
            assert words[:3] == ["READY", "router", "r"]
            yield process, dict(word.split("=", 1) for word in words[3:])
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def flags(redis_url: str, model_path: Path) -> tuple[str, ...]:
    return "--listen", "127.0.0.1:0", "--redis", redis_url, "--model", str(model_path), "--processes", "2"


def leaves(*flags: str) -> tuple[int, str]:
    run = subprocess.run(
        [sys.executable, "-m", "router", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    return run.returncode, run.stderr


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def have_ended(process_ids: Sequence[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in process_ids)


def has_replaced(parent: int, killed: int, kept: int) -> bool:
    now = child_processes(parent)
    return len(now) == 2 and kept in now and killed not in now


def wait_for_both(address: str) -> None:
    """Connect until two routers have been reached, r.0 and r.1."""
    names = set[str]()
    while names != {"r.0", "r.1"}:
        with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            watch = fleet_pb2_grpc.FleetServiceStub(channel).Watch(
                fleet_pb2.WatchRequest(), timeout=PATIENCE_S, wait_for_ready=True
            )
            names.add(next(iter(watch)).router_id)


def test_all_processes_serve_at_the_port_and_leave_together(flags: tuple[str, ...]) -> None:
    with started(*flags) as (process, ready):
        wait_for_both(ready["address"])
        assert len(set(ready["metrics"].split(","))) == 2
        mine = child_processes(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert have_ended(mine)


@pytest.mark.parametrize("others", ["1", "2"])
@pytest.mark.parametrize("mine", ["1", "2"])
def test_a_port_that_others_have_is_refused(mine: str, others: str, flags: tuple[str, ...]) -> None:
    with started(*flags, "--processes", others) as (_, ready):
        code, said = leaves(*flags, "--listen", ready["address"], "--processes", mine)
    assert code == 2
    assert said.splitlines()[-1].startswith(f"--listen is {ready['address']}, which cannot be bound: ")


def test_each_process_has_an_id_and_a_metrics_port_of_its_own(model_path: Path) -> None:
    config = parse_config(
        ["--model", str(model_path), "--processes", "3", "--router-id", "r", "--metrics-port", "9100"], 1
    )
    configs = [config_of(config, index, 50051) for index in range(3)]
    assert [own.router_id for own in configs] == ["r.0", "r.1", "r.2"]
    assert [own.service.metrics_port for own in configs] == [9100, 9101, 9102]
    anywhere = replace(config, service=replace(config.service, metrics_port=0))
    assert [config_of(anywhere, index, 50051).service.metrics_port for index in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--processes", "0"), "--processes is 0; accepted: 1 or more"),
        (("--metrics-port", "65535"), "--metrics-port is 65535; accepted: 0 to 65534"),
        (("--record", "/tmp/log"), "--record is '/tmp/log'; accepted: with --processes 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    wrong: tuple[str, str], said: str, flags: tuple[str, ...]
) -> None:
    code, error = leaves(*flags, *wrong)
    assert (code, error.strip()) == (2, said)


def test_a_process_that_cannot_start_ends_all_with_its_code(flags: tuple[str, ...], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as other:
        port = other.getsockname()[1]
        code, said = leaves(*flags, "--metrics-port", str(port - 1))
    assert code == 2
    assert f"--metrics-port is 127.0.0.1:{port}, which cannot be bound" in said
    code, said = leaves(*flags, "--model", str(tmp_path / "nowhere"))
    assert (code, "nowhere" in said) == (4, True)


def test_a_process_that_dies_is_replaced_until_too_many_have_died(flags: tuple[str, ...]) -> None:
    for _ in range(ATTEMPTS):
        with started(*flags) as (process, ready):
            began_s = time.monotonic()
            for _ in range(MAX_DEATHS):
                first, other = child_processes(process.pid)
                helpers = child_processes(first)
                os.kill(first, signal.SIGKILL)
                until(partial(have_ended, helpers))
                until(partial(has_replaced, process.pid, first, other))
                wait_for_both(ready["address"])
            os.kill(child_processes(process.pid)[0], signal.SIGKILL)
            if time.monotonic() - began_s > WITHIN_S / 2:  # the first death may be forgotten by now
                continue
            assert process.wait(PATIENCE_S) == 128 + signal.SIGKILL
            assert process.stderr is not None
            assert "ended with exit code -9; all stop" in process.stderr.read()
            return
    raise AssertionError("this machine is too slow for so many deaths in that time")


def test_all_leave_when_the_parent_is_killed(flags: tuple[str, ...]) -> None:
    with started(*flags) as (process, _):
        mine = child_processes(process.pid)
        mine += [helper for pid in mine for helper in child_processes(pid)]
        assert len(mine) > 2, "each has a tokenizer"
        process.kill()
        until(partial(have_ended, mine))
