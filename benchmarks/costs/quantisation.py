"""Measure 8-bit weights and KV: the change of logits, and the gain in memory and time.

The float32 model writes a text for each seed, after one of the demo's prompts. Both models get it in chunks,
and their logits are compared at every token: the error relative to the spread of the logits, whether both
would choose the same token, and the ratio of perplexities. Times are CPU times of steps that both
compute in turns.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from baton.cli.commands.demo import COMPLETIONS
from benchmarks.costs.turns import compare
from benchmarks.flags import count
from benchmarks.report import report
from engine.building.build import can_fuse
from engine.calibration.grid import Step
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.attention.step_batch import StepBatch
from engine.model.checkpoint import tensor_shapes
from engine.model.model import DTYPES, load_model
from engine.model.quantised.quantisation import Quantisation
from sim.reporting.section import Section, markdown
from sim.reporting.tables import cells

BLOCK_SIZE, NUM_BLOCKS = 16, 400
CHUNK = 32
"""Tokens of a step, few enough that they attend mostly to the pool."""
ARMS = tuple(choice for choice in Quantisation if choice is not Quantisation.NONE)
MEASURED_DTYPES = ("float32", "bfloat16")
STEPS = {
    "1 decode at 256": Step(1, 256),
    "8 decodes at 256": Step(8, 256),
    "64 tokens of prompt": Step(0, 0, (0, 64)),
    "256 tokens of prompt": Step(0, 0, (0, 256)),
}
MEBIBYTE = 1 << 20
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Drift:
    """The difference between two models' logits over a text."""

    rms: float
    """Root mean square of the differences, relative to the spread of the logits around each token's mean."""
    largest: float
    """The largest difference, on the same scale."""
    same_choice: float
    """Share of tokens after which both would choose the same one."""
    perplexity: float
    """Perplexity of the text, as a ratio to the other model's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens", type=count, default=256, metavar="N", help="tokens of each seed's text (256)"
    )
    parser.add_argument("--threads", type=count, default=1, metavar="N", help="threads of the worker (1)")
    parser.add_argument(
        "--kinds",
        type=_kinds,
        default=ARMS,
        metavar="A,B",
        help="what is kept in 8 bits, of " + ",".join(kind.value for kind in ARMS) + " (all)",
    )
    parser.add_argument("--rounds", type=count, default=6, metavar="N", help="rounds of each step (6)")


def _kinds(text: str) -> tuple[Quantisation, ...]:
    return tuple(map(Quantisation, text.split(",")))


def run(args: argparse.Namespace) -> int:
    """Compare each arm with the plain model of the same dtype, and plain bfloat16 with float32."""
    torch.set_num_threads(args.threads)
    plain = {dtype: _runner(args, dtype, Quantisation.NONE) for dtype in MEASURED_DTYPES}
    texts = [_write(plain["float32"], args, seed) for seed in args.seeds]
    logits = {dtype: [_logits(runner, text) for text in texts] for dtype, runner in plain.items()}
    drifts = {"bfloat16": list(map(_drift, logits["float32"], logits["bfloat16"], texts))}
    sizes: dict[str, tuple[float, ...]] = {}
    steps: dict[str, list[tuple[float, float, float]]] = {}
    for dtype in MEASURED_DTYPES:
        for arm in args.kinds:
            name, runner = f"{arm.value}, {dtype}", _runner(args, dtype, arm)
            others = (_logits(runner, text) for text in texts)
            drifts[name] = list(map(_drift, logits[dtype], others, texts))
            both = (plain[dtype], runner)
            weights = _float_bytes(args.model, dtype), _weight_bytes(runner, args.model, dtype)
            sizes[name] = (
                *(each / MEBIBYTE for each in weights),
                *(each.pool.block_bytes / BLOCK_SIZE for each in both),
            )
            for step, shape in STEPS.items():
                steps[f"{name}: {step}"] = [compare(both, shape, args.rounds) for _ in args.seeds]
    return report(args, [_section(args, drifts, sizes, steps)])


def _section(
    args: argparse.Namespace,
    drifts: dict[str, list[Drift]],
    sizes: dict[str, tuple[float, ...]],
    steps: dict[str, list[tuple[float, float, float]]],
) -> Section:
    quality = [(name, *cells(map(astuple, arm_drifts), ".4f")) for name, arm_drifts in drifts.items()]
    memory = [
        (name, *(f"{weights:.1f}" for weights in figures[:2]), *(f"{kv:.0f}" for kv in figures[2:]))
        for name, figures in sizes.items()
    ]
    times = [(name, *cells(figures)) for name, figures in steps.items()]
    tables = (
        markdown(("model", "error, rms", "largest", "same choice", "perplexity, ratio"), quality),
        markdown(("model", "weights plain, MiB", "quantised", "KV of a token, bytes", "quantised"), memory),
        markdown(("model: step", "plain, ms", "quantised, ms", "ratio"), times),
    )
    method = (
        f"{args.model.name}, {args.threads} threads; {args.tokens} tokens of text for each of seeds "
        f"{', '.join(map(str, args.seeds))}; steps are medians of {args.rounds} rounds, measured "
        f"{len(args.seeds)} times. Compared with the plain model of the same dtype, bfloat16 with float32."
    )
    data = {
        "drifts": {name: [astuple(drift) for drift in arm_drifts] for name, arm_drifts in drifts.items()},
        "sizes": sizes,
        "steps": steps,
    }
    return Section("Quantisation: logits, memory, time", method, (), tables, data)


def _runner(args: argparse.Namespace, dtype: str, quantisation: Quantisation) -> ModelRunner:
    """Return a model as a worker serves it by default."""
    fused = can_fuse(CPU, DTYPES[dtype], deterministic=False)
    model = load_model(args.model, DTYPES[dtype], CPU, quantisation=quantisation, fused=fused)
    return ModelRunner(model, KVPool(model.block_layout(BLOCK_SIZE), NUM_BLOCKS))


def _float_bytes(model: Path, dtype: str) -> int:
    """Return the bytes of all of a checkpoint's weights in a dtype."""
    return sum(math.prod(shape) for shape in tensor_shapes(model).values()) * DTYPES[dtype].itemsize


