"""A metric under another name has the values that it has under its own, over all labels."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from runtime.process.metric_names import Renamed

LABELS = {"model_name": 'a "model"\nof two lines'}


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, LABELS | labels)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 10))))
def test_a_histogram_is_added_up_over_its_labels(observations: Sequence[tuple[str, float]]) -> None:
    registry = CollectorRegistry()
    source = Histogram("own_seconds", "Own", ["part"], buckets=(1, 2, 5), registry=registry)
    registry.register(Renamed(source, "other_seconds", LABELS))
    for part, seconds in observations:
        source.labels(part).observe(seconds)
    for bound in (1, 2, 5):
        expected = sum(seconds <= bound for _, seconds in observations) if observations else None
        assert sample(registry, "other_seconds_bucket", le=f"{bound}.0") == expected
    if observations:
        assert sample(registry, "other_seconds_count") == len(observations)
        assert abs(sample(registry, "other_seconds_sum") or 0) - sum(s for _, s in observations) < 1e-6


def test_counters_and_gauges_keep_their_types() -> None:
    registry = CollectorRegistry()
    counter, gauge = Counter("own", "Own", registry=registry), Gauge("held", "Held", registry=registry)
    for source, name in ((counter, "vllm:others"), (gauge, "vllm:held_now")):
        registry.register(Renamed(source, name, LABELS))
    for number in (1, 2):
        counter.inc()
        gauge.set(-number)
        families = {
            family.name: family
            for family in text_string_to_metric_families(generate_latest(registry).decode())
        }
        others, held = families["vllm:others"], families["vllm:held_now"]
        assert (others.type, held.type) == ("counter", "gauge")
        assert [(entry.name, entry.labels, entry.value) for entry in others.samples] == [
            ("vllm:others_total", LABELS, number)
        ]
        assert [entry.value for entry in held.samples] == [-number]
