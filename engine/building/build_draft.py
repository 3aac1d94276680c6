"""Builds the draft model of an engine: loaded beside the model, measured and warmed up over its own pool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from engine.calibration.sweep import Sweep, chunk_floor_s, warm_up
from engine.errors import DraftRefused, ModelRefused
from engine.execution.decode_graphs import OnRecorded, Record
from engine.execution.draft_model import DraftEngine
from engine.execution.drafting import MAX_DRAFT_ROWS
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.allow_list import Config, read_config
from engine.model.model import Model, load_model
from engine.model.pairing import check_pair
from engine.model.quantised.kept_numbers import KeptOf
from engine.model.quantised.quantisation import Quantisation
from engine.starting import OnProgress
from scheduling.cost.cost_fit import fit
from scheduling.cost_model import UNKNOWN_COST


def read_draft_config(draft: Path, model: Path, config: Config, *, unlisted: bool) -> Config:
    """Return the config of a draft model. Raises DraftRefused for one that cannot draft for the model."""
    try:
        draft_config = read_config(draft, unlisted=unlisted)
    except ModelRefused as error:
        raise DraftRefused.from_model(error) from error
    check_pair(model, config, draft, draft_config)
    return draft_config


def load_draft(
    directory: Path,
    model: Model,
    *,
    fused: bool,
    random_seed: int | None,
    quantisation: Quantisation,
    kept_of: KeptOf | None,
    unlisted: bool,
    on_progress: OnProgress,
) -> Model:
    """Load a draft model in the dtype of the model and on its device. Raises DraftRefused.

    It is neither proven nor deterministic: no output depends on it, since each of its tokens is verified.
    """
    try:
        draft = load_model(
            directory,
            model.dtype,
            model.device,
            fused=fused,
            random_seed=random_seed,
            quantisation=quantisation,
            kept_of=kept_of,
            unlisted=unlisted,
            on_progress=on_progress,
        )
    except ModelRefused as error:
        raise DraftRefused.from_model(error) from error
    size, accepted = draft.facts.vocab_size, model.facts.vocab_size
    if size != accepted:
        raise DraftRefused(directory, "vocab_size", f"is {size}", f"{accepted}, as that of the model")
    return draft


def measure_draft(
    model: Model,
    num_blocks: int,
    block_size: int,
    *,
    max_num_seqs: int,
    token_budget: int,
    record: tuple[Record, OnRecorded] | None,
    measure: Callable[[ModelRunner], Sweep],
) -> DraftEngine:
    """Return a loaded draft model over a pool of so many blocks, with its costs.

    With `record`, its rounds are recorded and replayed.
    """
    runner = ModelRunner(model, KVPool(model.block_layout(block_size), num_blocks, model.device))
    if record is not None:
        runner.record_decodes(min(max_num_seqs, MAX_DRAFT_ROWS), *record)
    warm_up(runner, max_num_seqs=max_num_seqs, token_budget=token_budget)
    samples = measure(runner).samples
    cost = fit(samples, floor_s=chunk_floor_s(runner, samples)) or UNKNOWN_COST
    return DraftEngine(runner, cost, model.facts.max_context)


def draft_block_bytes(model: Model | None, block_size: int) -> int:
    """Return what a block takes in the pool of a draft model; 0 without one."""
    return 0 if model is None else model.block_layout(block_size).block_bytes


def can_record(device: torch.device, dtype: torch.dtype, *, wanted: bool) -> bool:
    """Return whether decode steps are recorded.

    The kernels do not compute float64. Its references read tables on the host, which cannot be recorded.
    """
    return wanted and device.type == "cuda" and dtype != torch.float64
