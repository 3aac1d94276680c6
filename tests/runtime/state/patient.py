"""Stores that do not give Redis up while the machine is busy with other things."""

from __future__ import annotations

import pytest

import runtime.state.connection
from tests.patience import PATIENCE_S


def wait_patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stores opened from now on wait `PATIENCE_S` for a connection and for a response."""
    monkeypatch.setattr(runtime.state.connection, "CALL_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(runtime.state.connection, "MAX_WAIT_FOR_CONNECTION_S", PATIENCE_S)
