"""Every flag that the chart writes or takes is one that the program has, and the chart takes every flag."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import pytest

import gateway.config
import gateway.picker.config
import router.config
from baton.cli.arguments import parser as cli_parser
from tests.chart.parts import LAPTOP, arguments, chart, workloads
from tools.house.source_tree import ROOT
from tools.lint_chart import CHART, OVERLAYS
from worker.startup.flags import flags as worker_flags

PARSERS = {
    "router": lambda: router.config.flags(1),
    "gateway": gateway.config.flags,
    "gateway.picker": gateway.picker.config.flags,
    "prefill_worker": lambda: worker_flags("prefill", 1),
    "decode_worker": lambda: worker_flags("decode", 1),
    "baton.cli": cli_parser,
}
SCHEMA = (CHART / "values.schema.json").relative_to(ROOT)
WRITTEN = {"--help", "--listen", "--advertise", "--redis", "--model", "--metrics-port", "--drain-s"}
WRITTEN |= {"--tls-ca", "--tls-cert", "--tls-key", "--redis-ca", "--redis-password-file", "--insecure-listen"}
OF_PART = {
    "router": {"--router-id", "--processes", "--door", "--client-ca"},
    "gateway": {"--router", "--ca", "--cert", "--key", "--api-key-file", "--https-cert", "--https-key"},
    "picker": {"--gateway", "--gateway-ca", "--router", "--ca", "--cert", "--key"},
    "worker": {"--worker-id", "--shm-dir", "--kv-disk", "--kv-disk-mb"},
}
"""Flags that the chart writes itself."""
LEFT_OUT = {"router": {"--record"}, "worker": {"--workers-per-host"}}
"""Flags that make no sense in a pod: a recording would end with it, and it has one worker."""


def _commands() -> Iterator[tuple[str, list[str]]]:
    for overlay in (*OVERLAYS, LAPTOP):
        for name, workload in workloads(
            chart(overlay, "tls.mode=certManager", "tls.certManager.issuer.name=ca", "picker.enabled=true")
        ).items():
            if "redis" not in name:
                yield f"{overlay} {name}", arguments(workload)
    for name, workload in workloads(chart(LAPTOP, "tls.mode=hook")).items():
        if "redis" not in name:
            yield f"hook {name}", arguments(workload)


@pytest.mark.helm
def test_the_programs_take_what_the_chart_gives_them() -> None:
    for _, (module, *given) in _commands():
        filled = [argument.replace("$(CORES)", "2") for argument in given]
        PARSERS[module]().parse_args(filled)  # exits if it does not know a flag or a value


@pytest.mark.parametrize("part", ["router", "gateway", "picker", "worker"])
def test_the_schema_takes_every_flag_that_the_chart_does_not_write(part: str) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    properties = schema["properties"]
    pool = properties["pools"]["additionalProperties"]
    taken = (pool if part == "worker" else properties[part])["properties"]["flags"]["properties"]
    shared = properties["fleet"]["properties"]["flags"]["properties"]
    known = _flags(PARSERS[{"worker": "decode_worker", "picker": "gateway.picker"}.get(part, part)]())
    from_fleet = set(shared) if part == "worker" else {"policy", "timed"} if part == "router" else set()
    accepted = {f"--{flag}" for flag in {*taken, *from_fleet}}
    expected = known - WRITTEN - OF_PART[part] - LEFT_OUT.get(part, set())
    missing, unknown = sorted(expected - accepted), sorted(accepted - expected)
    assert not missing, (
        f"{SCHEMA} lacks flags of {part}; add them there, or to OF_PART or LEFT_OUT: {missing}"
    )
    assert not unknown, f"{SCHEMA} has flags that {part} does not take: {unknown}"


def test_the_schema_takes_the_choices_that_the_programs_take() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))["properties"]
    taken = {
        "router": schema["router"]["properties"]["flags"]["properties"],
        "gateway": schema["gateway"]["properties"]["flags"]["properties"],
        "gateway.picker": schema["picker"]["properties"]["flags"]["properties"],
        "decode_worker": {
            **schema["pools"]["additionalProperties"]["properties"]["flags"]["properties"],
            **schema["fleet"]["properties"]["flags"]["properties"],
        },
    }
    for part, flags in taken.items():
        for action in PARSERS[part]()._actions:
            for flag in action.option_strings:
                chosen = flags.get(flag.removeprefix("--"), {})
                if action.choices is not None and flag.removeprefix("--") in flags:
                    accepted = set(chosen.get("enum", action.choices))
                    assert accepted == set(action.choices), f"{SCHEMA} accepts other values of {flag}"


def _flags(parser: argparse.ArgumentParser) -> set[str]:
    return {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")}
