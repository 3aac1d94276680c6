"""docs/coming-from.md: each flag that stands for another server's exists at the process that is named."""

from __future__ import annotations

import re

import pytest

from tools.house.source_tree import ROOT

ROWS = re.findall(
    r"^\| (`.*?) \| (.*?) \| (.*?) ?\|$",
    (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
)
COMMANDS = {
    "router": ["python -m router"],
    "gateway": ["python -m gateway"],
    "worker": ["python -m prefill_worker|decode_worker"],
    "each service": ["python -m router", "python -m gateway", "python -m prefill_worker|decode_worker"],
}


def flags_of(command: str) -> set[str]:
    configuration = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    section = configuration.partition(f"### `{command}`\n")[2].partition("\n### ")[0]
    return set(re.findall(r"^\| `(--[a-z][a-z-]*)", section, flags=re.MULTILINE))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_flags_that_exist_or_says_that_there_is_none(row: tuple[str, str, str]) -> None:
    _, ours, remark = row
    assert ours in {"none", "always"} or "`" in ours
    for part in (*ours.split(";"), *remark.split(";")):
        process = re.search(rf"\(({'|'.join(COMMANDS)})\)", part)
        for command in COMMANDS[process[1]] if process else ["baton up"]:
            assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", part)) <= flags_of(command), part
