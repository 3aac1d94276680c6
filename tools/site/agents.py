"""A page for each program of docs/agents.md."""

from __future__ import annotations

import re

_ROW = re.compile(r"^\| \[[^]]*\]\(#(\S+)\) \| (.*) \| (.*) \| (.*) \|$", flags=re.MULTILINE)


def split(text: str) -> tuple[str, dict[str, str]]:
    """Return the document without the sections that its table links to, and these by their anchors."""
    rows = {row[1]: row for row in _ROW.finditer(text)}
    first, *rest = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    by_anchor = {anchor(section.partition("\n")[0].removeprefix("## ")): section for section in rest}
    pages = {name: _page(section, rows[name]) for name, section in by_anchor.items() if name in rows}
    return "".join([first, *(by_anchor[name] for name in by_anchor if name not in rows)]), pages


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _page(section: str, row: re.Match[str]) -> str:
    heading, _, body = section.partition("\n")
    program = heading.removeprefix("## ")
    tested = "its requests, recorded" if row[3] == "–" else f"{row[3]} {row[2]}, by `make test-clients`"
    before = f"How to tell {program} of a fleet. Tested: {tested}. API: {row[4]}."
    needs = "[What an agent needs of a model, and other programs](agents.md)."
    return f"# {program}\n\n{before} {needs}\n{body}"
