"""The command checks its arguments before it starts a fleet."""

from __future__ import annotations

import argparse

import pytest

from baton.fleet import FleetSpec
from benchmarks.__main__ import flags, main
from benchmarks.doors.metrics import RequestRecord
from benchmarks.flags import DEMO_MODEL
from benchmarks.fleets.bench import run_times
from benchmarks.fleets.reference import gaps_together
from benchmarks.fleets.targets import Variant, spec_of, variants


def parsed(*argv: str) -> argparse.Namespace:
    return flags(["bench"]).parse_args(["bench", *argv])


def test_every_policy_meets_every_placement() -> None:
    found = [variant.name for variant in variants(["slack", "chunked"], ["aggregated", "conditional"])]
    assert found == ["slack/aggregated", "slack/conditional", "chunked/aggregated", "chunked/conditional"]
    assert [variant.name for variant in variants([], [])] == ["default"]
    assert [variant.name for variant in variants(["slack"], [], ["grpc", "openai"])] == [
        "slack/grpc",
        "slack/openai",
    ]


def test_aggregated_fleets_are_as_large_as_the_others() -> None:
    base = FleetSpec(DEMO_MODEL, prefill=2, decode=3)
    assert spec_of(Variant("slack", "aggregated"), base).num_workers == 5
    assert spec_of(Variant("slack", "aggregated"), base).prefill == 0
    assert spec_of(Variant("slack", "disaggregated"), base).prefill == 2
    assert spec_of(Variant(door="openai"), base).gateways == 1
    assert spec_of(Variant(door="grpc"), base).gateways == 0


def test_arms_send_the_same_requests_at_the_same_times() -> None:
    args = parsed("--duration-s", "5")
    assert run_times(args, 20.0, 1) == run_times(args, 20.0, 1)
    assert run_times(args, 20.0, 1) != run_times(args, 20.0, 2)
    assert max(run_times(args, 20.0, 1)) < 5


def test_a_burst_is_bounded_by_its_requests() -> None:
    assert run_times(parsed("--arrivals", "burst", "--requests", "3"), 1.0, 1) == [0.0] * 3


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--address", "127.0.0.1:1", "--policy", "slack"], "--address names a running fleet"),
        (["--running", "--policy", "slack"], "--running names a running fleet"),
        (["--running", "/nowhere"], "no fleet that `baton up` started answers in /nowhere"),
        (["--policy", "slack,slack"], "each name once"),
        (["--door", "telnet"], "--door is telnet; accepted: grpc, openai"),
        (["--door", "openai", "--address", "127.0.0.1:1"], "--gateway names a gateway of the fleet"),
        (["--gateway", "http://127.0.0.1:1"], "--gateway names a gateway of the fleet"),
        (["--ttft-x", "5", "--ttft-ms", "100"], "--ttft-x and --ttft-ms state the same promise"),
        (["--rate", "1", "--arrivals", "gamma:0"], "the CV of gamma arrivals is '0'"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *argv]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["--rate", "0"], ["--scale", "0"], ["--seeds", "1,1"], ["--seeds", "x"], ["--policy", "a,"]]
)
def test_impossible_values_are_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", *argv])


def test_the_decode_step_is_taken_where_most_sequences_overlap() -> None:
    def decoding(*times: float) -> RequestRecord:
        return RequestRecord(0.0, 1, len(times), token_times=list(times))

    long = decoding(0.0, 5.0, 6.0, 7.0, 20.0)
    short = decoding(4.5, 5.5, 5.5, 6.5, 7.5)  # two tokens came in one event
    assert gaps_together([long, short]) == [1.0] * 5
