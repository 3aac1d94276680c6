"""Tells operators how many tasks an event loop has."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Gauge


def count_tasks(registry: CollectorRegistry) -> None:
    """Adds `baton_event_loop_tasks` of the running loop, which grows at rest where something leaks."""
    loop = asyncio.get_running_loop()
    gauge = Gauge("event_loop_tasks", "Tasks of the event loop", namespace="baton", registry=registry)
    gauge.set_function(lambda: len(asyncio.all_tasks(loop)))
