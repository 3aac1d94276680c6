"""Recorded traffic of others is played with the promises, the speed and the part that flags ask for."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.placement import Placement
from sim.__main__ import flags, main
from sim.commands.arguments import load_of
from sim.commands.arms import Arm
from sim.commands.simulate import spec_of
from sim.play.simulation import run
from sim.spec import FleetShape
from sim.workloads.trace import TraceRequest
from tests.sim.workloads.formats.written import WRITERS

TURNS = tuple(
    TraceRequest(
        float(turn),
        512 * (turn + 1),
        8,
        shared_blocks=tuple(range(turn + 1)),
        shared_block_tokens=512,
    )
    for turn in range(10)
)
"""A conversation: each prompt begins with the one before."""


def written(folder: Path, name: str, trace: tuple[TraceRequest, ...] = TURNS) -> Path:
    path = folder / f"{name}.gz"
    path.write_bytes(gzip.compress("".join(WRITERS[name](trace)).encode()))
    return path


def played(path: Path, *typed: str) -> tuple[TraceRequest, ...]:
    args = flags().parse_args(["simulate", "--trace", str(path), *typed])
    return load_of(args).trace(1.0, 0)


@pytest.fixture(scope="module")
def conversation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("traces"), "mooncake")


PAIRS = (
    ("--trace-format", "mooncake"),
    ("--speed", "2"),
    ("--from", "3"),
    ("--for", "5"),
    ("--scale", "0.5"),
    ("--ttft-ms", "900"),
    ("--tpot-x", "4"),
    ("--policy", "slack"),
)


@given(st.permutations(PAIRS))
def test_flags_may_come_in_any_order(conversation: Path, pairs: list[tuple[str, str]]) -> None:
    typed = tuple(itertools.chain.from_iterable(pairs))
    assert played(conversation, *typed) == played(conversation, *itertools.chain.from_iterable(PAIRS))


def test_a_part_is_played_as_fast_as_asked(conversation: Path) -> None:
    requests = played(conversation, "--from", "3", "--for", "5", "--speed", "2", "--ttft-ms", "900")
    assert [request.at_s for request in requests] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert [request.prompt_tokens for request in requests] == [
        request.prompt_tokens for request in TURNS[3:8]
    ]
    assert {request.ttft_ms for request in requests} == {900}
    assert all(request.tpot_ms for request in requests)


def test_promises_are_multiples_of_times_without_load(conversation: Path) -> None:
    (once,), (ten_times,) = (
        {request.ttft_ms for request in played(conversation, "--ttft-x", ratio)} for ratio in ("5", "50")
    )
    assert once is not None
    assert ten_times == pytest.approx(10 * once, abs=10)
    assert {request.ttft_ms for request in played(conversation, "--no-slo")} == {None}


def test_recorded_promises_stay_unless_flags_state_others(tmp_path: Path) -> None:
    path = written(tmp_path, "baton", (TraceRequest(0.0, 9, 1, ttft_ms=77), TraceRequest(1.0, 9, 1)))
    assert [request.ttft_ms for request in played(path)] == [77, None]
    assert [request.ttft_ms for request in played(path, "--ttft-ms", "50")] == [50, 50]
    assert [request.ttft_ms for request in played(path, "--no-slo")] == [None, None]


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_every_format_is_simulated(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    typed = ["--policy", "slack", "--fleet", "1d", "--speed", "5", "--json", str(out)]
    assert main(["simulate", "--trace", str(written(tmp_path, name)), *typed]) == 0
    document = json.loads(out.read_text())
    assert document["trace"]["format"] == name
    assert document["trace"]["duration_s"] == pytest.approx(9 / 5)
    assert document["runs"][0]["metrics"]["finished"] == 9  # the first tenth warms up
    assert f"{name}.gz, 5." in capsys.readouterr().out


def test_shared_blocks_are_found_in_the_cache(conversation: Path) -> None:
    args = flags().parse_args(["simulate", "--trace", str(conversation), "--fleet", "1d", "--no-slo"])
    trace = load_of(args).trace(1.0, 0)
    spec = spec_of(args, Arm("slack", Placement.AGGREGATED, FleetShape(0, 1), None), trace, 0)
    results = run(spec).requests
    assert [request.cached_tokens for request in results] == [512 * turn for turn in range(10)]


def test_what_is_left_out_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed, long = TraceRequest(9.0, 5, 0), TraceRequest(9.5, 131_000, 100)
    path = written(tmp_path, "azure", (*TURNS, failed, failed, long))
    assert main(["simulate", "--trace", str(path), "--policy", "slack", "--fleet", "1d"]) == 0
    shown = capsys.readouterr().out
    assert "requests left out, without a prompt or without an output: 2" in shown
    assert "requests left out, longer than the model's context: 1" in shown


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--from", "100"], "has no request from 100 s for inf s; accepted: at least one"),
        (["--trace-format", "azure"], "line 1: the header is "),
        (["--rate", "3"], "--rate or --load is given beside --trace; accepted: --speed"),
        (["--load", "1"], "--rate or --load is given beside --trace; accepted: --speed"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    conversation: Path, typed: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--trace", str(conversation), *typed]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_file_that_breaks_off_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "azure")
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["simulate", "--trace", str(path)]) == 2
    assert f"trace {path} cannot be read (" in capsys.readouterr().err
