"""The engine of a worker, whether it computes or only takes its time."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.report import Load
from engine.kv.kv_pool import KVPool
from scheduling.cost.cost_model import CostModel, Sample
from worker.engine_thread import Loop


@dataclass(frozen=True, slots=True)
class Engine:
    loop: Loop
    pool: KVPool
    fingerprint: str
    max_context: int
    cost: CostModel
    """UNKNOWN_COST if the sweep had too few samples to fit."""
    samples: tuple[Sample, ...]
    """The samples that `cost` was fitted to."""
    determinism_digest: str = ""
    """A digest of the logits of known tokens; empty unless the worker is deterministic."""

    def idle_load(self) -> Load:
        """Return the load of an engine without sequences."""
        return Load(
            step=0,
            running=0,
            waiting=0,
            pending_prefill_tokens=0,
            free_blocks=self.pool.num_blocks,
            cached_blocks=0,
            context_tokens=0,
        )
