"""Report a measurement: as Markdown, ready for a page of docs/measurements, and as JSON on request."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable

from sim.reporting.machine import machine
from sim.reporting.section import Section


def report(args: argparse.Namespace, sections: Iterable[Section]) -> int:
    """Print sections as they are measured, then the facts; return the exit code: 1 if a goal is missed.

    The JSON is written after each section, so a long run that is aborted leaves what it has measured.
    """
    facts = {"command": " ".join(["python -m benchmarks", args.command, *args.argv]), **machine()}
    reported: list[Section] = []
    for section in sections:
        reported.append(section)
        print(section.markdown(), end="\n\n", flush=True)
        if args.json is not None:
            document = {"facts": facts, "sections": [each.as_dict() for each in reported]}
            args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print("; ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    return 0 if all(goal.is_met for section in reported for goal in section.goals) else 1
