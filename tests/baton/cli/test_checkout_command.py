"""Commands that live in the checkout: started with what was typed, ended as they end."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from baton.cli import program as cli
from baton.cli.program import main
from baton.fleet.checkout import SERVICES
from tests.patience import PATIENCE_S

PROGRAM = """
import os, sys, time
print(os.getcwd(), *sys.argv[1:], flush=True)
while sys.argv[-1] == "wait":
    time.sleep(0.1)
sys.exit(7)
"""
"""It waits in short sleeps: a signal between Python's last look for one and a long wait would not be seen."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that has a `sim`, but no `benchmarks`."""
    folder = tmp_path / "checkout"
    for package in (*SERVICES, "sim"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__main__.py").write_text(PROGRAM)
    return folder


def start(checkout: Path, *typed: str) -> subprocess.Popen[str]:
    program = (
        "import sys; from pathlib import Path; from baton.cli.program import main; "
        "from baton.cli import program as c; "
        f"c.find_checkout = lambda: Path({str(checkout)!r}); sys.exit(main({typed!r}))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=checkout.parent
    )


def test_everything_typed_and_the_exit_code_are_the_program_s(checkout: Path) -> None:
    with start(checkout, "simulate", "--help", "--policy", "all", "x y") as ours:
        assert ours.communicate(timeout=PATIENCE_S)[0] == (
            f"{checkout.parent} simulate --help --policy all x y\n"
        )
        assert ours.returncode == 7


def test_a_checkout_without_the_package_is_said(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_checkout", lambda: checkout)
    assert main(["bench"]) == 1
    err = capfd.readouterr().err
    assert err == f"baton: bench needs benchmarks/, which is not in the checkout {checkout}\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_program(checkout: Path, signum: signal.Signals) -> None:
    with start(checkout, "plan", "wait") as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline().endswith("plan wait\n")
        ours.send_signal(signum)
        assert ours.wait(PATIENCE_S) == -signum
