"""Commands call the fleet that their flags name; without any, the newest that runs in the checkout."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.cli import target
from baton.cli.arguments import parser
from baton.cli.program import main
from baton.cli.target import Target, in_words, target_of
from baton.fleet.processes.errors import CheckoutNotFound, NoFleetRunning
from baton.fleet.running import RunningFleet
from baton.security.credentials import UNENCRYPTED, Credentials

PLAIN = RunningFleet(Path("runs/1"), 11, ("127.0.0.1:1", "127.0.0.1:2"), UNENCRYPTED)

DEFAULT = Target(("127.0.0.1:50051",), UNENCRYPTED)
COMMANDS = (["generate", "hi"], ["chat"], ["quote", "hi"], ["status"], ["health"])


@pytest.fixture
def secured(tmp_path: Path) -> RunningFleet:
    ca = tmp_path / "ca.pem"
    ca.touch()
    return RunningFleet(Path("runs/2"), 22, ("127.0.0.1:3",), Credentials(ca))


def parsed(*line: str) -> argparse.Namespace:
    return parser().parse_args(line)


def finds(monkeypatch: pytest.MonkeyPatch, find: Callable[[Path], list[RunningFleet]]) -> None:
    monkeypatch.setattr(target, "running_fleets", find)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_without_flags_the_newest_running_fleet_is_taken_and_said(
    command: list[str],
    secured: RunningFleet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    finds(monkeypatch, lambda runs: [secured, PLAIN])
    assert target_of(parsed(*command)) == Target(secured.addresses, secured.credentials)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "fleet of runs/2 (process 22) at 127.0.0.1:3, with TLS" in said.err
    assert "newest of 2" in said.err
    assert "runs/1" in said.err


def test_all_routers_of_a_run_are_taken() -> None:
    assert in_words([PLAIN]) == (
        "calling the fleet of runs/1 (process 11) at 127.0.0.1:1, 127.0.0.1:2, in the clear"
    )
    assert target.choose([PLAIN]) == Target(PLAIN.addresses, UNENCRYPTED)


def test_with_flags_of_its_own_nothing_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(runs: Path) -> list[RunningFleet]:
        raise AssertionError(runs)

    finds(monkeypatch, never)
    ca = tmp_path / "ca.pem"
    ca.touch()
    named = Credentials(ca)
    assert target_of(parsed("generate", "hi", "--address", "a:1", "--address", "b:2")).addresses == (
        "a:1",
        "b:2",
    )
    assert target_of(parsed("status", "--ca", str(ca))) == Target(DEFAULT.addresses, named)
    assert target_of(parsed("health", "a:1", "--ca", str(ca))) == Target(("a:1",), named)
    with pytest.raises(ValueError, match="--run-dir finds"):
        target_of(parsed("status", "--address", "a:1", "--run-dir", str(tmp_path)))
    assert capsys.readouterr().err.count("127.0.0.1:50051, the default") == 1, "where no flag names one"


def test_without_a_running_fleet_a_line_names_the_default_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finds(monkeypatch, lambda runs: [])
    assert target_of(parsed("status")) == DEFAULT
    line = "baton: calling 127.0.0.1:50051, the default; --address names another\n"
    assert capsys.readouterr() == ("", line)

    def nowhere() -> Path:
        raise CheckoutNotFound([])

    monkeypatch.setattr(target, "find_checkout", nowhere)
    assert target_of(parsed("status")) == DEFAULT


def test_a_run_that_was_named_and_does_not_run_is_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NoFleetRunning):
        target_of(parsed("status", "--run-dir", str(tmp_path)))
    assert main(["status", "--run-dir", str(tmp_path)]) == 3
    assert f"answers in {tmp_path}" in capsys.readouterr().err