def _weight_bytes(runner: ModelRunner, model: Path, dtype: str) -> int:
    """Return the bytes of all weights of a model that may be quantised."""
    quantised, whole = runner.model.quantised, _float_bytes(model, dtype)
    return whole if quantised is None else whole - (quantised.float_bytes - quantised.num_bytes)


def _write(runner: ModelRunner, args: argparse.Namespace, seed: int) -> list[int]:
    """Return a text that this model finds likely: one of the demo's prompts, continued token by token."""
    tokenizer = Tokenizer.from_file(str(runner.model.facts.tokenizer_path))
    text: list[int] = tokenizer.encode(COMPLETIONS[seed % len(COMPLETIONS)]).ids
    generator = torch.Generator().manual_seed(seed)
    logits = _logits(runner, text)[-1]
    while len(text) < args.tokens:
        text.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
        logits = runner.forward(_step(text, len(text) - 1, len(text)))[-1]
    return text[: args.tokens]


def _logits(runner: ModelRunner, text: list[int]) -> Tensor:
    """Return the logits after each token, float64 [T, V]."""
    spans = ((begin, min(begin + CHUNK, len(text))) for begin in range(0, len(text), CHUNK))
    return torch.cat([runner.forward(_step(text, *span)).double() for span in spans])


def _step(text: list[int], begin: int, end: int) -> StepBatch:
    positions = torch.arange(begin, end)
    return StepBatch(
        token_ids=torch.tensor(text[begin:end]),
        positions=positions,
        slot_mapping=positions,
        block_tables=torch.arange(NUM_BLOCKS, dtype=torch.int32)[None],
        context_lens=torch.tensor([end], dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, end - begin], dtype=torch.int32),
        logit_rows=positions - begin,
        num_decodes=int(end - begin == 1),
        max_context_len=end,
    )


def _drift(plain: Tensor, other: Tensor, text: list[int]) -> Drift:
    # A constant added to all logits of a token has no effect.
    centred, moved = (logits - logits.mean(-1, keepdim=True) for logits in (plain, other))
    spread = centred.square().mean().sqrt()
    difference = moved - centred
    surprise, others = (cross_entropy(logits[:-1], torch.tensor(text[1:])) for logits in (plain, other))
    return Drift(
        rms=float(difference.square().mean().sqrt() / spread),
        largest=float(difference.abs().max() / spread),
        same_choice=float((plain.argmax(-1) == other.argmax(-1)).double().mean()),
        perplexity=float((others - surprise).exp()),
    )
