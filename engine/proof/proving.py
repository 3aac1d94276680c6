"""Proves a model: what Baton computes of some sequences is what stock transformers computes of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from engine.errors import ModelRefused, NotProven
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.attention.dry_run import STEP_ERRORS, LayerFacts, uncomputable
from engine.model.model import Model, ModelFacts, OnLoaded
from engine.proof.exact import bytes_added, in_float32
from engine.proof.layers import decoder_layers
from engine.proof.paged import PagedRun, make_ways, num_blocks_for
from engine.proof.sequences import Sequences, make_sequences
from engine.proof.stock import LOGITS, NUM_RUNS, Outputs, Stock, own_experts, run_stock
from engine.proof.tolerance import MAX_NOISE, distances, excess
from engine.starting import OnProgress, Phase, ignore_progress


@dataclass(frozen=True, slots=True)
class Proof:
    """A model was proven, with fused modules or its own, in so many seconds.

    `difference` and `noise` are the largest distances of logits: Baton's from transformers', and between
    transformers' own runs. `in_float32` is False for a model in bfloat16 whose weights in float32 did not fit
    into memory: small faults are not excluded.
    """

    is_fused: bool
    in_float32: bool
    difference: float
    noise: float
    seconds: float


class Load(Protocol):
    """Loads the model that is to be proven."""

    def __call__(self, *, fused: bool, on_loaded: OnLoaded) -> Model:
        """Load it, and call `on_loaded` before any part of it is replaced."""


def load_proven(
    load: Load,
    *,
    fused: bool,
    block_size: int,
    free_bytes: Callable[[], int] | None = None,
    on_progress: OnProgress = ignore_progress,
) -> tuple[Model, Proof]:
    """Load a model and prove it; if that fails with fused modules, again with the model's own.

    A model in bfloat16 is proven in float32 first, if that takes no more memory than `free_bytes`. Raises
    NotProven, naming the first layer that differs.
    """
    prover = _Prover(block_size, free_bytes, on_progress)
    model = load(fused=fused, on_loaded=prover.on_loaded)
    try:
        return model, prover.prove(model)
    except NotProven:
        if not model.is_fused:
            raise
    model = load(fused=False, on_loaded=prover.on_loaded)
    return model, prover.prove(model)


class _Prover:
    """Records what transformers computes, and compares what Baton does, once parts are replaced."""

    def __init__(
        self, block_size: int, free_bytes: Callable[[], int] | None, on_progress: OnProgress
    ) -> None:
        self._block_size = block_size
        self._free_bytes = free_bytes
        self._on_progress = on_progress
        self._stock: Stock | None = None
        self._in_float32 = True
        self._seconds = 0.0

    def on_loaded(self, module: Any, facts: ModelFacts, layers: LayerFacts) -> None:
        """Record what transformers computes in the model's dtype; prove the model in float32 if it fits."""
        begun = time.monotonic()
        sequences = make_sequences(facts, [softmax.sliding_window for softmax in layers.softmaxes])
        added = bytes_added(module)
        self._in_float32 = added == 0 or self._free_bytes is None or added <= self._free_bytes()
        num_rounds = 2 if added and self._in_float32 else 1
        num_steps = NUM_RUNS + sum(len(way.steps) for way in make_ways(sequences.lengths))
        numbers = itertools.count(1)
        self._step_done = lambda: self._on_progress(Phase.COMPARING, next(numbers), num_rounds * num_steps)
        self._on_progress(Phase.COMPARING, 0, num_rounds * num_steps)
        if num_rounds == 2:
            with in_float32(module), own_experts(module):
                exact = Model(facts, module, torch.float32, next(module.parameters()).device)
                self._compare(exact, self._run_stock(module, facts, sequences))
        self._stock = self._run_stock(module, facts, sequences)
        if num_rounds == 1:
            _check_noise(facts, self._stock)
        self._seconds = time.monotonic() - begun

    def prove(self, model: Model) -> Proof:
        """Prove a model as it is served. Raises NotProven."""
        begun, stock = time.monotonic(), self._stock
        assert stock is not None, "the model was loaded without being recorded"
        # KV in 8 bits is further away than any noise, by design.
        difference = self._compare(replace(model, stored=None), stock)
        seconds = self._seconds + time.monotonic() - begun
        noise = float(stock.noise[LOGITS].max())
        return Proof(model.is_fused, self._in_float32, difference, noise, seconds)

    def _run_stock(self, module: Any, facts: ModelFacts, sequences: Sequences) -> Stock:
        try:
            return run_stock(module, facts, sequences, self._step_done)
        except STEP_ERRORS as error:
            raise uncomputable(facts.directory, "transformers' own output", error) from error

    def _compare(self, model: Model, stock: Stock) -> float:
        """Compute the sequences in every way; return the largest distance of logits. Raises NotProven."""
        lengths, size = stock.sequences.lengths, self._block_size
        pool = KVPool(model.block_layout(size), num_blocks_for(lengths, size), model.device)
        layers = {} if model.is_fused else decoder_layers(model.facts, model.module)
        run = PagedRun(ModelRunner(model, pool), layers, stock.sequences, self._step_done)
        try:
            ways = make_ways(lengths)
            return max(_distance(model.facts, stock, run.run(way), way.name) for way in ways)
        except STEP_ERRORS as error:
            raise uncomputable(model.facts.directory, "a step over blocks", error) from error
        finally:
            pool.close()


def _check_noise(facts: ModelFacts, stock: Stock) -> None:
    """Raise ModelRefused if a wrong model could be within the noise."""
    typical = float(stock.noise[LOGITS].median())
    if not typical <= MAX_NOISE:
        raise ModelRefused(
            facts.directory,
            "the logits of transformers itself",
            f"change by {typical:.1e} of their length when the layers' input is rounded differently",
            f"at most {MAX_NOISE:g}; --dtype float32 rounds less",
        )


def _distance(facts: ModelFacts, stock: Stock, found: Outputs, way: str) -> float:
    """Return the largest distance of logits. Raises NotProven for the first output that is too far away."""
    for part, rows in found.items():
        worst = excess(distances(rows, stock.outputs[part]), stock.noise[part], is_mixture=stock.is_mixture)
        if worst is not None:
            raise NotProven(facts.directory, part, way, worst.difference, worst.tolerance)
    return float(distances(found[LOGITS], stock.outputs[LOGITS]).max())
