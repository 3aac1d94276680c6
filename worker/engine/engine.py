"""The engine of a worker, whether it computes or only takes its time, and how long its steps may last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.core.memory.block_manager import BlockManager
from engine.core.report import Load
from engine.kv.kv_pool import KVPool
from kvtransfer.receiving.links import Links
from kvtransfer.tiers.tiers import Tiers
from model_output.grammar.grammar import Grammars
from runtime.state.records import LinkRecord, TierRecord
from scheduling.cost_model import CostModel, Sample
from scheduling.memory.tiers import Tier
from worker.adapters.loader import AdapterLoader
from worker.engine.engine_thread import Loop

MIN_LIMIT_S = 30.0
LONGEST_STEPS = 50
"""A step may last this many times the longest one measured at the start: a busy machine is not stalled."""


@dataclass(frozen=True, slots=True)
class Computing:
    """How a worker computes, for operators to see."""

    dtype: str
    """The type of weights and KV; empty if nothing is computed."""
    native_ops: bool
    """Whether `kernels.native` computes some of the ops."""


NOTHING = Computing("", native_ops=False)


@dataclass(frozen=True, slots=True)
class EngineTiers:
    """Host memory and a disk for blocks that leave the pool, or one of the two."""

    tiers: Tiers
    blocks: BlockManager
    """Says which blocks are cached when the worker ends."""

    def describe(self, tier: Tier) -> TierRecord:
        """Return what the fleet is told of a tier."""
        state = self.tiers.state(tier)
        return TierRecord(state.num_blocks, state.wait_s, state.block_s)

    def close(self, timeout_s: float) -> None:
        """Write what is cached to the disk, as far as time allows. The loop must have ended."""
        self.tiers.close(self.blocks.cached(), timeout_s)


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
    grammars: Grammars
    computing: Computing = NOTHING
    determinism_digest: str = ""
    """A digest of the logits of known tokens; empty unless the worker is deterministic."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The digests of its LoRA adapters, by name."""
    tiers: EngineTiers | None = None
    links: Links | None = None
    """None if the worker neither lends blocks to others nor fetches theirs."""
    adapter_loader: AdapterLoader | None = None
    """Loads others while the engine runs; then there are none in `adapters`."""

    def idle_load(self) -> Load:
        """Return the load of an engine without sequences."""
        return Load(free_blocks=self.pool.num_blocks)


def describe_link(links: Links) -> LinkRecord:
    """Return what the fleet is told of the links to other workers."""
    state = links.state()
    return LinkRecord(state.wait_s, state.block_s, state.by_source)


def stall_limit_s(samples: Sequence[Sample], max_step_tokens: int) -> float:
    """Return how long a step of up to `max_step_tokens` tokens may last, from the steps that were measured.

    If there was no time to measure the largest step, it may last as long as the same tokens would take in
    steps of the largest measured size.
    """
    longest_s = max((seconds for _, seconds in samples), default=0.0)
    tokens, seconds = max(((shape.num_tokens, seconds) for shape, seconds in samples), default=(1, 0.0))
    return max(MIN_LIMIT_S, LONGEST_STEPS * longest_s, -(-max_step_tokens // tokens) * seconds)
