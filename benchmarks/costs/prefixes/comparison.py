"""Prompts, flags and the table of measurements of prefixes, with a row for each length."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cpu.random_model import random_model
from benchmarks.flags import count
from benchmarks.settings import BLOCK_SIZE, cpu_settings
from engine.model.model import DTYPES
from engine.settings import EngineSettings
from reporting.section import Goal, Section, markdown
from reporting.tables import cells

LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
VOCAB = 500
"""Token ids of prompts are below this, which every model's vocabulary exceeds."""
Figures = tuple[float, ...]
"""ms computed and by each other way; the first / each of these; for each decision 1 if a worker would."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt, from the request to its token."""

    seconds: float
    token_id: int
    cached_tokens: int


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", type=Path, metavar="PATH", help="a checkpoint (a Llama with 200 million random weights)")
    add("--dtype", choices=DTYPES, default="bfloat16", help="the type of weights and KV (bfloat16)")
    add("--threads", type=count, default=2, metavar="N", help="threads of each engine (2)")


def settings_of(args: argparse.Namespace, pool_tokens: int) -> EngineSettings:
    """Return the settings that the flags give."""
    return cpu_settings(args.model or random_model(), args.dtype, pool_tokens, max_num_seqs=4)


def prompt_of(rng: random.Random, length: int) -> tuple[int, ...]:
    """Return a random prompt of `length` tokens."""
    return tuple(rng.randrange(VOCAB) for _ in range(length))


def figures_of(computed: Asked, others: Sequence[Asked], would: Iterable[bool], length: int) -> Figures:
    """Return the figures of a prompt; raise ValueError if another way than computing changed its output."""
    for again in others:
        if (again.token_id, again.cached_tokens) != (computed.token_id, length):
            raise ValueError(f"{length} tokens: {again} after {computed}; the output has changed")
    seconds = (computed.seconds, *(each.seconds for each in others))
    ratios = (computed.seconds / each.seconds for each in others)
    return (*(1000 * each for each in seconds), *ratios, *map(float, would))


def section_of(
    args: argparse.Namespace,
    title: str,
    found: Mapping[int, Sequence[Figures]],
    ways: Sequence[str],
    columns: Sequence[str],
    *,
    block_bytes: int,
    note: str,
) -> Section:
    """Return the table of some ways, the slowest last; its last `columns` say what a worker would do.

    The goal is that the last way takes no longer than computing the longest prompt.
    """
    head = ("prompt tokens", "computed, ms", *(f"{way}, ms" for way in ways))
    head += tuple(f"computed / {way}" for way in ways)
    specs = (".1f", *(".1f" for _ in ways), *(".2f" for _ in ways), *(".0f" for _ in columns))
    rows = [(str(length), *cells(figures, specs)) for length, figures in found.items()]
    longest = found[LENGTHS[-1]]
    last = 2 * len(ways)
    goal = Goal(
        f"{LENGTHS[-1]} tokens: computed / {ways[-1]}", tuple(figures[last] for figures in longest), 1.0
    )
    method = (
        f"{(args.model or random_model()).name}, {args.dtype}, {args.threads} threads; blocks of "
        f"{BLOCK_SIZE} tokens, {block_bytes / 1e6:.2f} MB each; one request at a time. {note}"
    )
    details = {"found": {str(length): figures for length, figures in found.items()}}
    return Section(title, method, (goal,), (markdown((*head, *columns), rows),), details)
