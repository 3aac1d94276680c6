"""Measure what drafted tokens save: the same requests with and without them, taking turns.

Outputs with and without drafts are compared token by token. A greedy output of a small model soon repeats
itself, so nearly all of its tokens can be drafted, as where an answer quotes its prompt. Random draws at a
high temperature hardly repeat anything, so drafts can only cost. Times are of the clock, of the decode steps
alone; ratios are of runs that followed each other. Each batch is decoded several times, the arm that comes
first in turns, and the figures of a seed are the medians.

The draft model is measured with a target made from it (`benchmarks.deep_model`): --layers layers, of which
those of the draft model do nearly all. So they agree most of the time, and what is measured is what drafting
and verifying cost, not how well a trained draft model drafts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.decodes import decode, fixed_length, run_all
from benchmarks.deep_model import deepen
from benchmarks.flags import count
from benchmarks.report import report
from benchmarks.settings import cpu_settings
from engine.build import BuiltEngine, build
from engine.core.report import StepReport
from engine.model.model import DTYPES
from engine.speculation import Speculation
from reporting.progress import tracked
from reporting.section import Goal, Section, markdown
from reporting.tables import cells
from scheduling.request import SamplingParams

BATCHES = (1, 8)
PROMPT_TOKENS = 256
VOCAB = 500
"""Token ids of prompts are below this, which every model's vocabulary exceeds."""
KINDS = {
    "text that repeats itself": SamplingParams(temperature=0.0),
    "random text": SamplingParams(temperature=3.0),
}
GAIN, LOSS = 1.8, 0.97
SPECS = (".0f", ".0f", ".2f", ".2f")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="the type of the weights (float32)"
    )
    parser.add_argument("--threads", type=count, default=2, metavar="N", help="threads of the worker (2)")
    parser.add_argument("--outputs", type=count, default=256, metavar="N", help="tokens of each output (256)")
    parser.add_argument(
        "--rounds", type=count, default=4, metavar="N", help="times that each batch is decoded (4)"
    )
    parser.add_argument(
        "--layers", type=count, default=48, metavar="N", help="layers of the draft model's target (48)"
    )


@dataclass(frozen=True, slots=True)
class Decoded:
    """One batch of requests."""

    tokens_per_s: float
    """From the step with which all rows have a token."""
    tokens: dict[int, list[int]]
    """By the request's place."""
    num_drafted: int
    num_accepted: int


def run(args: argparse.Namespace) -> int:
    """Decode each kind of text in batches of each size, once per seed, by lookup and by the draft model."""
    torch.set_num_threads(args.threads)
    plain, looking_up = _engine(args, args.model), _engine(args, args.model, Speculation.LOOKUP)
    by_lookup = _compare(args, plain, looking_up)
    with tempfile.TemporaryDirectory() as folder:
        deep = deepen(args.model, Path(folder), args.layers)
        by_model = _compare(args, _engine(args, deep), _engine(args, deep, draft_model=args.model))
    copying, random_text = KINDS
    goals = (
        Goal(f"{copying}, 1 sequence: with drafts / without", _ratios(by_lookup[copying, 1]), GAIN),
        Goal(f"{random_text}, 1 sequence: with drafts / without", _ratios(by_lookup[random_text, 1]), LOSS),
    )
    sizes = (
        f"{args.dtype}, {args.threads} threads; prompts of {PROMPT_TOKENS} random tokens, outputs of "
        f"{args.outputs}"
    )
    lookup_method = f"{args.model.name}, {sizes}; drafts by prompt lookup."
    model_method = (
        f"{args.model.name} with copies of its layers up to {args.layers}, whose effect is small; {sizes}; "
        f"drafts by {args.model.name}, which agrees with it by construction."
    )
    sections = [
        Section("Drafted tokens", lookup_method, goals, (_table(by_lookup),), _details(by_lookup)),
        Section("Tokens of a draft model", model_method, (), (_table(by_model),), _details(by_model)),
    ]
    return report(args, sections)


Found = dict[tuple[str, int], list[tuple[float, ...]]]
"""By kind and size of the batch: for each seed, speeds without and with drafts, ratio, share accepted."""


def _compare(args: argparse.Namespace, without: BuiltEngine, drafting: BuiltEngine) -> Found:
    """Decode the same requests with and without drafts. Raises ValueError if their outputs differ."""
    kinds = [(kind, size) for kind in KINDS for size in BATCHES]
    found: Found = {each: [] for each in kinds}
    for seed, (kind, size) in tracked([(seed, each) for seed in args.seeds for each in kinds], "batches"):
        rounds: list[tuple[float, ...]] = []
        for number in range(args.rounds):
            engines = (without, drafting) if number % 2 == 0 else (drafting, without)
            of_round = f"{seed}/{number}"
            decoded = [_decode(engine, KINDS[kind], size, of_round, args.outputs) for engine in engines]
            off, on = decoded if number % 2 == 0 else reversed(decoded)
            if on.tokens != off.tokens:
                raise ValueError(f"{kind}, {size} sequences, seed {seed}: drafts have changed the output")
            accepted = on.num_accepted / max(1, on.num_drafted)
            rounds.append((off.tokens_per_s, on.tokens_per_s, on.tokens_per_s / off.tokens_per_s, accepted))
        found[kind, size].append(tuple(map(statistics.median, zip(*rounds, strict=True))))
    return found


def _table(found: Found) -> str:
    columns = ("text", "sequences", "tokens/s without", "with drafts", "ratio", "accepted")
    return markdown(columns, [(kind, str(size), *cells(rows, SPECS)) for (kind, size), rows in found.items()])


def _details(found: Found) -> dict[str, object]:
    return {"found": {f"{kind}, {size}": figures for (kind, size), figures in found.items()}}


def _ratios(figures: list[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(each[2] for each in figures)


def _engine(
    args: argparse.Namespace,
    model: Path,
    speculation: Speculation = Speculation.NONE,
    draft_model: Path | None = None,
) -> BuiltEngine:
    num_tokens = 4 * max(BATCHES) * (PROMPT_TOKENS + args.outputs)
    plain = cpu_settings(model, args.dtype, num_tokens, max_num_seqs=2 * max(BATCHES))
    return build(replace(plain, speculation=speculation, draft_model=draft_model))


def _decode(engine: BuiltEngine, sampling: SamplingParams, size: int, seed: str, num_outputs: int) -> Decoded:
    rng = random.Random(seed)
    requests = [
        decode(
            tuple(rng.randrange(VOCAB) for _ in range(PROMPT_TOKENS)),
            fixed_length(num_outputs),
            SamplingParams(temperature=sampling.temperature, seed=rng.getrandbits(32)),
            is_salted=True,
        )
        for _ in range(size)
    ]
    places = {request.spec.handle: place for place, request in enumerate(requests)}
    tokens: dict[int, list[int]] = {place: [] for place in places.values()}
    drafted = accepted = 0
    began_s, num_before = time.perf_counter(), 0

    def watch(report: StepReport) -> None:
        nonlocal drafted, accepted, began_s, num_before
        columns = report.tokens
        for handle, token_id in zip(columns.handles, columns.token_ids, strict=True):
            tokens[places[handle]].append(token_id)
        drafted, accepted = drafted + report.drafted_tokens, accepted + report.accepted_drafts
        if num_before == 0 and all(tokens.values()):
            began_s, num_before = time.perf_counter(), sum(map(len, tokens.values()))

    run_all(engine.loop, iter([requests]), watch)
    num_tokens = sum(map(len, tokens.values())) - num_before
    return Decoded(num_tokens / (time.perf_counter() - began_s), tokens, drafted, accepted)
