"""The identity of a worker, fixed from its start to its end."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class WorkerRole(enum.Enum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Identity:
    """The facts about itself that a worker gives to routers and the registry."""

    worker_id: str
    incarnation: str
    """Drawn when the process starts. Fences name it, so a successor is not taken for this process."""
    role: WorkerRole
    model_name: str
    fingerprint: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    token_budget: int
