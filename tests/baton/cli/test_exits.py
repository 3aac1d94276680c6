"""Errors are one line and an exit code."""

import sys
from pathlib import Path

import grpc
import pytest

from baton.cli.exits import program
from baton.cli.program import main
from baton.v1 import generation_pb2
from tests.baton.cli.examples import REFUSAL
from tests.baton.scripted_service import (
    BREAK,
    HANG,
    Fail,
    ScriptedRouter,
    accepted,
    bad_field,
    because,
    ended,
    finished,
    retry_after,
    tokens,
)


def test_a_failed_generation_is_exit_code_1_with_the_reason(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    end = ended(1, reason=generation_pb2.FINISH_REASON_FAILED)
    router.scripts = [(accepted(), tokens(0, 1), end, finished(error="all workers died"))]
    assert main(["generate", "hello", "--address", router.address]) == 1
    assert "baton: all workers died" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fail", "code", "says"),
    [
        (
            Fail(grpc.StatusCode.INVALID_ARGUMENT, "stop.max_tokens is 0", (bad_field("f", "d"),)),
            2,
            "baton: stop.max_tokens is 0",
        ),
        (Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", (retry_after(2),)), 4, "try again in 2.0 s"),
        (
            Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "no", (retry_after(2), REFUSAL)),
            4,
            "possible now: --ttft-ms 950 --tpot-ms 45 --itl-ms 60, or try again in 2.0 s",
        ),
        (Fail(grpc.StatusCode.INTERNAL, "oh"), 1, "baton: INTERNAL: oh"),
        (BREAK, 3, "the router went away\n"),
        (
            Fail(grpc.StatusCode.UNAVAILABLE, "Redis does not answer", (because("REDIS_AWAY"),)),
            4,
            "Redis does not answer\n",
        ),
        (Fail(grpc.StatusCode.UNIMPLEMENTED, "?"), 1, "is it a worker's address"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str], fail: Fail, code: int, says: str
) -> None:
    router.scripts = [(fail,)]
    assert main(["generate", "hello", "--address", router.address, "--connect-s", "0.1"]) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_no_fleet_is_exit_code_3_and_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--address", "127.0.0.1:1", "--connect-s", "0.1"]) == 3
    expected = "no router could be reached at 127.0.0.1:1; is a fleet running? start one with: baton up"
    assert expected in capsys.readouterr().err


def test_advice_names_the_program_as_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "baton"
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert program() == str(script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "baton"


def test_a_call_that_takes_too_long_says_how_long_it_had(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.scripts = [(accepted(), HANG)]
    assert main(["generate", "hi", "--timeout-s", "0.2", "--address", router.address]) == 1
    assert "baton: not done within 0.2 s\n" in capsys.readouterr().err
