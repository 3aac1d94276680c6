"""Measure what drafted tokens save: the same requests with and without them, taking turns.

Outputs with and without drafts are compared token by token. A greedy output of a small model soon repeats
itself, so nearly all of its tokens can be drafted, as where an answer quotes its prompt. Random draws at a
high temperature hardly repeat anything, so drafts can only cost. Times are of the clock, of the decode steps
alone; ratios are of runs that followed each other.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass

import torch

from benchmarks.decodes import decode, fixed_length, run_all
from benchmarks.flags import count
from benchmarks.report import report
from engine.build import BuiltEngine, EngineSettings, build
from engine.core.report import StepReport
from engine.model.model import DTYPES
from engine.speculation import Speculation
from reporting.progress import tracked
from reporting.section import Goal, Section, markdown
from reporting.tables import cell
from scheduling.policies import DEFAULT
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
    """Decode each kind of text in batches of each size, once per seed."""
    torch.set_num_threads(args.threads)
    engines = tuple(_engine(args, speculation) for speculation in (Speculation.NONE, Speculation.LOOKUP))
    cells = [(kind, size) for kind in KINDS for size in BATCHES]
    found: dict[tuple[str, int], list[tuple[float, ...]]] = {each: [] for each in cells}
    for seed, (kind, size) in tracked([(seed, each) for seed in args.seeds for each in cells], "batches"):
        off, on = (_decode(engine, KINDS[kind], size, seed, args.outputs) for engine in engines)
        if on.tokens != off.tokens:
            raise ValueError(f"{kind}, {size} sequences, seed {seed}: drafts have changed the output")
        accepted = on.num_accepted / max(1, on.num_drafted)
        found[kind, size].append(
            (off.tokens_per_s, on.tokens_per_s, on.tokens_per_s / off.tokens_per_s, accepted)
        )
    columns = ("text", "sequences", "tokens/s without", "with drafts", "ratio", "accepted")
    rows = [(kind, str(size), *_cells(figures)) for (kind, size), figures in found.items()]
    copying, random_text = KINDS
    goals = (
        Goal(f"{copying}, 1 sequence: with drafts / without", _ratios(found[copying, 1]), GAIN),
        Goal(f"{random_text}, 1 sequence: with drafts / without", _ratios(found[random_text, 1]), LOSS),
    )
    method = (
        f"{args.model.name}, {args.dtype}, {args.threads} threads; prompts of {PROMPT_TOKENS} random tokens, "
        f"outputs of {args.outputs}; drafts by prompt lookup."
    )
    details = {"found": {f"{kind}, {size}": figures for (kind, size), figures in found.items()}}
    return report(args, [Section("Drafted tokens", method, goals, (markdown(columns, rows),), details)])


def _cells(figures: list[tuple[float, ...]]) -> list[str]:
    columns = zip(*figures, strict=True)
    return [cell(column, spec=spec) for column, spec in zip(columns, SPECS, strict=True)]


def _ratios(figures: list[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(each[2] for each in figures)


def _engine(args: argparse.Namespace, speculation: Speculation) -> BuiltEngine:
    settings = EngineSettings(
        model=args.model,
        dtype=DTYPES[args.dtype],
        device=torch.device("cpu"),
        block_size=16,
        num_blocks=4 * max(BATCHES) * (PROMPT_TOKENS + args.outputs) // 16,
        kv_memory_mb=None,
        max_num_seqs=2 * max(BATCHES),
        token_budget=256,
        policy=DEFAULT,
        speculation=speculation,
    )
    return build(settings)


def _decode(engine: BuiltEngine, sampling: SamplingParams, size: int, seed: int, num_outputs: int) -> Decoded:
    rng = random.Random(seed)
    requests = [
        decode(
            tuple(rng.randrange(VOCAB) for _ in range(PROMPT_TOKENS)),
            fixed_length(num_outputs),
            SamplingParams(temperature=sampling.temperature, seed=seed + place),
            is_salted=True,
        )
        for place in range(size)
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
