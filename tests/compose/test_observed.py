"""Prometheus beside a fleet: it scrapes every service, and accepts every rule and line of the dashboard."""

from __future__ import annotations

import json
import re
import time
import urllib.parse
import urllib.request
from typing import Any

import pytest

from tests.compose.engine import PROMETHEUS, ROOT, compose, run

pytestmark = [pytest.mark.compose, pytest.mark.integration, pytest.mark.timeout(600, func_only=True)]

FILES = ROOT / "deploy" / "helm" / "baton" / "files"
SCRAPED = {"router", "gateway", "prefill-1", "prefill-2", "decode-1", "decode-2"}


def ask(path: str, **query: str) -> Any:
    url = f"http://127.0.0.1:9090/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=10.0) as response:
        return json.load(response)["data"]


def test_every_service_is_scraped(observed: None) -> None:
    while True:
        targets = ask("targets")["activeTargets"]
        if {target["labels"]["instance"] for target in targets if target["health"] == "up"} >= SCRAPED:
            return
        time.sleep(0.5)


@pytest.mark.parametrize("part", ["router", "gateway", "decode-1", "prefill-1"])
def test_promtool_accepts_the_metrics_of_every_part(observed: None, part: str) -> None:
    """Those of others' names, too; vLLM's own have a colon, which promtool objects to."""
    read = f"wget -q -O- http://{part}:9100/metrics | promtool check metrics"
    compose("exec", "-T", "prometheus", "sh", "-c", read)


def test_every_alert_is_loaded_and_evaluates(observed: None) -> None:
    while True:
        rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
        if all(rule["health"] != "unknown" for rule in rules):
            break
        time.sleep(0.5)
    assert {rule["health"] for rule in rules} == {"ok"}
    written = re.findall(r"alert: (\w+)", (FILES / "rules.yml").read_text(encoding="utf-8"))
    assert [rule["name"] for rule in rules] == written


def test_every_line_of_the_dashboard_can_be_drawn(observed: None) -> None:
    dashboard = json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$namespace", ".*").replace("$__rate_interval", "1m")
            assert ask("query", query=expression)["resultType"] == "vector", panel["title"]


def test_each_alert_fires_when_it_should(images: None) -> None:
    mounts = [f"{FILES}/rules.yml:/rules/rules.yml:ro"]
    mounts.append(f"{ROOT}/tests/compose/rules_test.yml:/rules/rules_test.yml:ro")
    volumes = [word for mount in mounts for word in ("--volume", mount)]
    run("docker", "run", "--rm", *volumes, "--entrypoint", "promtool", PROMETHEUS,
        "test", "rules", "/rules/rules_test.yml")  # fmt: skip


def test_promtool_finds_nothing_wrong(observed: None) -> None:
    compose("exec", "-T", "prometheus", "promtool", "check", "config", "/etc/prometheus/prometheus.yml")
