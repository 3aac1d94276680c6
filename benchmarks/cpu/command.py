"""Measure a CPU: Baton's fleet beside other engines, both beside the machine's limits, and its steps.

    make bench-cpu
    python -m benchmarks cpu --dtype bfloat16 --seeds 1,2,3
    python -m benchmarks cpu --model random-llama-500m --part int8,int4
    python -m benchmarks cpu --part steps --model demo_model --threads 1

The parts:

    float     the limits of the machine, and engines in turns that keep weights as floats: Baton's fleet (a
              router and one worker, called through the SDK), transformers, and OpenVINO GenAI
    int8      the same with weights of 8 bits: Baton, OpenVINO GenAI, and llama.cpp with Q8_0
    int4      the same with weights of 4 bits: Baton, OpenVINO GenAI, and llama.cpp with Q4_0
    shares    where the time of a decode step goes, in an engine without a fleet
    steps     steps with native ops beside PyTorch alone; only if asked for

All engines compute the same random prompts, greedily, to the same lengths, with the same threads. The dtype
is that of products, of KV and of weights that are not in fewer bits, except that arms with kv8 keep KV in 8
bits, and that llama.cpp chooses its own types and keeps KV in float16. Prompts differ from pass to pass, so
prefix caches have none of them. transformers gets the prompts of a load as one batch; the others split
prompts by --token-budget. First tokens are compared with those of the same weights in float32. Client, router
and worker share the machine. OpenVINO and llama.cpp have environments of their own, which `make bench-cpu`
sets up; without them, their columns are empty.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.cpu import steps
from benchmarks.cpu.arms import FORMATS
from benchmarks.cpu.comparison import compare
from benchmarks.cpu.engines.loads import CONTEXT, LARGEST_BATCH, LOADS, ONE_DECODE, PREFILL_TOKENS, decodes
from benchmarks.cpu.engines.process_engine import Setting
from benchmarks.cpu.floors import need_of
from benchmarks.cpu.random_model import SHAPE, SHAPES, random_model
from benchmarks.cpu.shares import Shares, engine_of, measure_shares
from benchmarks.cpu.tables import data_of, engines_table, limits_table, shares_table
from benchmarks.flags import count, names
from benchmarks.report import report
from engine.model.allow_list import read_config
from sim.reporting.progress import tracked
from sim.reporting.section import Section
from worker.config import SIZES

SHARES, STEPS = "shares", "steps"
PARTS = (*FORMATS, SHARES, STEPS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    meaning = f"the checkpoint's folder, or {' or '.join(SHAPES)}, made in .baton/models ({SHAPE.name})"
    add("--model", type=Path, default=Path(SHAPE.name), metavar="PATH", help=meaning)
    dtypes = ("float32", "bfloat16")
    add("--dtype", choices=dtypes, default="float32", help="the type of weights and KV (float32)")
    cores = len(os.sched_getaffinity(0))
    add("--threads", type=count, default=cores, metavar="N", help="threads of each engine (all cores)")
    budget = SIZES["token_budget"]
    add("--token-budget", type=count, default=budget, metavar="N", help=f"most tokens of a step ({budget})")
    usual = [part for part in PARTS if part != STEPS]
    parts = f"parts to measure: {', '.join(PARTS)} ({','.join(usual)})"
    add("--part", type=names, default=usual, metavar="A,B", help=parts)
    add("--rounds", type=count, default=20, metavar="N", help="rounds of each step of --part steps (20)")


def run(args: argparse.Namespace) -> int:
    """Measure the parts in order. Raises ValueError for a part that there is not, or too short a context."""
    if set(args.part) - set(PARTS):
        raise ValueError(f"--part is {','.join(args.part)}; accepted: {', '.join(PARTS)}")
    shape = SHAPES.get(str(args.model))
    if shape is not None:
        args.model = random_model(shape)
    config = read_config(args.model)
    longest = max(load.prompt_tokens + load.longest_output for load in LOADS)
    if config["max_position_embeddings"] < longest:
        raise ValueError(
            f"--model has {config['max_position_embeddings']} positions; accepted: {longest} or more"
        )
    torch.set_num_threads(args.threads)
    return report(args, _sections(args, config["vocab_size"]))


def _sections(args: argparse.Namespace, vocab_size: int) -> Iterator[Section]:
    for name in FORMATS:
        if name in args.part:
            yield from _engines(args, vocab_size, name)
    if SHARES in args.part:
        yield _shares(args, vocab_size)
    if STEPS in args.part:
        yield steps.section(args.model, args.dtype, args.threads, args.rounds, args.seeds)


def _engines(args: argparse.Namespace, vocab_size: int, name: str) -> Iterator[Section]:
    setting = Setting(args.model, args.dtype, args.threads, args.token_budget)
    comparison = asyncio.run(compare(setting, FORMATS[name], vocab_size, args.seeds, name))
    fastest = "Threads are those of the engines; each rate is that of the fastest of several passes."
    yield Section(f"Limits of the machine, {name}", fastest, (), (limits_table(comparison.limits),))
    need = need_of(args.model)
    method = (
        f"{_model(args)}; steps have {CONTEXT} tokens of context, and somewhat more if prompts are computed "
        f"one after the other. Ratios are speeds: above 1, Baton is faster. A step reads "
        f"{need.read_weights / 1e6:.0f} million weights; each of {PREFILL_TOKENS} tokens of a prompt is "
        f"multiplied with {need.layer_weights / 1e6:.0f} million. Attention is not counted."
    )
    notes = " ".join([method, *comparison.notes])
    table = engines_table(comparison, need, args.dtype)
    yield Section(f"Engines on a CPU, {name}", notes, (), (table,), data_of(comparison))


def _shares(args: argparse.Namespace, vocab_size: int) -> Section:
    engine = engine_of(args.model, args.dtype, args.token_budget)
    by_engine: dict[str, list[Shares]] = {}
    loads = {load.name: load for load in (ONE_DECODE, decodes(LARGEST_BATCH))}
    for seed in tracked(args.seeds, "shares"):
        for name, load in loads.items():
            by_engine.setdefault(name, []).append(
                measure_shares(engine, load, load.prompts(seed, vocab_size))
            )
    method = (
        f"{_model(args)}; an engine in this process, without router and client; medians of the steps of a "
        "load. Outside the model are scheduling, sampling and detokenising."
    )
    data = {name: [each.parts_s for each in shares] for name, shares in by_engine.items()}
    return Section("Where the time of a step goes", method, (), (shares_table(by_engine),), {"parts_s": data})


def _model(args: argparse.Namespace) -> str:
    return f"{args.model.name}, {args.dtype}, {args.threads} threads, {args.token_budget} tokens a step"
