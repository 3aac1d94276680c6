"""Commands that live in the checkout: started with what was typed, ended as they end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from baton.cli.__main__ import main
from baton.cli.commands import checkout_command
from baton.fleet.checkout import SERVICES
from tests.patience import PATIENCE_S

CHILD = """
import os, signal, sys
print(os.getcwd(), *sys.argv[1:], flush=True)
if sys.argv[-1] == "wait":
    signal.pause()
sys.exit(7)
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that has a `sim`, but no `benchmarks`."""
    folder = tmp_path / "checkout"
    for package in (*SERVICES, "sim"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__main__.py").write_text(CHILD)
    monkeypatch.setattr(checkout_command, "find_checkout", lambda: folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_everything_typed_and_the_exit_code_are_the_childs(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--help", "--policy", "all", "x y"]) == 7
    assert capfd.readouterr().out == f"{checkout.parent} simulate --help --policy all x y\n"


def test_a_checkout_without_the_package_is_said(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 1
    err = capfd.readouterr().err
    assert err == f"baton: bench needs benchmarks/, which is not in the checkout {checkout}\n"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_child_and_then_us(checkout: Path, signum: signal.Signals, code: int) -> None:
    program = (
        "import sys; from pathlib import Path; from baton.cli.commands import checkout_command as c; "
        f"c.find_checkout = lambda: Path({str(checkout)!r}); sys.exit(c.run('plan', ['wait']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline().endswith("plan wait\n")  # the child is there
        if signum is signal.SIGINT:
            os.killpg(ours.pid, signum)  # as a terminal does
        else:
            ours.send_signal(signum)
        assert ours.wait(PATIENCE_S) == code
