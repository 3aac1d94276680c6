"""What a measurement answers with: Markdown, ready for RESULTS.md, and JSON where that is asked for."""

from __future__ import annotations

import argparse
import json

from reporting.machine import machine
from reporting.section import Section


class Telling:
    """Sections as they are measured. The JSON is written after each, so that a long run cut short is kept."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._sections: list[Section] = []
        self._facts = {"command": " ".join(["python -m benchmarks", args.command, *args.argv]), **machine()}

    def add(self, section: Section) -> None:
        """Say it."""
        self._sections.append(section)
        print(section.markdown(), end="\n\n", flush=True)
        if self._args.json is not None:
            document = {"facts": self._facts, "sections": [one.as_dict() for one in self._sections]}
            self._args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    def end(self) -> int:
        """Say what the figures must be read with; the exit code: 1 when a goal is missed."""
        print("; ".join(f"{name} {said}" for name, said in self._facts.items()), flush=True)
        return 0 if all(goal.is_met for one in self._sections for goal in one.goals) else 1
