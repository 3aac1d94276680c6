"""Measure what output formats cost with 128 thousand tokens: masks, and decode steps of 64 rows.

The vocabulary holds the most frequent words of Python's standard library. The model has random weights, some
260 million of them, so a step takes about as long as one of a small served model. Steps with and without a
format take turns, and each is compared with the one beside it, so that other load of the machine affects both
alike. Each seed is another repetition of all measurements.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.decodes import decode
from benchmarks.flags import count
from benchmarks.report import report
from engine.core.admission import EngineLimits
from engine.core.commands import Cancel, Command, GrammarReady
from engine.core.memory.block_manager import BlockManager
from engine.core.report import StepReport
from engine.execution.model_runner import ModelRunner
from engine.execution.step_loop import StepLoop
from engine.kv.kv_pool import KVPool
from engine.model.model import Model, load_model
from output_text.grammar import Grammars, MaskFinder, grammar_of
from reporting.progress import tracked
from reporting.section import Goal, Section, markdown
from reporting.tables import cell
from scheduling.cost.cost_model import UNKNOWN_COST
from scheduling.policies import by_name
from scheduling.request import SamplingParams, StopRules

VOCAB = 128_000
EOS = VOCAB - 1
ROWS = 64
ROW_TOKENS = 8
"""Tokens of a step for each row, some of which may be forced."""
BLOCK_SIZE = 16
MASK_GOAL_US, STEP_GOAL = 50.0, 1.05
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "role": {"enum": ["admin", "user", "guest"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "role", "tags", "address"],
    "additionalProperties": False,
}
CALL = {
    "type": "object",
    "properties": {
        "tool": {"const": "search"},
        "arguments": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["query", "limit"],
            "additionalProperties": False,
        },
    },
    "required": ["tool", "arguments"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "number"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
SCHEMAS: dict[str, Any] = {
    "person": PERSON,
    "tool call": CALL,
    "tree": TREE,
    "any object": {"type": "object"},
}
ENDLESS = {"type": "array", "items": PERSON, "minItems": 1000}
"""Rows of it stay in their batch."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=count, default=1, metavar="N", help="threads of the model (1)")
    parser.add_argument(
        "--steps", type=count, default=12, metavar="N", help="steps of each kind, a seed (12)"
    )
    parser.add_argument("--hidden", type=count, default=1024, metavar="N", help="the model's width (1024)")


def run(args: argparse.Namespace) -> int:
    """Time masks, then steps."""
    torch.set_num_threads(args.threads)
    with TemporaryDirectory() as folder:
        write_model(Path(folder), args.hidden)
        return report(args, _sections(args, Path(folder)))


def _sections(args: argparse.Namespace, folder: Path) -> Iterator[Section]:
    began = time.process_time()
    grammars = Grammars(folder / "tokenizer.json", VOCAB, [EOS])
    loading_s = time.process_time() - began
    yield _mask_section(args, grammars, loading_s)
    model = load_model(folder, torch.float32, torch.device("cpu"), random_seed=1)
    yield _step_section(args, model, grammars)


