"""Alerts and the dashboard name metrics and labels that the services have, and each alert has a case.

`make test-compose` has Prometheus itself check the rules, play the cases and evaluate the dashboard.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tools.house.source_tree import ROOT

FILES = ROOT / "deploy" / "helm" / "baton" / "files"
SCRAPED = {"namespace", "job", "instance"}
"""Labels that Prometheus gives to every series."""
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
"""Metrics of the Prometheus client itself that the files use."""


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FILES / "rules.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the name and the expression of each alert and of each line of the dashboard."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


def series() -> dict[str, set[str]]:
    """Return the labels of each series in docs/metrics.md, which is generated from the code."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for name, kind, listed in re.findall(
        r"^\| `(baton_\w+)` \| (\w+) \| ([^|]*) \|", text, flags=re.MULTILINE
    ):
        labels = set(re.findall(r"`(\w+)`", listed))
        endings = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
        for ending in endings:
            known = found.setdefault(name + ending, set())
            known |= labels | ({"le"} if ending == "_bucket" else set())
    return found | {name: set() for name in PROCESS} | {"up": set()}


@pytest.mark.parametrize(("name", "expression"), list(expressions()))
def test_each_expression_names_series_and_labels_that_exist(name: str, expression: str) -> None:
    known = series()
    named = set(re.findall(r"\b(?:baton_\w+|process_\w+|up(?={))", expression))
    assert named
    assert named <= set(known)
    matched = set(re.findall(r"(\w+)=~?\"", expression))
    grouped = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
    assert matched | grouped <= set().union(SCRAPED, *(known[series] for series in named))


def test_each_alert_has_a_case_that_makes_it_fire() -> None:
    cases = yaml.safe_load((ROOT / "tests" / "compose" / "rules_test.yml").read_text(encoding="utf-8"))
    fired = {
        case["alertname"] for test in cases["tests"] for case in test["alert_rule_test"] if case["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in rules()}


def test_panels_have_a_place_and_a_description_of_their_own() -> None:
    placed = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(set(placed)) == len(placed)
    assert len({panel["id"] for panel in panels()}) == len(placed)
    assert all(panel["description"] for panel in panels())
