"""The file of all runs: a line of JSON for each, written when it ends, so that no run is played twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from benchmarks.rivals.cases import Case, Outcome

CASE = tuple(field.name for field in fields(Case))
OUTCOME = tuple(field.name for field in fields(Outcome))


class Runs:
    """The runs in a file, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        """Read the file; raise ValueError naming the line that is no run."""
        self._path = path
        self.outcomes: dict[Case, Outcome] = dict(_read(path)) if path.exists() else {}

    def add(self, case: Case, outcome: Outcome) -> None:
        """Write a run behind the others."""
        line = json.dumps({**asdict(case), **asdict(outcome)}) + "\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
        self.outcomes[case] = outcome


def _read(path: Path) -> Iterator[tuple[Case, Outcome]]:
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:  # the machine stopped in the middle of a line
        path.write_text(whole, encoding="utf-8")
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            row: Mapping[str, Any] = json.loads(line)
            yield Case(**{name: row[name] for name in CASE}), Outcome(**{name: row[name] for name in OUTCOME})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path}, line {number} is no run ({error!r}); accepted: {', '.join((*CASE, *OUTCOME))}"
            ) from error
