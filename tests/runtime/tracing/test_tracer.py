"""Spans as they reach a collector, which requests have them, and the cost of a bad collector."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from baton.security.certificates import make_certificates
from runtime.tracing.context import new_trace
from runtime.tracing.exporter import MAX_WAITING, OtlpExporter
from runtime.tracing.settings import TracingSettings, tracing_of
from runtime.tracing.span import Kind, Span
from runtime.tracing.tracer import Tracer, open_tracer
from tests.collector import collecting
from tests.patience import PATIENCE_S
from tests.tracing import Kept
from tools.house.source_tree import ROOT

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"
QUICK_S = 5.0
"""Half of the time in which a call to a collector times out."""
LOADS_ALL = """
import sys
import fastapi, redis.asyncio  # take the API of OpenTelemetry along by themselves, where it is installed
before = set(sys.modules)
import gateway.__main__, router.__main__, worker.streams.hub
from runtime.tracing.tracer import open_tracer
from runtime.tracing.settings import TracingSettings
assert open_tracer(TracingSettings(), "service", "instance") is None
print(*(name for name in set(sys.modules) - before if name.startswith("opentelemetry")))
"""


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_callers_decide_before_the_ratio_does(ratio: float) -> None:
    tracer = Tracer(Kept(), ratio)
    assert [tracer.begin(f"{CALLER}{flag}").is_sampled for flag in (0, 1)] == [False, True]
    assert tracer.begin(f"{CALLER}1").parent_id == 0x00F067AA0BA902B7
    for text in ("", "malformed"):
        begun = tracer.begin(text)
        assert (begun.is_sampled, begun.parent_id) == (ratio == 1.0, 0)


@pytest.mark.integration
def test_spans_reach_a_collector_as_they_are() -> None:
    root = new_trace(is_sampled=True)
    now, unix_ns = time.monotonic(), time.time_ns()
    whole = Span(root, "whole", now - 2, now, {"text": "a", "list": ["b", "c"], "count": 3}, Kind.SERVER)
    failed = Span(root.child(), "part", now - 1, now, error="it broke")
    with collecting() as collector:
        tracer = open_tracer(TracingSettings(collector.endpoint), "baton-test", "test-0")
        assert tracer is not None
        tracer.export([whole, failed])
        received = collector.wait_for(lambda spans: len(spans) == 2)
        tracer.close()
    by_name = {span.name: span for span in received}
    assert [span.resource for span in received] == [
        {"service.name": "baton-test", "service.instance.id": "test-0"}
    ] * 2
    assert {span.trace_id for span in received} == {f"{root.trace_id:032x}"}
    assert by_name["whole"].parent_id == ""
    assert by_name["whole"].attributes == {"text": "a", "list": ["b", "c"], "count": 3}
    assert by_name["whole"].ended_ns - by_name["whole"].began_ns == pytest.approx(2e9, abs=1e3)
    assert by_name["whole"].ended_ns == pytest.approx(unix_ns, abs=60e9)
    assert by_name["part"].parent_id == f"{root.span_id:016x}"
    assert by_name["part"].error == "it broke"


@pytest.mark.integration
def test_headers_and_attributes_reach_a_collector_with_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, (), 30, dt.datetime.now(dt.UTC))
    pair = made.key("router").read_bytes(), made.cert("router").read_bytes()
    with collecting(credentials=grpc.ssl_server_credentials([pair])) as collector:
        settings = TracingSettings(
            f"https://{collector.address}",
            headers={"api-key": "a secret"},
            certificate=str(made.ca),
            resource={"deployment.environment.name": "test", "service.name": "another"},
        )
        exporter = OtlpExporter(settings, "baton-test", "test-0")
        exporter.put([Span(new_trace(is_sampled=True), "span", 0.0, 1.0)])
        (received,) = collector.wait_for(bool)
        exporter.close()
    assert collector.metadata["api-key"] == "a secret"
    assert received.resource["deployment.environment.name"] == "test"
    assert received.service == "baton-test"


@pytest.mark.integration
@pytest.mark.parametrize("is_away", [False, True])
def test_a_bad_collector_costs_spans_and_no_time(is_away: bool) -> None:
    span = Span(new_trace(is_sampled=True), "span", 0.0, 1.0)
    with collecting(hangs=True) as collector:
        endpoint = "http://127.0.0.1:9" if is_away else collector.endpoint
        exporter = OtlpExporter(TracingSettings(endpoint), "baton-test", "test-0")
        exporter.put([span])
        if not is_away:
            collector.wait_until_called()
        began = time.monotonic()
        for _ in range(20 * MAX_WAITING):
            exporter.put([span])
        exporter.close()
        assert time.monotonic() - began < QUICK_S
        assert not collector.spans()


@pytest.mark.integration
def test_without_a_collector_nothing_of_opentelemetry_is_imported() -> None:
    """In a fresh interpreter: this one has imported it."""
    run = subprocess.run(
        [sys.executable, "-c", LOADS_ALL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (run.returncode, run.stdout.split()) == (0, []), run.stderr


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return a function that sets a variable of OpenTelemetry, where there was none before."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    return lambda name, value: monkeypatch.setenv(f"OTEL_{name}", value)


def settings_by(flag: str | None) -> TracingSettings:
    return tracing_of({"otlp_endpoint": flag, "trace_ratio": 1.0})


def test_the_flag_counts_before_the_environment(variables: Callable[[str, str], None]) -> None:
    assert settings_by(None) == TracingSettings()
    variables("EXPORTER_OTLP_ENDPOINT", "http://all:4317")
    assert settings_by(None).endpoint == "http://all:4317"
    variables("EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces:4317")
    assert settings_by(None).endpoint == "https://traces:4317"
    assert settings_by("http://flag:4317").endpoint == "http://flag:4317"
    assert settings_by("").endpoint == ""


def test_the_environment_says_more_of_a_collector(
    variables: Callable[[str, str], None], tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    variables("EXPORTER_OTLP_HEADERS", "Api-Key = a%20secret ,,x=a=b")
    variables("EXPORTER_OTLP_CERTIFICATE", str(ca))
    variables("RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    found = settings_by("https://127.0.0.1:4317")
    assert found.headers == {"api-key": "a secret", "x": "a=b"}
    assert found.certificate == str(ca)
    assert found.resource == {"deployment.environment.name": "test"}
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("EXPORTER_OTLP_HEADERS", "secret"),
        ("EXPORTER_OTLP_HEADERS", "=secret"),
        ("EXPORTER_OTLP_HEADERS", "key=secret%0A"),
        ("EXPORTER_OTLP_HEADERS", "a%20key=secret"),
        ("EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem"),
        ("RESOURCE_ATTRIBUTES", "deployment"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(
    variables: Callable[[str, str], None], name: str, text: str
) -> None:
    variables(name, text)
    with pytest.raises(ValueError, match=f"OTEL_{name} .*; accepted: ") as refusal:
        settings_by("http://127.0.0.1:4317")
    assert "secret" not in str(refusal.value)
    assert settings_by("") == TracingSettings()


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:4317", "ftp://a:1", "http://", "http://a:70000", "http://a:b"]
)
def test_a_wrong_address_is_refused_by_name(endpoint: str) -> None:
    with pytest.raises(ValueError, match="--otlp-endpoint"):
        TracingSettings(endpoint)


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_wrong_ratio_is_refused_by_name(ratio: float) -> None:
    with pytest.raises(ValueError, match=r"--trace-ratio is .*; accepted: 0 to 1"):
        TracingSettings("", ratio)


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.tracing.settings._PACKAGE", "opentelemetry.nowhere.proto")
    with pytest.raises(ValueError, match=r"baton\[tracing\]"):
        TracingSettings("http://127.0.0.1:4317")
