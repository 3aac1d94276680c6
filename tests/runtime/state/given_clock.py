"""Scripts that read the time from a key instead of from the server."""

from __future__ import annotations

import pytest

import runtime.state.connection

NOW_KEY = "{baton}:now"
START_MS = 1_800_000_000_000
"""Until the key is set."""


def give_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """To stores that connect from now on. Milliseconds."""
    script_text = runtime.state.connection.script_text
    now = f"(redis.call('GET', '{NOW_KEY}') or {START_MS})"
    time = f"{{math.floor({now} / 1000), {now} % 1000 * 1000}}"
    monkeypatch.setattr(
        runtime.state.connection,
        "script_text",
        lambda part: script_text(part).replace("redis.call('TIME')", time),
    )
