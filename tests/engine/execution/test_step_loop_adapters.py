"""Sequences with LoRA adapters: tokens equal stock transformers' over merged weights, in any company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from engine.core.commands import Command, Decode, KVArrived, Prefill, Receive
from engine.core.report import StepReport
from engine.model.adapters.checkpoint import read_adapter
from engine.model.model import Model, load_model
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.request import FailureReason, SequenceSpec, StopRules
from tests.adapters import merge, write_adapter
from tests.engine.loop_driver import DEAR_TOKENS, FREE_DRAFTS, GREEDY, UNKNOWN_COST, spec
from tests.engine.real_engine import Engine
from tests.model_zoo import CASES, build, stock_generate

CPU = torch.device("cpu")
PROMPTS = [[5], list(range(3, 20)), [7, 9] * 9, [60, 50, 40, 30], list(range(3, 32))]
NAMES = ["red", "", "green", "red", "blue"]
"""The adapter of each prompt; the second has none."""
NUM_TOKENS = 9
RANKS = {"red": 4, "green": 2, "blue": 8}


@dataclass(frozen=True)
class Family:
    """A model with three adapters of different ranks and targets, and their merged checkpoints."""

    base: Path
    model: Model
    merged: dict[str, Path]
    """By adapter; the base itself under the empty name."""

    def spec(self, handle: int, prompt: Sequence[int], name: str, num: int = NUM_TOKENS) -> SequenceSpec:
        assert self.model.adapters is not None
        made = spec(handle, prompt, stop=StopRules(num, ignore_eos=True))
        return replace(made, adapter=self.model.adapters.digests[name] if name else "")

    def decodes(self) -> list[Command]:
        return [
            Decode(self.spec(handle, prompt, name))
            for handle, (prompt, name) in enumerate(zip(PROMPTS, NAMES, strict=True))
        ]

    def expected(self, num: int = NUM_TOKENS) -> list[list[int]]:
        pairs = zip(PROMPTS, NAMES, strict=True)
        return [stock_generate(self.merged[name], prompt, num).tokens for prompt, name in pairs]


def family(name: str, folder: Path) -> Family:
    base = build(name, folder / "base")
    paths = {
        adapter: write_adapter(base, folder / adapter, seed=seed, rank=rank)
        for seed, (adapter, rank) in enumerate(RANKS.items())
    }
    files = [read_adapter(adapter, path) for adapter, path in paths.items()]
    merged = {adapter: merge(base, path, folder / f"merged-{adapter}") for adapter, path in paths.items()}
    return Family(base, load_model(base, torch.float64, CPU, adapters=files), {"": base} | merged)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return family("llama", tmp_path_factory.mktemp("llama"))


def tokens_of(engine: Engine) -> list[list[int]]:
    return [engine.tokens(handle) for handle in range(len(PROMPTS))]


def cached_tokens(reports: Sequence[StepReport]) -> dict[int, int]:
    return {each.handle: each.cached_tokens for report in reports for each in report.prefilled}


@pytest.mark.parametrize("name", CASES)
def test_mixed_adapters_equal_merged_weights(name: str, tmp_path: Path) -> None:
    made = family(name, tmp_path)
    engine = Engine(made.model, 12)
    engine.finish(*made.decodes())
    assert tokens_of(engine) == made.expected()
    assert len({tuple(tokens) for tokens in made.expected()}) == len(PROMPTS)


@pytest.mark.parametrize("budget", [1, 7, 64])
def test_chunks_of_any_size_change_nothing(llama: Family, budget: int) -> None:
    engine = Engine(llama.model, budget)
    engine.finish(*llama.decodes())
    assert tokens_of(engine) == llama.expected()


@pytest.mark.parametrize("cost", [UNKNOWN_COST, DEAR_TOKENS], ids=["recompute", "swap"])
def test_a_preempted_sequence_keeps_its_adapter(llama: Family, cost: CostModel) -> None:
    tight, alone = Engine(llama.model, num_blocks=18, cost=cost), Engine(llama.model)
    tight.finish(*(Decode(spec(10 + n, [n], 1)) for n in range(9)))  # so far outputs were short
    asked = [(1, PROMPTS[0], "red"), (2, PROMPTS[1], "green"), (3, PROMPTS[3], ""), (4, [3, 4], "blue")]
    longest = StopRules(24, min_tokens=24)
    requests = [Decode(replace(llama.spec(*each), stop=longest)) for each in asked]
    tight.finish(*requests)
    for request in requests:
        alone.finish(request)
    assert sum(len(report.preempted) for report in tight.reports) > 0
    for handle, _, _ in asked:
        assert tight.tokens(handle) == alone.tokens(handle)


def test_drafted_tokens_have_the_adapter_of_their_row(llama: Family) -> None:
    engine = Engine(llama.model, cost=FREE_DRAFTS, speculates=True)
    plain, few = Engine(llama.model), replace(GREEDY, allowed_token_ids=(3, 4, 5))
    requests = [
        Decode(replace(llama.spec(handle, prompt, name, 40), sampling=few))
        for handle, (prompt, name) in enumerate(zip(PROMPTS, NAMES, strict=True))
    ]
    engine.finish(*requests)
    plain.finish(*requests)
    assert tokens_of(engine) == tokens_of(plain)
    assert sum(report.accepted_drafts for report in engine.reports) > 20


def test_kv_of_another_adapter_is_never_reused(llama: Family) -> None:
    """All prompts are the same: each adapter finds its own blocks again, and no others."""
    engine, prompt, names = Engine(llama.model), PROMPTS[4], ["", "red", "green", "blue"]
    outputs = [stock_generate(llama.merged[name], prompt, NUM_TOKENS).tokens for name in names]
    for begin, num_cached in ((0, 0), (10, 28)):
        for place, name in enumerate(names):
            handle, engine.reports = begin + place, []
            engine.finish(Decode(llama.spec(handle, prompt, name)))
            assert cached_tokens(engine.reports) == {handle: num_cached}
            assert engine.tokens(handle) == outputs[place]


def test_a_handoff_goes_on_with_the_adapter(llama: Family) -> None:
    prompt = PROMPTS[4][:12]  # three full blocks
    want = stock_generate(llama.merged["red"], prompt, NUM_TOKENS).tokens
    source, target = Engine(llama.model), Engine(llama.model)
    sequence = llama.spec(1, prompt, "red")
    source.finish(Prefill(sequence))
    target.finish(Receive(sequence))
    filled = [filled for report in source.reports for filled in report.filled]
    (received,) = [received for report in target.reports for received in report.received]
    theirs = [block for each in filled for block in each.blocks]
    for own, other in zip(received.blocks, theirs, strict=True):
        target.pool.block_bytes_view(own)[:] = source.pool.block_bytes_view(other)
    (first,) = [report.tokens for report in source.reports if report.tokens.handles]
    first = TokenColumns(first.handles, first.choices, first.indexes, first.token_ids, first.finish_reasons)
    target.finish(KVArrived(1, len(theirs), first))
    assert target.tokens(1) == want


@pytest.mark.parametrize("command", [Decode, Prefill, Receive])
def test_a_sequence_with_an_unknown_adapter_is_refused(llama: Family, command: type[Decode]) -> None:
    engine = Engine(llama.model)
    engine.finish(command(replace(llama.spec(1, PROMPTS[1], ""), adapter="0" * 32)))
    (failure,) = [failure for report in engine.reports for failure in report.failures]
    assert failure.reason is FailureReason.REFUSED
    assert failure.message.startswith("adapter is 00000000000000000000000000000000, which this worker does")
