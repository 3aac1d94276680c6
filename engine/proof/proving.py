"""Proves a model: what Baton computes of some sequences is what stock transformers computes of them."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

from engine.errors import ModelRefused, NotProven
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.dry_run import STEP_ERRORS, LayerFacts, uncomputable
from engine.model.model import Model, ModelFacts, OnLoaded
from engine.proof.layers import decoder_layers
from engine.proof.paged import PagedRun, make_ways, num_blocks_for
from engine.proof.sequences import make_sequences
from engine.proof.stock import LOGITS, NUM_RUNS, Outputs, Stock, run_stock
from engine.proof.tolerance import MAX_NOISE, distances, excess
from engine.starting import OnProgress, Phase, ignore_progress


@dataclass(frozen=True, slots=True)
class Proof:
    """A model was proven, with fused modules or its own, in so many seconds.

    `difference` and `noise` are the largest distances of logits: Baton's from transformers', and between
    transformers' own runs.
    """

    is_fused: bool
    difference: float
    noise: float
    seconds: float


class Load(Protocol):
    """Loads the model that is to be proven."""

    def __call__(self, *, fused: bool, on_loaded: OnLoaded) -> Model:
        """Load it, and call `on_loaded` before any part of it is replaced."""


def load_proven(
    load: Load, *, fused: bool, block_size: int, on_progress: OnProgress = ignore_progress
) -> tuple[Model, Proof]:
    """Load a model and prove it; if that fails with fused modules, again with the model's own.

    Raises NotProven, naming the first layer that differs.
    """
    recorder = _Recorder(on_progress)
    model = load(fused=fused, on_loaded=recorder.record)
    try:
        return model, recorder.prove(model, block_size)
    except NotProven:
        if not model.is_fused:
            raise
    model = load(fused=False, on_loaded=recorder.record)
    return model, recorder.prove(model, block_size)


class _Recorder:
    """Records what transformers computes, and compares what Baton does once parts are replaced."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._stock: Stock | None = None
        self._seconds = 0.0

    def record(self, module: Any, facts: ModelFacts, layers: LayerFacts) -> None:
        begun = time.monotonic()
        sequences = make_sequences(facts, [softmax.sliding_window for softmax in layers.softmaxes])
        num_steps = NUM_RUNS + sum(len(way.steps) for way in make_ways(sequences.lengths))
        numbers = itertools.count(1)
        self._step_done = lambda: self._on_progress(Phase.COMPARING, next(numbers), num_steps)
        self._on_progress(Phase.COMPARING, 0, num_steps)
        try:
            stock = run_stock(module, facts, sequences, self._step_done)
        except STEP_ERRORS as error:
            raise uncomputable(facts.directory, "transformers' own output", error) from error
        typical = float(stock.noise[LOGITS].median())
        if not typical <= MAX_NOISE:
            raise ModelRefused(
                facts.directory,
                "the logits of transformers itself",
                f"change by {typical:.1e} of their length when the layers' input is rounded differently",
                f"at most {MAX_NOISE:g}; --dtype float32 rounds less",
            )
        self._stock = stock
        self._seconds = time.monotonic() - begun

    def prove(self, model: Model, block_size: int) -> Proof:
        """Compute the sequences in every way, over blocks of this size. Raises NotProven."""
        begun, stock = time.monotonic(), self._stock
        assert stock is not None, "the model was loaded without being recorded"
        # KV in 8 bits is further away than any noise, by design.
        model = replace(model, stored=None)
        lengths = stock.sequences.lengths
        pool = KVPool(model.block_layout(block_size), num_blocks_for(lengths, block_size), model.device)
        layers = {} if model.is_fused else decoder_layers(model.facts, model.module)
        run = PagedRun(ModelRunner(model, pool), layers, stock.sequences, self._step_done)
        difference = 0.0
        try:
            for way in make_ways(lengths):
                worst = _compare(model.facts, stock, run.run(way), way.name)
                difference = max(difference, worst)
        except STEP_ERRORS as error:
            raise uncomputable(model.facts.directory, "a step over blocks", error) from error
        finally:
            pool.close()
        seconds = self._seconds + time.monotonic() - begun
        return Proof(model.is_fused, difference, float(stock.noise[LOGITS].max()), seconds)


def _compare(facts: ModelFacts, stock: Stock, found: Outputs, way: str) -> float:
    """Return the largest distance of logits. Raises NotProven for the first output that is too far away."""
    largest = 0.0
    for part, rows in found.items():
        differences = distances(rows, stock.outputs[part])
        worst = excess(differences, stock.noise[part])
        if worst is not None:
            raise NotProven(facts.directory, part, way, worst.difference, worst.tolerance)
        largest = float(differences.max())  # the logits come last
    return largest
