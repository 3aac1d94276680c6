"""Who a worker is: fixed from its start to its end."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class WorkerRole(enum.Enum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a worker says of itself to routers and to the registry."""

    worker_id: str
    incarnation: str
    """Drawn at the process's start: fences name it, so that a successor is not taken for this process."""
    role: WorkerRole
    model_name: str
    fingerprint: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    token_budget: int
