"""The walk in CONTRIBUTING.md, performed in a copy of the checkout: what it shows must come true."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECTION = "## Change a policy in ten minutes\n"
COPIED = (
    "baton", "engine", "gguf_model", "model_output", "router", "runtime", "scheduling", "sim", "tests",
)  # fmt: skip
"""The packages that the simulator and the tests of policies need."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its fence names a language and, for a file or a change of one, its path."""

    kind: str
    path: str
    text: str


def blocks() -> Iterator[Block]:
    document = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = document.partition(SECTION)[2].partition("\n## ")[0]
    for kind, path, text in re.findall(
        r"^```(\w+) ?(\S*)\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE
    ):
        yield Block(kind, path, text)


def copy_checkout(copy: Path) -> None:
    for package in COPIED:
        shutil.copytree(
            ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", "node_modules")
        )
    shutil.copy(ROOT / "pyproject.toml", copy)
    (copy / ".venv").symlink_to(ROOT / ".venv")


def patch(path: Path, diff: str) -> None:
    """Apply a diff of one place, which is found by its lines."""
    lines = diff.splitlines()
    old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    new = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
    source = path.read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{path.name} does not have once:\n{old}"
    path.write_text(source.replace(old, new), encoding="utf-8")


def run(command: str, copy: Path) -> str:
    done = subprocess.run(["bash", "-ec", command], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines() if line.strip()]


def is_like(stated: list[str], printed: list[str]) -> bool:
    """Return whether two rows agree; numbers may differ by as much as a host's rounding makes of them."""
    return len(stated) == len(printed) and all(map(_agree, stated, printed))


def _agree(stated: str, printed: str) -> bool:
    try:
        numbers = float(stated.rstrip("%")), float(printed.rstrip("%"))
    except ValueError:
        return stated == printed
    return math.isclose(*numbers, rel_tol=0.05, abs_tol=1.0)


@pytest.mark.long
def test_the_walk_does_what_it_says(tmp_path: Path) -> None:
    copy_checkout(tmp_path)
    printed: list[list[str]] = []
    kinds = set()
    for block in blocks():
        kinds.add(block.kind)
        match block.kind:
            case "python":
                (tmp_path / block.path).write_text(block.text, encoding="utf-8")
            case "diff":
                patch(tmp_path / block.path, block.text)
            case "sh":
                printed = rows(run(block.text, tmp_path))
            case "text":
                for row in rows(block.text):
                    assert any(is_like(row, found) for found in printed), (row, printed)
    assert kinds == {"python", "diff", "sh", "text"}
