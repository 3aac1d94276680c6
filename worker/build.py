"""Loads the model and puts an engine together, measured and warm."""

from __future__ import annotations

import torch

from engine.admission import EngineLimits
from engine.block_manager import BlockManager
from engine.detokenizer import Detokenizer
from engine.fingerprint import fingerprint
from engine.kv_pool import BlockLayout, KVPool
from engine.model import DTYPES, load_model
from engine.model_runner import ModelRunner
from engine.sameness import prove_sameness
from engine.step_loop import StepLoop
from engine.sweep import sweep, warm_up
from scheduling.cost_fit import fit
from scheduling.cost_model import UNKNOWN_COST, Sample
from scheduling.policies import by_name
from worker.config import WorkerConfig
from worker.engine import Engine
from worker.sweep_cache import SweepKey, cached_sweep, device_name

MEBIBYTE = 1024 * 1024


def build_engine(config: WorkerConfig) -> Engine:
    """Raises ModelRefused for a model that cannot be served, ValueError for a setting that cannot be,
    NotDeterministic for sameness that this machine does not keep.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    model = load_model(
        config.model, dtype, device, deterministic=config.deterministic, random_seed=config.random_weights
    )
    layout = model.block_layout(config.block_size)
    pool = KVPool(layout, _num_blocks(config, layout), device)
    runner = ModelRunner(model, pool)
    name = fingerprint(config.model, layout, config.random_weights)
    sameness = prove_sameness(runner) if config.deterministic else ""
    samples = _measure(config, runner, name)
    limits = EngineLimits(
        vocab_size=model.facts.vocab_size,
        max_context=model.facts.max_context,
        max_num_seqs=config.max_num_seqs,
        token_budget=config.token_budget,
        eos_token_ids=model.facts.eos_token_ids,
    )
    cost = fit(samples) or UNKNOWN_COST
    loop = StepLoop(
        runner,
        pool.tensor,
        BlockManager(pool.num_blocks, config.block_size),
        limits=limits,
        fingerprint=name,
        detokenizer=Detokenizer.from_file(model.facts.tokenizer_path),
        policy=by_name(config.policy),
        cost=cost,
        deterministic=config.deterministic,
    )
    return Engine(loop, pool, name, model.facts.max_context, cost, tuple(samples), sameness)


def _measure(config: WorkerConfig, runner: ModelRunner, name: str) -> list[Sample]:
    """What steps cost here: measured now, or by an earlier worker like this one. Leaves the runner warm."""
    seqs, budget = config.max_num_seqs, config.token_budget
    key = SweepKey(
        fingerprint=name,
        device=device_name(runner.model.device),
        dtype=str(runner.model.dtype),
        deterministic=config.deterministic,
        threads=torch.get_num_threads(),
        block_size=config.block_size,
        num_blocks=runner.pool.num_blocks,
        max_num_seqs=seqs,
        token_budget=budget,
    )
    warm_up(runner, max_num_seqs=seqs, token_budget=budget)
    return cached_sweep(config.cache, key, lambda: sweep(runner, max_num_seqs=seqs, token_budget=budget))


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda; this machine has none, accepted: auto or cpu")
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return DTYPES[name]


def _num_blocks(config: WorkerConfig, layout: BlockLayout) -> int:
    if config.num_blocks is not None:
        return config.num_blocks
    num_blocks = config.kv_memory_mb * MEBIBYTE // layout.block_bytes
    if num_blocks == 0:
        least = -(-layout.block_bytes // MEBIBYTE)
        raise ValueError(f"--kv-memory-mb is {config.kv_memory_mb}; accepted for this model: {least} or more")
    return num_blocks
