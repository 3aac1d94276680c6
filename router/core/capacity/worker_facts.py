"""The facts that a worker states about its process, and its load at the moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from scheduling.value import value

PREFILL = "prefill"
DECODE = "decode"


@value
class WorkerFacts:
    """Facts that do not change while the worker's process lives."""

    worker_id: str
    incarnation: str
    role: str
    """`prefill` or `decode`"""
    address: str
    fingerprint: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    token_budget: int
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The digests of its LoRA adapters, by name."""
    num_stages: int = 1
    """Its pipeline stages."""

    @property
    def key(self) -> str:
        """Return the name of this process of this worker."""
        return f"{self.worker_id}:{self.incarnation}"


@value
class WorkerLoad:
    """The message `WorkerLoad` of `worker.proto`."""

    step: int = 0
    running: int = 0
    waiting: int = 0
    pending_prefill_tokens: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    context_tokens: int = 0
    draining: bool = False
    preempted: int = 0
