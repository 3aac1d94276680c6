"""What serves a worker's sequences, whether it computes or only takes its time."""

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
    """UNKNOWN_COST when the sweep had too little to fit."""
    samples: tuple[Sample, ...]
    """What it was fitted to."""
    determinism_digest: str = ""
    """Of a deterministic worker: what its logits for known tokens are, as a digest."""

    def idle_load(self) -> Load:
        """What the first report would say."""
        return Load(
            step=0,
            running=0,
            waiting=0,
            pending_prefill_tokens=0,
            free_blocks=self.pool.num_blocks,
            cached_blocks=0,
            context_tokens=0,
        )
