"""Make the project's environment in `.venv` and show the progress; `make setup` runs this.

It needs only Python 3.11. Running it again is cheap: pip skips what is installed.
"""

import argparse
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "setup.log"
PIP = "26.3"  # the first lines of `raw` progress came with 24.1, newer than many a Python carries

_QUIET_NEWS_S = 15.0
_TTY_NEWS_S = 0.2


@dataclass(frozen=True, slots=True)
class Stage:
    title: str
    argv: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-pip-args", default="", help="more arguments for pip when it installs torch")
    arguments = parser.parse_args()
    stages = _stages(shlex.split(arguments.torch_pip_args))
    print(f"Setting up {VENV.name} with Python {sys.version.split()[0]}", flush=True)
    VENV.mkdir(exist_ok=True)
    began = time.monotonic()
    with LOG.open("w", encoding="utf-8") as log:
        for number, stage in enumerate(stages, start=1):
            if code := _Run(f"[{number}/{len(stages)}] {stage.title}", stage.argv).follow(log):
                _explain(stage, code)
                return 1
    print(f"Ready after {time.monotonic() - began:.0f} s")
    return 0


def _stages(torch_pip_args: list[str]) -> list[Stage]:
    """Return the stages. Locked packages come first and without their dependencies, so only torch asks for
    torch.
    """
    pip = [str(PYTHON), "-m", "pip"]
    install = [*pip, "install", "--disable-pip-version-check", "--progress-bar=raw"]
    lock = str(ROOT / "requirements" / "dev.lock")
    editable = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    return [
        Stage("environment", [sys.executable, "-m", "venv", str(VENV)]),
        Stage("pip", [*pip, "install", "--disable-pip-version-check", f"pip=={PIP}"]),
        Stage("locked packages", [*install, "--no-deps", "--require-hashes", "-r", lock]),
        Stage("torch, the largest", [*install, _torch_requirement(), *torch_pip_args]),
        Stage("baton", [*install, *editable]),
        Stage("check", [*pip, "check"]),
    ]


def _torch_requirement() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    worker: list[str] = project["optional-dependencies"]["worker"]
    return next(requirement for requirement in worker if requirement.startswith("torch=="))


def _explain(stage: Stage, code: int) -> None:
    tail = LOG.read_text(encoding="utf-8").splitlines()[-20:]
    print(f"\nThe stage '{stage.title}' failed with exit code {code}. The end of {LOG.relative_to(ROOT)}:")
    print("\n".join(f"    {line}" for line in tail))
    if stage.title == "environment":
        print("On Debian and Ubuntu the package python3-venv provides what `python3 -m venv` needs.")


class _Run:
    """A command: its output goes to the log, and its last line to the terminal."""

    def __init__(self, title: str, argv: list[str]) -> None:
        self._title = title
        self._argv = argv
        self._tty = sys.stdout.isatty()
        self._began = self._told = time.monotonic()
        self._doing = ""
        self._percent = ""

    def follow(self, log: TextIO) -> int:
        if not self._tty:
            print(self._title, flush=True)
        with subprocess.Popen(
            self._argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as child:
            assert child.stdout is not None
            log.writelines(self._news(child.stdout))
        log.flush()
        self._finish(child.returncode)
        return child.returncode

    def _news(self, lines: Iterator[str]) -> Iterator[str]:
        """Show each line on the terminal, and pass on those worth keeping."""
        for line in lines:
            if match := re.match(r"Progress (\d+) of (\d+)", line):
                self._percent = f" {100 * int(match[1]) // max(1, int(match[2]))} %"
            else:
                self._percent = ""
                self._doing = line.strip() or self._doing
                yield line
            self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told < (_TTY_NEWS_S if self._tty else _QUIET_NEWS_S):
            return
        self._told = now
        news = f"{self._title}  {now - self._began:.0f} s  {self._doing[:60]}{self._percent}"
        print(f"\r\033[K{news}" if self._tty else f"      {news}", end="" if self._tty else "\n", flush=True)

    def _finish(self, code: int) -> None:
        outcome = (
            f"{self._title}: {'done' if code == 0 else 'failed'} in {time.monotonic() - self._began:.0f} s"
        )
        print(f"\r\033[K{outcome}" if self._tty else f"      {outcome}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nInterrupted; `make setup` goes on where this stopped.")
