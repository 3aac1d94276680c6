"""The gauge of an event loop's tasks."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from services.event_loop import count_tasks

NAME = "baton_event_loop_tasks"


async def test_the_tasks_of_a_loop_are_counted_from_any_thread() -> None:
    registry = CollectorRegistry()
    count_tasks(registry)
    before = registry.get_sample_value(NAME)
    assert before is not None
    left = asyncio.create_task(asyncio.Event().wait())
    assert await asyncio.to_thread(registry.get_sample_value, NAME) == before + 1
    left.cancel()
