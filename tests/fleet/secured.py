"""A secured fleet as a user starts one, for all tests of a module."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from baton import Client, Credentials
from baton.security.secret_files import Certificates, replace_secret
from tests.fleets import DEMO_MODEL


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

    def bearer_client(self, secret: str, tenant: str = "") -> Client:
        """With this API key or token instead of the owner's."""
        file = self.run_dir / f"{hashlib.sha256(secret.encode()).hexdigest()[:8]}.key"
        replace_secret(file, secret.encode())
        shown = dataclasses.replace(self.credentials, api_key_file=file)
        return Client(self.router, credentials=shown, tenant=tenant)

    def new_key(self, tenant: str, *flags: str) -> str:
        """Make a key as an operator does; the routers know it at once."""
        out, door = self.run_dir / f"{tenant}.key", self.made.folder / "door.json"
        command = [sys.executable, "-m", "baton.cli", "key", str(door), tenant, "--out", str(out), *flags]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        key = out.read_text().strip()
        assert key not in said
        return key

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
    command = [sys.executable, "-m", "baton.cli", "up", "--secure", "--port", "0", "--http-port", "0"]
    # Steps that compute nothing start in a fraction of the time; all that is secured here is as it is.
    command += ["--run-dir", str(run_dir), "--model", str(DEMO_MODEL), "--timed", "demo-cpu"]
    # Every prompt is handed over, and asked again it finds its blocks where they were.
    command += ["--placement", "disaggregated"]
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