def write_model(folder: Path, hidden: int) -> None:
    """Write a tokenizer with the most frequent words that there are, and the config of a model for it."""
    words: Counter[bytes] = Counter()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        words.update(
            re.findall(
                rb" ?[A-Za-z_\x80-\xff]{1,16}| ?\d{1,3}| ?[^\sA-Za-z0-9_]{1,8}|\s{1,16}", path.read_bytes()
            )
        )
    single = [bytes([byte]) for byte in range(256)]
    pieces = {word[:length]: None for word, _ in words.most_common() for length in range(len(word), 1, -1)}
    spell = dict(zip(range(256), _byte_characters(), strict=True))
    spelt = ["".join(spell[byte] for byte in piece) for piece in [*single, *islice(pieces, EOS - 256)]]
    assert len(spelt) == EOS, "more text is needed"
    tokenizer = Tokenizer(
        models.BPE({token: place for place, token in enumerate(spelt)}, [], ignore_merges=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "vocab_size": VOCAB, "bos_token_id": EOS, "eos_token_id": EOS, "tie_word_embeddings": True,
        "hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": 8,
        "num_attention_heads": hidden // 64, "num_key_value_heads": max(1, hidden // 256),
        "max_position_embeddings": 2048,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def _byte_characters() -> list[str]:
    """Return the character that stands for each byte in a byte-level vocabulary."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = (chr(256 + place) for place in range(256))
    return [chr(byte) if byte in shown else next(hidden) for byte in range(256)]


# Masks


def _mask_section(args: argparse.Namespace, grammars: Grammars, loading_s: float) -> Section:
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in SCHEMAS}
    for seed in args.seeds:
        for name, schema in SCHEMAS.items():
            found[name].append(_masks(grammars, schema, seed))
    rows = [
        (name, *[cell(column, spec=".0f") for column in zip(*runs, strict=True)])
        for name, runs in found.items()
    ]
    columns = (
        "schema",
        "P50, µs",
        "P99, µs",
        "of 64 rows at once: 1 thread, µs a row",
        "2 threads, µs a row",
        "one token, µs",
    )
    method = (
        f"{VOCAB} tokens, random outputs of up to 100 tokens, each token drawn from those allowed. "
        f"Reading the tokenizer for grammars took {loading_s:.2f} s of a processor."
    )
    worst = tuple(max(runs[place][0] for runs in found.values()) for place in range(len(args.seeds)))
    goals = (
        Goal("a row's mask, P50 of the worst schema, µs", worst, MASK_GOAL_US, at_least=False, spec=".0f"),
    )
    return Section("Masks, by schema", method, goals, (markdown(columns, rows),), {"masks": found})


def _masks(grammars: Grammars, schema: Any, seed: int) -> tuple[float, ...]:
    """Return microseconds: quantiles of one row's mask, means of 64 rows', and what a token takes."""
    compiled = grammars.compiled(grammar_of("json_schema", json.dumps(schema)))
    rng, allowed = random.Random(seed), np.zeros((ROWS, VOCAB // 32), dtype=np.int32)
    one, two = MaskFinder(1), MaskFinder(2)
    followers = [compiled.begin() for _ in range(ROWS)]
    outputs: list[list[int]] = [[] for _ in range(ROWS)]
    single, together, parallel, taking = (list[float]() for _ in range(4))

    def find(finder: MaskFinder, rows: range) -> float:
        states = [(followers[row], row) for row in rows]
        began = time.perf_counter()
        finder.find(states, allowed.ctypes.data, VOCAB // 8, ROWS)
        return (time.perf_counter() - began) / len(rows) * 1e6

    for turn in range(100):
        single.extend(find(one, range(row, row + 1)) for row in range(8))
        together.append(find(one, range(ROWS)))
        parallel.append(find(two, range(ROWS)))
        for row in range(ROWS):
            outputs[row].append(_drawn(rng, allowed[row]))
            if outputs[row][-1] == EOS or turn % 50 == 49:
                outputs[row], followers[row] = [], compiled.begin()
                continue
            began = time.perf_counter()
            followers[row].follow(outputs[row])
            taking.append((time.perf_counter() - began) * 1e6)
    quantiles = [float(value) for value in np.quantile(single, [0.5, 0.99])]
    return *quantiles, *(statistics.median(each) for each in (together, parallel, taking))


def _drawn(rng: random.Random, bits: NDArray[np.int32]) -> int:
    tokens = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
    return int(tokens[rng.randrange(len(tokens))])


# Steps


class Bench:
    """One engine, whose rows are one batch that runs step by step."""

    def __init__(self, model: Model, grammars: Grammars, num_steps: int, *, takes_forced: bool) -> None:
        self._max_tokens = ROW_TOKENS * (num_steps + 8)
        blocks_of_row = 2 + self._max_tokens // BLOCK_SIZE
        # Rows start only where some blocks stay free beside what they may come to need.
        pool = KVPool(model.block_layout(BLOCK_SIZE), 2 * blocks_of_row * ROWS)
        self._grammars = grammars
        self._reports: list[StepReport] = []
        self._loop = StepLoop(
            ModelRunner(model, pool),
            pool.tensor,
            BlockManager(pool.num_blocks, BLOCK_SIZE),
            limits=EngineLimits(VOCAB, 2048, ROWS, ROW_TOKENS * ROWS, (EOS,)),
            fingerprint="benchmark",
            detokenizer=None,
            policy=by_name("chunked"),
            cost=UNKNOWN_COST,
            takes_forced=takes_forced,
        )
        self._handles: list[int] = []

    def begin(self, seed: int, schema: Any = None) -> None:
        """Start a batch, whose rows follow a schema, if there is one; what ran before ends."""
        grammar = "" if schema is None else grammar_of("json_schema", json.dumps(schema))
        stop = StopRules(max_tokens=self._max_tokens)
        starts = [
            decode(
                (6 + seed, row + 1), stop, SamplingParams(temperature=0.0, grammar=grammar), is_salted=True
            )
            for row in range(ROWS)
        ]
        commands: list[Command] = [*map(Cancel, self._handles), *starts]
        if grammar:
            compiled = self._grammars.compiled(grammar)
            commands += [GrammarReady(start.spec.handle, compiled) for start in starts]
        self._handles = [start.spec.handle for start in starts]
        self._loop.turn(commands, self._reports.append)
        while self._reports[-1].load.running < ROWS:
            self._loop.turn((), self._reports.append)

    def step(self) -> tuple[float, float, int]:
        """Run a decode step of all rows; return seconds of a processor, of the clock, and the tokens."""
        self._reports.clear()
        cpu, wall = time.process_time(), time.perf_counter()
        self._loop.turn((), self._reports.append)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        assert all(each.load.running == ROWS and not each.failures for each in self._reports), self._reports
        return cpu, wall, sum(len(each.tokens.handles) for each in self._reports)


def _step_section(args: argparse.Namespace, model: Model, grammars: Grammars) -> Section:
    free, one_by_one, together = (
        Bench(model, grammars, args.steps, takes_forced=takes) for takes in (False, False, True)
    )
    found: list[tuple[float, ...]] = []
    for seed in tracked(args.seeds, "seeds"):
        free.begin(seed)
        one_by_one.begin(seed, ENDLESS)
        together.begin(seed, ENDLESS)
        # A step of each kind in turns: what else the machine does meets all of them alike.
        steps = [[bench.step() for bench in (free, one_by_one, together)] for _ in range(args.steps)]
        cpu, wall, num_tokens = np.array(steps).transpose(2, 1, 0)  # each [kind, step]
        speed = num_tokens.sum(axis=1) / wall.sum(axis=1)
        ratios = [float(np.median(each[1] / each[0])) for each in (cpu, wall)]
        added_ms = float(np.median(cpu[1] - cpu[0])) * 1e3
        found.append(
            (float(np.median(cpu[0])) * 1e3, *ratios, added_ms, speed[1] / speed[0], speed[2] / speed[0])
        )
    columns = (
        "free step, ms of a processor", "with a format / free", "the same, wall clock",
        "more with a format, ms of a processor",
        "tokens/s with a format / free, a step for each token", "forced tokens taken along",
    )  # fmt: skip
    row = [cell(column, spec=".3f") for column in zip(*found, strict=True)]
    method = (
        f"8 layers of width {args.hidden}, float32, {args.threads} threads; greedy rows; {args.steps} steps "
        "of each kind in turns; medians of the ratios of steps that follow each other."
    )
    goals = tuple(
        Goal(
            f"step with a format / free, {name}",
            tuple(each[place] for each in found),
            STEP_GOAL,
            at_least=False,
            spec=".3f",
        )
        for place, name in ((1, "CPU"), (2, "wall clock"))
    )
    return Section(
        f"Decode steps of {ROWS} rows", method, goals, (markdown(columns, [row]),), {"steps": found}
    )
