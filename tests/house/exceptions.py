"""What still breaks the rules for structure and English, as `exceptions.json` lists it.

The list is exact: the tests fail when something new breaks a rule, and also when something listed no longer
does. `python -m tests.house.exceptions --update` rewrites it, and refuses if any part would be longer than in
the last commit. Run it as well to resolve a merge conflict in the file. Without `--update` the command prints
each place with unwanted wording below the paths given.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from tests.house.english import Finding, Kind, findings_in
from tools.house.circles import circles, import_graph
from tools.house.folders import MAX_MODULES, missing_from_map, modules_by_folder
from tools.house.source_tree import ROOT, modules, product

FILE = Path(__file__).with_name("exceptions.json")
HOW_TO_UPDATE = "If the list only shrank: python -m tests.house.exceptions --update"


def listed() -> dict[str, Any]:
    """Return what the file lists."""
    loaded: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return loaded


def present() -> dict[str, Any]:
    """Return the list as it would have to be now."""
    return {
        "circles": present_circles(),
        "crowded": present_crowded(),
        "without_map": present_without_map(),
        **{kind.value: present_wording(kind) for kind in Kind},
    }


def present_circles() -> list[list[str]]:
    """Return the circles of imports in product code."""
    return [list(circle) for circle in circles(import_graph(product()))]


def present_crowded() -> list[str]:
    """Return the folders of product code that have too many modules."""
    return sorted(
        str(folder.relative_to(ROOT))
        for folder, names in modules_by_folder(product()).items()
        if len(names) > MAX_MODULES
    )


def present_without_map() -> list[str]:
    """Return the folders of product code whose docstring leaves out a module or package of theirs."""
    files = product()
    folders = {path.parent for path in files}
    return sorted(str(folder.relative_to(ROOT)) for folder in folders if missing_from_map(folder, files))


def present_wording(kind: Kind) -> dict[str, int]:
    """Return how often each file has an unwanted wording of this kind."""
    counts = Counter(finding.path for finding in all_findings() if finding.kind is kind)
    return dict(sorted(counts.items()))


@cache
def all_findings() -> tuple[Finding, ...]:
    """Return every unwanted wording in product code and tests."""
    return tuple(finding for path in [*product(), *modules("tests")] for finding in findings_in(path))


def _length(part: list[Any] | dict[str, int]) -> int:
    """Return how much is listed: files count by their findings, circles by their modules."""
    if isinstance(part, dict):
        return sum(part.values())
    return sum(len(entry) if isinstance(entry, list) else 1 for entry in part)


def _in_last_commit() -> dict[str, Any]:
    command = ["git", "show", f"HEAD:{FILE.relative_to(ROOT)}"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    committed: dict[str, Any] = json.loads(shown.stdout)
    return committed


def grown(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the parts of the list that are longer now, with both lengths."""
    lengths = ((name, _length(before[name]), _length(part)) for name, part in now.items())
    return [f"{name} ({old} to {new})" for name, old, new in lengths if new > old]


def update() -> None:
    """Rewrite the file; leave it alone and exit if a part of it would grow."""
    before, now = _in_last_commit(), present()
    longer = grown(before, now)
    if longer:
        sys.exit(f"refused, because these would grow: {', '.join(longer)}")
    FILE.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    for name, part in now.items():
        print(f"{name:12} {_length(before[name]):5} to {_length(part):5}")  # noqa: T201 -- what a command says


def main() -> None:
    """Update the list, or print places of unwanted wording."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.exceptions", description=__doc__)
    parser.add_argument("--update", action="store_true", help="rewrite exceptions.json")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="print the wordings in files below these")
    args = parser.parse_args()
    if args.update:
        update()
        return
    wanted = tuple(args.paths)
    for finding in all_findings():
        if not wanted or finding.path.startswith(wanted):
            print(f"{finding}  [{finding.kind.value}]")  # noqa: T201 -- the same


if __name__ == "__main__":
    main()
