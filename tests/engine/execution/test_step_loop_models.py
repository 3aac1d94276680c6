"""The step loop over real models: tokens equal stock transformers' `generate`, however steps are cut."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from engine.core.commands import Command, Decode, KVArrived, Prefill, Receive, Release
from engine.model.model import Model, load_model
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.request import FinishReason, SamplingParams, StopRules
from tests.engine.loop_driver import DEAR_TOKENS, FREE_DRAFTS, GREEDY, UNKNOWN_COST, spec
from tests.engine.real_engine import Engine
from tests.model_zoo import build, load_stock, stock_generate

PROMPTS = [[5], list(range(3, 20)), [7, 9] * 9, [60, 50, 40, 30], list(range(3, 32))]
LENGTHS = [12, 5, 9, 16, 3]
NO_EOS = StopRules(max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def model(directory: Path) -> Model:
    return load_model(directory, torch.float64, torch.device("cpu"))


def expected(directory: Path) -> list[list[int]]:
    return [stock_generate(directory, p, n).tokens for p, n in zip(PROMPTS, LENGTHS, strict=True)]


def decodes() -> list[Command]:
    return [
        Decode(spec(handle, prompt, stop=StopRules(length, ignore_eos=True)))
        for handle, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]


@pytest.mark.parametrize("budget", [1, 7, 64])
def test_concurrent_ragged_sequences_equal_stock_generate(directory: Path, model: Model, budget: int) -> None:
    engine = Engine(model, budget)
    engine.finish(*decodes())
    assert [engine.tokens(handle) for handle in range(len(PROMPTS))] == expected(directory)


def test_drafted_tokens_change_nothing(directory: Path, model: Model) -> None:
    """With few tokens to choose from the model repeats itself, so that most drafts are accepted."""
    engine, plain = Engine(model, cost=FREE_DRAFTS, speculates=True), Engine(model)
    stop, few = StopRules(40, ignore_eos=True), replace(GREEDY, allowed_token_ids=(3, 4, 5))
    for handle, prompt in enumerate(PROMPTS):
        requests = [Decode(spec(handle, prompt, stop=stop))]
        requests.append(Decode(spec(handle + 10, prompt, stop=stop, sampling=few)))
        engine.finish(*requests)
        plain.finish(*requests)
        assert engine.tokens(handle) == stock_generate(directory, prompt, 40).tokens
        assert engine.tokens(handle + 10) == plain.tokens(handle + 10)
    assert sum(report.accepted_drafts for report in engine.reports) > 60


LONG = [pytest.param(family, marks=pytest.mark.long) for family in ("llama", "qwen3_moe")]


@pytest.mark.parametrize("family", ["gemma2", *LONG])
def test_a_draft_model_changes_nothing(directory: Path, model: Model, tmp_path: Path, family: str) -> None:
    """With another family as draft model, which is hardly ever right, and with the model itself."""
    other = load_model(build(family, tmp_path, seed=2), torch.float64, torch.device("cpu"))
    sampling, stop = SamplingParams(temperature=0.8, top_p=0.9, seed=5), StopRules(40, ignore_eos=True)
    plain, found = Engine(model), {}
    for name, draft in (("other", other), ("same", model)):
        engine = Engine(model, cost=FREE_DRAFTS, draft=draft)
        for handle, prompt in enumerate(PROMPTS):
            requests = [Decode(spec(handle, prompt, stop=stop))]
            requests.append(Decode(spec(handle + 10, prompt, stop=stop, sampling=sampling)))
            engine.finish(*requests)
            if name == "other":
                plain.finish(*requests)
            assert engine.tokens(handle) == stock_generate(directory, prompt, 40).tokens
            assert engine.tokens(handle + 10) == plain.tokens(handle + 10)
        reports = engine.reports
        num_drafted = sum(report.drafted_tokens for report in reports)
        found[name] = sum(report.accepted_drafts for report in reports) / num_drafted
    assert found["same"] == 1.0
    assert found["other"] < 0.2


def test_prefix_hits_change_nothing(directory: Path, model: Model) -> None:
    engine = Engine(model)
    engine.finish(*decodes())
    computed = engine.reports
    engine.reports = []
    engine.finish(*decodes())
    assert [engine.tokens(handle) for handle in range(len(PROMPTS))] == expected(directory)
    first, again = (
        {p.handle: p.cached_tokens for report in reports for p in report.prefilled}
        for reports in (computed, engine.reports)
    )
    assert first == dict.fromkeys(range(5), 0)
    assert again == {0: 0, 1: 16, 2: 16, 3: 0, 4: 28}


@pytest.mark.parametrize("prompt", [PROMPTS[1], PROMPTS[3]], ids=["partial", "full"])
def test_choices_equal_each_alone(model: Model, prompt: list[int]) -> None:
    sampling = SamplingParams(temperature=2.0, seed=9, n=3)
    engine, alone = Engine(model), Engine(model)
    engine.finish(Decode(spec(1, prompt, sampling=sampling, choices=(0, 1, 2), stop=NO_EOS)))
    outputs = [engine.tokens(1, choice) for choice in range(3)]
    for choice in range(3):
        alone.finish(Decode(spec(choice, prompt, sampling=sampling, choices=(choice,), stop=NO_EOS)))
        assert outputs[choice] == alone.tokens(choice, choice)
    assert len({tuple(output) for output in outputs}) == 3


def test_a_random_draw_equals_one_from_stock_logits(directory: Path, model: Model) -> None:
    sampling = SamplingParams(temperature=0.7, seed=3, logprobs=4)
    engine = Engine(model)
    engine.finish(Decode(spec(1, PROMPTS[1], sampling=sampling, stop=NO_EOS)))
    tokens = engine.tokens(1)
    ids = torch.tensor([[*PROMPTS[1], *tokens[:-1]]])
    logits = load_stock(directory)(ids, use_cache=False, logits_to_keep=len(tokens)).logits[0]
    logprobs = torch.log_softmax(logits, dim=-1).detach()
    told = [logprob for report in engine.reports for logprob in report.tokens.logprobs]
    assert told == pytest.approx(
        [logprobs[place, token].item() for place, token in enumerate(tokens)], abs=1e-9
    )


@pytest.mark.parametrize("num_verified", [0, 3, 5])
def test_a_handed_over_sequence_equals_one_that_stayed(
    directory: Path, model: Model, num_verified: int
) -> None:
    source, target = Engine(model, 7), Engine(model, 7)
    request = spec(1, PROMPTS[1], stop=NO_EOS)
    source.finish(Prefill(request))
    target.finish(Receive(request), Decode(spec(2, PROMPTS[2], stop=NO_EOS)))
    (told,) = [row for report in target.reports for row in report.received]
    offered = [block for report in source.reports for filled in report.filled for block in filled.blocks]
    assert len(offered) == len(told.blocks) == 5
    for place in range(num_verified):
        target.pool.tensor[told.blocks[place]] = source.pool.tensor[offered[place]]
    target.pool.tensor[list(told.blocks[num_verified:])] = float("nan")
    (first,) = [report.tokens for report in source.reports if report.tokens.handles]
    first = TokenColumns(first.handles, first.choices, first.indexes, first.token_ids, first.finish_reasons)
    target.finish(KVArrived(1, num_verified, first))
    source.finish(Release(1))
    assert target.tokens(1) == stock_generate(directory, PROMPTS[1], 16).tokens
    assert target.tokens(2) == stock_generate(directory, PROMPTS[2], 16).tokens
    for engine in (source, target):
        engine.blocks.check_integrity([], 0)


def test_8_bit_kv_is_handed_over_with_its_scales(model: Model) -> None:
    source, target, alone = (Engine(model, 7, stored=torch.int8) for _ in range(3))
    request = spec(1, PROMPTS[1], stop=NO_EOS)
    alone.finish(Decode(request))
    source.finish(Prefill(request))
    target.finish(Receive(request), Decode(spec(2, PROMPTS[2], stop=NO_EOS)))
    (told,) = [row for report in target.reports for row in report.received]
    offered = [block for report in source.reports for filled in report.filled for block in filled.blocks]
    target.pool.tensor[list(told.blocks)] = 0xFF
    for theirs, own in zip(offered[:3], told.blocks, strict=False):
        target.pool.block_bytes_view(own)[:] = source.pool.block_bytes_view(theirs)
    (first,) = [report.tokens for report in source.reports if report.tokens.handles]
    first = TokenColumns(first.handles, first.choices, first.indexes, first.token_ids, first.finish_reasons)
    target.finish(KVArrived(1, 3, first))
    assert target.tokens(1) == alone.tokens(1)


def test_text_is_the_tokenizers_decoding_up_to_the_stop_string(directory: Path, model: Model) -> None:
    tokens = stock_generate(directory, PROMPTS[0], 16).tokens
    text = Tokenizer.from_file(str(directory / "tokenizer.json")).decode(tokens)
    engine = Engine(model)
    stop = StopRules(16, stop_strings=(text[4:7],), ignore_eos=True)
    engine.finish(Decode(spec(1, PROMPTS[0], stop=stop)))
    shown = b"".join(report.tokens.text_utf8 for report in engine.reports).decode()
    assert shown == text[: text.index(text[4:7])]
    assert engine.reports[-1].tokens.finish_reasons == [FinishReason.STOP]


@pytest.mark.parametrize("stored", [None, torch.int8], ids=["kv", "kv8"])
@pytest.mark.parametrize("cost", [UNKNOWN_COST, DEAR_TOKENS], ids=["recompute", "swap"])
def test_history_changes_no_bit_of_a_deterministic_model(
    directory: Path, cost: CostModel, stored: torch.dtype | None
) -> None:
    model = load_model(directory, torch.float32, torch.device("cpu"), deterministic=True)
    make = partial(Engine, model, stored=stored)
    sampling = SamplingParams(temperature=0.8, top_p=0.9, seed=5, logprobs=2, repetition_penalty=1.3, n=2)
    greedy = SamplingParams(temperature=0.0, logprobs=1)
    longest = StopRules(24, min_tokens=24)
    specs = [
        spec(1, PROMPTS[0], sampling=greedy, stop=longest),
        spec(2, PROMPTS[1], sampling=sampling, stop=longest, choices=(0, 1)),
        spec(3, PROMPTS[3], sampling=sampling, stop=longest),
        spec(4, PROMPTS[4], sampling=greedy, stop=longest),
    ]
    tight, alone, again = make(num_blocks=24, cost=cost), make(), make(3)
    tight.finish(*(Decode(spec(10 + n, [n], 1)) for n in range(9)))  # so far outputs were short
    tight.finish(*(Decode(sequence) for sequence in specs))
    for sequence in specs:
        alone.finish(Decode(sequence))
    again.finish(Decode(spec(20, PROMPTS[4], 2)))  # leaves its prompt in the cache
    again.finish(*(Decode(sequence) for sequence in specs[::-1]))
    # As it goes on after a death: some tokens are known, and computed as part of the prompt.
    resumed = make()
    known = alone.tokens(3)[:9]
    resumed.finish(Decode(spec(3, PROMPTS[3], sampling=sampling, stop=longest, outputs=known)))
    assert sum(len(report.preempted) for report in tight.reports) > 0
    for engine in (tight, again):
        for handle, choice in [(1, 0), (2, 0), (2, 1), (3, 0), (4, 0)]:
            assert engine.tokens(handle, choice) == alone.tokens(handle, choice)
        for handle in range(1, 5):
            assert sorted(engine.logprobs(handle)) == sorted(alone.logprobs(handle))
    assert resumed.tokens(3) == alone.tokens(3)[9:]
    assert resumed.logprobs(3) == alone.logprobs(3)[9:]


@pytest.mark.parametrize("cost", [UNKNOWN_COST, DEAR_TOKENS], ids=["recompute", "swap"])
def test_preempted_sequences_equal_undisturbed_ones(model: Model, cost: CostModel) -> None:
    sampling = SamplingParams(
        temperature=0.8, seed=5, logprobs=2, presence_penalty=0.5, repetition_penalty=1.3, n=2
    )
    longest = StopRules(24, min_tokens=24)
    probe = Engine(model)
    probe.finish(Decode(spec(1, PROMPTS[0], stop=longest)))
    stop = StopRules(24, stop_strings=(probe.text(1)[-3:],), min_tokens=20)
    commands = [
        Decode(spec(1, PROMPTS[0], stop=stop)),
        Decode(spec(2, PROMPTS[1], sampling=sampling, stop=longest, choices=(0, 1))),
        Decode(spec(3, PROMPTS[3], sampling=sampling, stop=longest)),
        Decode(spec(4, [3, 4], stop=longest)),
    ]
    tight, alone = Engine(model, num_blocks=20, cost=cost), Engine(model)
    # So far outputs were short: all are let in at once.
    tight.finish(*(Decode(spec(10 + n, [n], 1)) for n in range(9)))
    tight.finish(*commands)
    for command in commands:
        alone.finish(command)
    assert sum(len(report.preempted) for report in tight.reports) > 0
    for handle, choice in [(1, 0), (2, 0), (2, 1), (3, 0), (4, 0)]:
        assert tight.tokens(handle, choice) == alone.tokens(handle, choice)
        assert tight.text(handle, choice) == alone.text(handle, choice)
    for handle in (2, 3):
        assert sorted(tight.logprobs(handle)) == pytest.approx(sorted(alone.logprobs(handle)), abs=1e-9)
    is_swapped = cost is DEAR_TOKENS
    assert (sum(report.recomputed_tokens for report in tight.reports) == 0) is is_swapped
    tight.blocks.check_integrity([], 0)
