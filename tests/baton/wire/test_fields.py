"""Values that callers give for fields of the contract."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from baton.types import Stop
from baton.v1 import generation_pb2
from baton.wire.fields import put_all


@pytest.mark.parametrize(
    "token_ids", [(7, 8), [7, 8], array("I", [7, 8]), np.array([7, 8]), (), [], np.array([7])]
)
def test_any_sequence_of_numbers_is_a_list(token_ids: Any) -> None:
    message = generation_pb2.StopRules()
    given: Sequence[int] = token_ids
    put_all(message, "stop.", Stop(), stop_strings=(), stop_token_ids=given)
    assert list(message.stop_token_ids) == list(token_ids)
