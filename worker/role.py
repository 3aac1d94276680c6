"""The two kinds of worker."""

from __future__ import annotations

import enum


class WorkerRole(enum.Enum):
    PREFILL = "prefill"
    DECODE = "decode"
