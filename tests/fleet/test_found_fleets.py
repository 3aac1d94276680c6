"""Fleets of `baton up`, in the clear and secured: short commands find the one that runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton.cli.program import main
from baton.fleet.rundir import runs_of
from tests.fleet.secured import Secured, secured_fleet
from tests.fleets import DEMO_MODEL
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

HEALTH = ("health", "--timeout-s", f"{PATIENCE_S:g}")


@dataclass(frozen=True)
class Plain:
    launcher: subprocess.Popen[str]
    run_dir: Path
    addresses: tuple[str, ...]


@contextlib.contextmanager
def plain_fleet(run_dir: Path) -> Iterator[Plain]:
    command = [sys.executable, "-m", "baton.cli", "up", "--port", "0", "--no-http", "--routers", "2"]
    command += ["--run-dir", str(run_dir), "--model", str(DEMO_MODEL), "--timed", "demo-cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        printed = ""
        for line in launcher.stdout:
            printed += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"listening on (\S+), (\S+)", printed)
        assert found is not None, printed
        try:
            yield Plain(launcher, run_dir, found.groups())
        finally:
            launcher.send_signal(signal.SIGINT)
            launcher.stdout.read()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkout")


@pytest.fixture(scope="module")
def plain(checkout: Path) -> Iterator[Plain]:
    with plain_fleet(runs_of(checkout) / "9") as started:
        yield started


@pytest.fixture(scope="module")
def secured(checkout: Path) -> Iterator[Secured]:
    with secured_fleet(runs_of(checkout) / "10") as started:
        yield started


@pytest.fixture(autouse=True)
def here(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command takes the fleets of this test's folder for those of the checkout."""
    monkeypatch.setattr("baton.cli.target.find_checkout", lambda: checkout)


def said(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[str, str]:
    assert main(command) == 0
    printed = capsys.readouterr()
    return printed.out, printed.err


def bench(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "baton.cli", "bench", *flags, "--requests", "2", "--rate", "4"]
    return subprocess.run(
        [*command, "--seeds", "1", "--scale", "0.02"], check=True, capture_output=True, text=True
    )


def test_the_only_fleet_is_called_by_all_of_its_routers(
    plain: Plain, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = said(capsys, *HEALTH)
    assert out == "".join(f"{address}: SERVING\n" for address in plain.addresses)
    assert ", ".join(plain.addresses) in err
    assert f"process {plain.launcher.pid}" in err
    out, _ = said(capsys, "status", "--once", "--json")
    assert json.loads(out)["workers"]
    assert f"fleet of {plain.run_dir}" in bench("--running", str(plain.run_dir)).stderr


def test_the_newest_of_two_is_called_with_its_credentials(
    plain: Plain, secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = (
        ["generate", "hi", "--max-tokens", "2"],
        ["quote", "hi"],
        HEALTH,
    )
    for command in commands:
        out, err = said(capsys, *command)
        assert out
        assert f"fleet of {secured.run_dir}" in err
        assert f"newest of 2 that run, --run-dir names another: {plain.run_dir}" in err
    _, err = said(capsys, "quote", "hi", "--run-dir", str(plain.run_dir))
    assert "in the clear" in err
    _, err = said(capsys, "quote", "hi", "--address", plain.addresses[0])
    assert err == ""
    assert f"fleet of {secured.run_dir}" in bench("--running", str(secured.run_dir)).stderr


def test_the_state_of_both_is_shown(
    plain: Plain, secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = said(capsys, "status", "--once", "--json")
    assert len(out.splitlines()) == 2
    newest, other = err.splitlines()
    assert f"fleet of {secured.run_dir} " in newest
    assert f"fleet of {plain.run_dir} " in other
    _, err = said(capsys, "status", "--once", "--run-dir", str(plain.run_dir))
    assert str(secured.run_dir) not in err


def test_a_conversation_finds_the_fleet(
    secured: Secured, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["hello", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    out, err = said(capsys, "chat", "--max-tokens", "2", "--class", "batch")
    assert "demo_model" in out
    assert f"fleet of {secured.run_dir}" in err


@pytest.mark.long
def test_a_fleet_whose_launcher_was_killed_is_not_taken(
    secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = secured.run_dir.parent / "11"
    with plain_fleet(newest) as doomed:
        _, err = said(capsys, *HEALTH)
        assert f"fleet of {newest}" in err
        control = Path((newest / "control").read_text(encoding="utf-8"))
        assert control.exists()
        os.kill(doomed.launcher.pid, signal.SIGKILL)
        doomed.launcher.wait()
        _, err = said(capsys, *HEALTH)
        assert f"fleet of {secured.run_dir}" in err
    with plain_fleet(newest):  # which waits until nothing is left of the other
        assert not control.parent.exists()
        _, err = said(capsys, *HEALTH)
        assert f"fleet of {newest}" in err


_TERMINAL = """
import os, pty, signal, sys

pid, terminal = pty.fork()
if pid == 0:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may have started the tests
    os.execv(sys.executable, [sys.executable, "-m", "baton.cli", *sys.argv[1:]])
shown = b""
while b"Ctrl-C" not in shown:
    shown += os.read(terminal, 65536)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_closing_the_terminal_ends_the_fleet_like_ctrl_c(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = ["up", "--port", "0", "--no-http", "--prefill", "0", "--placement", "aggregated"]
    command += ["--run-dir", str(run_dir), "--model", str(DEMO_MODEL), "--timed", "demo-cpu"]
    ended = subprocess.run(
        [sys.executable, "-c", _TERMINAL, *command], check=True, capture_output=True, text=True
    )
    assert (ended.stdout.strip(), ended.stderr) == ("0", "")
    assert not (run_dir / "control").exists()
    assert not (run_dir / "fleet.json").exists()
    assert '"draining"' in (run_dir / "router-0.log").read_text(encoding="utf-8")


def test_a_client_in_the_clear_is_told_of_tls_and_the_other_way_round(
    plain: Plain, secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:

    def is_told(sentence: str, *flags: str) -> None:
        """A router that stands still is taken for one that is away: then ask again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert main(["quote", "hi", "--connect-s", "0.1", *flags]) == 3
            told = capsys.readouterr().err
            if sentence in told:
                return
            assert time.monotonic() < deadline, told

    ca = str(secured.made.ca)
    is_told(f"{secured.router} speaks TLS: name the fleet's CA with --ca", "--address", secured.router)
    address = plain.addresses[0]
    is_told(f"{address} does not speak TLS: leave out --ca", "--address", address, "--ca", ca)
    hangs_up = "hangs up after the TLS handshake: it may ask for a client's"
    is_told(hangs_up, "--address", secured.router, "--ca", ca)
