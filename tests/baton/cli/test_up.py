"""`baton up` says beforehand what its user may not expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.cli.commands.up import warnings_of
from baton.fleet import FleetSpec


@pytest.mark.parametrize("quantisation", ["int8", "int8+kv8", "int8+kvfp8"])
def test_weights_in_8_bits_are_said_to_be_slow_on_a_cpu(quantisation: str) -> None:
    (warning,) = warnings_of(FleetSpec(Path("model"), quantisation=quantisation))
    assert warning.startswith("--quantisation int8 on a CPU saves memory and costs time: ")


@pytest.mark.parametrize("quantisation", [None, "none", "kv8", "kvfp8"])
def test_nothing_is_said_where_nothing_is_slow(quantisation: str | None) -> None:
    assert not warnings_of(FleetSpec(Path("model"), quantisation=quantisation))
