"""Log-probabilities of a prompt's own tokens: each once, whatever happens, equal to a plain pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.batch import MAX_PROMPT_ROWS, within_rows
from engine.core.commands import Cancel, Decode, KVArrived, Prefill, Receive, Release
from engine.core.report import StepReport
from engine.core.sequence import Goal, SequenceGroup
from engine.model.model import load_model
from model_output.text.output import output_rules
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.request import SamplingParams, SequenceSpec, StopRules
from tests.engine.execution.test_step_loop_models import PROMPTS
from tests.engine.fake_runner import greedy, logits_after
from tests.engine.loop_driver import DEAR_TOKENS, UNKNOWN_COST, VOCAB, Driver, spec
from tests.engine.real_engine import Engine
from tests.model_zoo import build, load_stock

ASKED = SamplingParams(temperature=0.0, prompt_logprobs=2)


def told(reports: Sequence[StepReport], handle: int) -> tuple[list[float], list[int], list[float]]:
    """Log-probabilities, alternatives and theirs; they have to come in order, each once, and not too late."""
    logprobs: list[float] = []
    top_token_ids: list[int] = []
    top_logprobs: list[float] = []
    has_token = False
    for report in reports:
        for piece in report.prompt_logprobs:
            if piece.handle == handle:
                assert not has_token
                assert piece.first_index == 1 + len(logprobs)
                assert len(piece.top_token_ids) == piece.num_top * len(piece.logprobs)
                logprobs += piece.logprobs
                top_token_ids += piece.top_token_ids
                top_logprobs += piece.top_logprobs
        has_token = has_token or handle in report.tokens.handles
    return logprobs, top_token_ids, top_logprobs


def reference(prompt: Sequence[int], num_top: int) -> tuple[list[float], list[int], list[float]]:
    """One token after the other, from the fake model."""
    logprobs, tokens, values = [], [], []
    for index in range(1, len(prompt)):
        logits = logits_after(prompt[:index], VOCAB)
        row = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        best = np.argsort(-row)[:num_top].tolist()
        logprobs.append(float(row[prompt[index]]))
        tokens += best
        values += [float(row[entry]) for entry in best]
    return logprobs, tokens, values


def check(reports: Sequence[StepReport], handle: int, prompt: Sequence[int], num_top: int = 2) -> None:
    logprobs, tokens, values = told(reports, handle)
    expected = reference(prompt, num_top)
    assert tokens == expected[1]
    assert logprobs == pytest.approx(expected[0], abs=1e-12)
    assert values == pytest.approx(expected[2], abs=1e-12)


@pytest.mark.parametrize("overlaps", [False, True])
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_prompt_token_is_told_once_however_steps_are_cut(overlaps: bool, data: st.DataObject) -> None:
    prompts = data.draw(
        st.lists(
            st.lists(st.integers(0, 5), min_size=1, max_size=23) | st.just([3, 1, 4, 1, 5, 9, 2, 6] * 3),
            min_size=1,
            max_size=4,
        )
    )
    driver = Driver(
        token_budget=data.draw(st.integers(1, 24)),
        num_blocks=data.draw(st.sampled_from([14, 64])),
        num_swap_blocks=data.draw(st.sampled_from([0, 50])),
        overlaps=overlaps,
    )
    wants = [data.draw(st.none() | st.integers(0, 3)) for _ in prompts]
    for handle, (prompt, num_top) in enumerate(zip(prompts, wants, strict=True)):
        choices = data.draw(st.sampled_from([(0,), (0, 1)]))
        sampling = dataclasses.replace(ASKED, prompt_logprobs=num_top, n=len(choices))
        driver.turn(Decode(spec(handle, prompt, 5, sampling=sampling, choices=choices)))
    driver.finish()
    for handle, (prompt, num_top) in enumerate(zip(prompts, wants, strict=True)):
        assert driver.tokens(handle) == greedy(prompt, 5, VOCAB)
        if num_top is None:
            assert told(driver.reports, handle) == ([], [], [])
        else:
            check(driver.reports, handle, prompt, num_top)
    driver.assert_at_rest()


def test_cached_blocks_are_recomputed_for_prompt_logprobs_only() -> None:
    driver, prompt = Driver(), list(range(3, 25))
    driver.finish(Decode(spec(1, prompt)))
    driver.finish(Decode(spec(2, prompt, sampling=ASKED)))
    check(driver.reports, 2, prompt)
    driver.finish(Decode(spec(3, prompt)))
    cached = {row.handle: row.cached_tokens for report in driver.reports for row in report.prefilled}
    assert cached == {1: 0, 2: 0, 3: 20}
    assert driver.tokens(1) == driver.tokens(2) == driver.tokens(3)
    driver.assert_at_rest()


def short_pool(cost: CostModel, num_swap_blocks: int, num_blocks: int, budget: int) -> Driver:
    """A pool that is soon full: outputs have been short so far, and nothing promises that they stay so."""
    driver = Driver(
        num_blocks=num_blocks, cost=cost, num_swap_blocks=num_swap_blocks, token_budget=budget, max_num_seqs=8
    )
    driver.finish(*(Decode(spec(1000 + n, [n], 1)) for n in range(9)))
    return driver


@pytest.mark.parametrize(("cost", "num_swap_blocks"), [(UNKNOWN_COST, 0), (DEAR_TOKENS, 100)])
def test_a_preempted_sequence_tells_nothing_twice(cost: CostModel, num_swap_blocks: int) -> None:
    driver = short_pool(cost, num_swap_blocks, 16, 64)
    prompts = [[handle, 5, 6, 7, 8] for handle in range(4)]
    driver.finish(*(Decode(spec(handle, entry, 30, sampling=ASKED)) for handle, entry in enumerate(prompts)))
    assert any(report.preempted for report in driver.reports)
    for handle, prompt in enumerate(prompts):
        check(driver.reports, handle, prompt)
        assert driver.tokens(handle) == greedy(prompt, 30, VOCAB)


def test_a_prompt_preempted_half_way_goes_on_telling_where_it_was() -> None:
    driver = short_pool(UNKNOWN_COST, 0, 11, 3)
    for handle in range(2):
        driver.turn(Decode(spec(handle, [handle, 5, 6], 16)))
    younger = list(range(30, 44))
    driver.finish(Decode(spec(9, younger, 3, sampling=ASKED)))
    [told_before] = [
        sum(
            len(token.logprobs)
            for earlier in driver.reports[: place + 1]
            for token in earlier.prompt_logprobs
        )
        for place, report in enumerate(driver.reports)
        if 9 in report.preempted
    ][:1]
    assert 0 < told_before < len(younger) - 1
    check(driver.reports, 9, younger)
    assert driver.tokens(9) == greedy(younger, 3, VOCAB)


def test_output_that_was_delivered_before_has_none() -> None:
    driver, prompt = Driver(token_budget=5), list(range(3, 15))
    outputs = greedy(prompt, 6, VOCAB)
    driver.finish(Decode(spec(1, prompt, 10, sampling=ASKED, outputs=outputs[:6])))
    check(driver.reports, 1, prompt)
    assert driver.tokens(1) == greedy(prompt, 10, VOCAB)[6:]


def test_the_source_of_a_handoff_tells_and_the_target_does_not() -> None:
    source, target, prompt = Driver(token_budget=5), Driver(token_budget=5), list(range(3, 25))
    request = spec(1, prompt, 8, sampling=ASKED)
    source.finish(Prefill(request))
    check(source.reports, 1, prompt)
    target.finish(Receive(request))
    (columns,) = [report.tokens for report in source.reports if report.tokens.handles]
    first = TokenColumns(columns.handles, columns.choices, columns.indexes, columns.token_ids, [0])
    # Nothing could be verified: the target computes all of the prompt itself.
    target.finish(KVArrived(1, 0, first))
    source.finish(Release(1))
    assert target.tokens(1) == greedy(prompt, 8, VOCAB)
    assert told(target.reports, 1) == ([], [], [])


def test_damaged_logits_of_a_prompt_fail_it_and_nobody_else() -> None:
    driver = Driver(token_budget=4)
    driver.runner.poison = 77
    driver.finish(
        Decode(spec(1, [3, 4, 77, 5, 6, 7, 8], sampling=ASKED)),
        Decode(spec(2, [3, 4, 5, 6], sampling=ASKED)),
        Decode(spec(3, [3, 77, 5, 6])),
    )
    assert "not finite" in driver.failures()[1]
    assert list(driver.failures()) == [1]
    check(driver.reports, 2, [3, 4, 5, 6])
    assert len(driver.tokens(3)) == 8


def test_cancelling_in_the_middle_leaves_nothing_behind() -> None:
    driver = Driver(token_budget=3)
    driver.turn(Decode(spec(1, list(range(3, 40)), sampling=ASKED)))
    driver.turn()
    driver.finish(Cancel(1))
    assert 0 < len(told(driver.reports, 1)[0]) < 36
    driver.assert_at_rest()


def test_no_step_computes_more_rows_than_fit_in_memory() -> None:
    long = [3 + i % 90 for i in range(600)]
    driver = Driver(num_blocks=512, token_budget=2048, max_context=1024)
    driver.finish(
        Decode(spec(1, long, 2, sampling=ASKED)),
        Decode(spec(2, long[::-1], 2, sampling=ASKED)),
        Decode(spec(3, long, 2)),
    )
    for handle, prompt in ((1, long), (2, long[::-1])):
        check(driver.reports, handle, prompt)
    rows = [sum(len(token.logprobs) for token in report.prompt_logprobs) for report in driver.reports]
    assert max(rows) == MAX_PROMPT_ROWS
    assert [count for count in rows if count][:-1] == [MAX_PROMPT_ROWS] * 4


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.integers(1, 9)), max_size=5), st.integers(1, 9)
)
def test_chunks_are_cut_to_the_rows_and_some_work_is_left(
    asked: list[tuple[int, bool, int]], max_rows: int
) -> None:
    groups = []
    for handle, (length, wants, num_tokens) in enumerate(asked):
        sampling = ASKED if wants else SamplingParams()
        one = spec(handle, range(length + 9), sampling=sampling)
        rules = output_rules(one.stop, (), len(one.prompt_token_ids), 256)
        group = SequenceGroup(handle, one, Goal.DECODE, rules, (), 0.0)
        groups.append((group, num_tokens))
    kept = within_rows(groups, max_rows)
    rows = sum(len(group.prompt_rows(0, num_tokens)) for group, num_tokens in kept)
    assert rows <= max_rows
    planned = {id(group): num_tokens for group, num_tokens in groups}
    assert all(0 < num_tokens <= planned[id(group)] for group, num_tokens in kept)
    assert bool(kept) == bool(asked)
    unasked = [group for (group, _), (_, wants, _) in zip(groups, asked, strict=True) if not wants]
    assert all(any(entry is group for entry, _ in kept) for group in unasked)


# float64 leaves rounding alone, but for Gemma 2, whose stock attention rounds to float32. In float32 a logit
# of ten has steps of 1e-6, and a hidden state comes out of some hundred such roundings.
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("llama", torch.float64, 1e-9),
        ("qwen3", torch.float64, 1e-9),
        ("mixtral", torch.float64, 1e-9),
        ("gemma2", torch.float64, 1e-4),
        ("llama", torch.float32, 1e-3),
    ],
)
def test_they_equal_a_plain_forward_pass_of_stock_transformers(
    name: str, dtype: torch.dtype, tolerance: float, tmp_path: Path
) -> None:
    directory = build(name, tmp_path / "model")
    engine = Engine(load_model(directory, dtype, torch.device("cpu")), token_budget=7)
    requests = [asking(handle, prompt) for handle, prompt in enumerate(PROMPTS)]
    engine.finish(*(Decode(request) for request in requests))
    engine.finish(Decode(asking(9, PROMPTS[1])))  # its prompt is cached
    for handle, prompt in [*enumerate(PROMPTS), (9, PROMPTS[1])]:
        logits = load_stock(directory)(torch.tensor([prompt]), use_cache=False).logits[0].double()
        expected = torch.log_softmax(logits.detach(), dim=-1)[:-1]
        logprobs, top_token_ids, top_logprobs = told(engine.reports, handle)
        chosen = [expected[place, token].item() for place, token in enumerate(prompt[1:])]
        assert logprobs == pytest.approx(chosen, abs=tolerance)
        assert top_logprobs == pytest.approx(expected.topk(3).values.ravel().tolist(), abs=tolerance)
        if tolerance == 1e-9:
            assert top_token_ids == expected.topk(3).indices.ravel().tolist()


def asking(handle: int, prompt: Sequence[int]) -> SequenceSpec:
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=3)
    return spec(handle, prompt, sampling=sampling, stop=StopRules(4, ignore_eos=True))


def test_in_a_deterministic_model_no_bit_depends_on_how_steps_are_cut(tmp_path: Path) -> None:
    directory = build("llama", tmp_path / "model")
    model = load_model(directory, torch.float32, torch.device("cpu"), deterministic=True)
    answers = []
    for budget in (3, 16, 64):
        engine = Engine(model, token_budget=budget)
        engine.finish(*(Decode(asking(handle, prompt)) for handle, prompt in enumerate(PROMPTS)))
        answers.append([told(engine.reports, handle) for handle in range(len(PROMPTS))])
    assert answers[0] == answers[1] == answers[2]
