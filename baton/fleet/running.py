"""Find running fleets: a run's folder names the addresses of its launcher and routers.

    control       the path of the launcher's unix socket, which accepts connections while the fleet serves
    fleet.json    {"pid": 4711, "addresses": ["127.0.0.1:50051"], "gateways": ["http://127.0.0.1:8000"],
                  "credentials": {"ca": "/…/ca.pem", …}}

`fleet.json` names the files of a secured fleet's credentials and contains no secret.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from baton.security.credentials import UNENCRYPTED, Credentials
from baton.security.secret_files import replace_secret

CONTROL = "control"
DESCRIPTION = "fleet.json"
_CONNECT_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class RunningFleet:
    """A fleet of this machine, as its launcher describes it to clients."""

    run_dir: Path
    pid: int
    addresses: tuple[str, ...]
    credentials: Credentials
    gateways: tuple[str, ...] = ()
    """URLs."""


@contextlib.contextmanager
def described(
    run_dir: Path, addresses: Sequence[str], credentials: Credentials, gateways: Sequence[str] = ()
) -> Iterator[None]:
    """Keep the description of this process's fleet in the run's folder while the block lasts."""
    files = {name: str(path) for name, path in asdict(credentials).items() if path is not None}
    content = {
        "pid": os.getpid(),
        "addresses": list(addresses),
        "gateways": list(gateways),
        "credentials": files,
    }
    path = run_dir / DESCRIPTION
    replace_secret(path, (json.dumps(content, indent=1) + "\n").encode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def candidates(run_dirs: Path) -> list[Path]:
    """Return the folder itself, then the numbered runs in it, newest first; a link counts as its target."""
    numbered = [folder for folder in run_dirs.glob("*") if folder.name.isdigit()]
    newest_first = sorted(numbered, key=lambda folder: -int(folder.name))
    folders = (folder.readlink() if folder.is_symlink() else folder for folder in newest_first)
    return list(dict.fromkeys([run_dirs, *folders]))


def running_fleets(run_dirs: Path) -> list[RunningFleet]:
    """Return the fleets whose launcher responds, newest first. `run_dirs` is a run's folder, or contains
    them.
    """
    # A launcher that was killed leaves its description behind.
    described = [folder for folder in candidates(run_dirs) if (folder / DESCRIPTION).is_file()]
    return [fleet_of(folder) for folder in described if launcher_answers(folder)]


def launcher_answers(folder: Path) -> bool:
    """Return whether a launcher listens on the socket; a process id could be another process's by now."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as control:
        control.settimeout(_CONNECT_TIMEOUT_S)
        control.connect((folder / CONTROL).read_text(encoding="utf-8"))
        return True
    return False


def fleet_of(folder: Path) -> RunningFleet:
    """Read a description. Raises `ValueError` naming the file."""
    path = folder / DESCRIPTION
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        files = {name: Path(file) for name, file in content["credentials"].items()}
        credentials = Credentials(**files) if files else UNENCRYPTED
        addresses, gateways = (tuple(map(str, content[name])) for name in ("addresses", "gateways"))
        return RunningFleet(folder, int(content["pid"]), addresses, credentials, gateways)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} does not describe a running fleet: {error}") from error
