"""A secured fleet as a user starts one, for all tests of a module."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from baton import Client, Credentials
from baton.secret_files import Certificates
from tests.fleet.driving import DEMO_MODEL


@dataclass(frozen=True)
class Secured:
    run_dir: Path
    router: str
    printed: str

    @property
    def made(self) -> Certificates:
        return Certificates(self.run_dir / "secure")

    @property
    def credentials(self) -> Credentials:
        made = self.made
        return Credentials(made.ca, made.cert("client"), made.key("client"), made.folder / "api.key")

    def client(self) -> Client:
        return Client(self.router, credentials=self.credentials)

    def address(self, process: str, kind: str = "address") -> str:
        """`kind` is address or metrics."""
        found = re.search(rf"^READY .*\b{kind}=(\S+)", self.log(process), flags=re.MULTILINE)
        assert found is not None
        return found[1]

    def log(self, process: str) -> str:
        return (self.run_dir / f"{process}.log").read_text(encoding="utf-8")

    def logs(self) -> str:
        return "".join(path.read_text(encoding="utf-8") for path in self.run_dir.glob("*.log"))


@contextmanager
def secured_fleet(run_dir: Path) -> Iterator[Secured]:
    command = [sys.executable, "-m", "baton.cli", "up", "--secure", "--port", "0"]
    command += ["--run-dir", str(run_dir), "--model", str(DEMO_MODEL)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"listening on (\S+)", printed)
        assert found is not None, printed
        yield Secured(run_dir, found[1], printed)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 0
