"""The step loop on a model whose tokens show every mistake in the books."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.core.commands import Command, Decode
from engine.core.memory.block_manager import BlockManager
from scheduling.memory.block_hash import chain_root, hash_blocks
from scheduling.request import FinishReason, SamplingParams, StopRules
from tests.engine.fake_runner import greedy, logits_after
from tests.engine.loop_driver import GREEDY, RESERVING, VOCAB, Driver, spec
from tests.growth import MOST_GROWTH, growth

pytestmark = pytest.mark.usefixtures("both_ways")

PROMPTS = [[5], [1, 2, 3, 4], list(range(17)), [7] * 33, [9, 8, 7, 6, 5, 4, 3]]


@pytest.mark.parametrize("budget", [1, 7, 64])
def test_ragged_concurrent_sequences_equal_each_running_alone(budget: int) -> None:
    driver = Driver(token_budget=budget)
    driver.finish(*(Decode(spec(handle, prompt, 9 + handle)) for handle, prompt in enumerate(PROMPTS)))
    for handle, prompt in enumerate(PROMPTS):
        assert driver.tokens(handle) == greedy(prompt, 9 + handle, VOCAB)
        assert driver.rows(handle)[-1][2] == FinishReason.LENGTH
    assert sorted(driver.freed()) == list(range(len(PROMPTS)))
    driver.assert_at_rest()


def test_decodes_come_first_and_chunks_fill_the_budget() -> None:
    driver = Driver(token_budget=8)
    driver.turn(Decode(spec(1, [1, 2, 3], 20)))
    driver.turn(Decode(spec(2, list(range(9)), 3)), Decode(spec(3, list(range(20, 25)), 3)))
    # One decode; seven tokens of the first prompt.
    assert driver.runner.batches[-1] == (2, 8)
    driver.turn()
    # One decode; two tokens of the first prompt and all five of the second.
    assert driver.runner.batches[-1] == (3, 8)


def test_sequences_join_and_leave_between_steps() -> None:
    driver = Driver()
    driver.turn(Decode(spec(0, PROMPTS[0], 12)))
    for handle in range(1, 5):
        driver.turn(Decode(spec(handle, PROMPTS[handle], 3 * handle)))
    driver.finish()
    assert driver.tokens(0) == greedy(PROMPTS[0], 12, VOCAB)
    for handle in range(1, 5):
        assert driver.tokens(handle) == greedy(PROMPTS[handle], 3 * handle, VOCAB)
    driver.assert_at_rest()


def test_more_sequences_than_rows_wait_for_their_turn() -> None:
    driver = Driver(max_num_seqs=2, overlaps=False)
    driver.turn(*(Decode(spec(handle, [handle, 1], 5)) for handle in range(5)))
    assert driver.reports[-1].load.running + driver.reports[-1].load.waiting == 5
    driver.finish()
    assert max(sequences for sequences, _ in driver.runner.batches) == 2
    assert all(driver.tokens(handle) == greedy([handle, 1], 5, VOCAB) for handle in range(5))


@pytest.mark.parametrize("prompt_tokens", [1, 4, 6, 8])
def test_choices_share_the_prompt_and_go_on_apart(prompt_tokens: int) -> None:
    sampling = SamplingParams(temperature=1.0, seed=11, n=3)
    prompt = list(range(prompt_tokens))
    together, apart = Driver(token_budget=5), Driver()
    together.finish(Decode(spec(1, prompt, 10, sampling=sampling, choices=(0, 1, 2))))
    # A choice alone draws the same noise, so this tells whether shared and copied blocks were right.
    for choice in range(3):
        apart.finish(Decode(spec(choice, prompt, 10, sampling=sampling, choices=(choice,))))
        assert together.tokens(1, choice) == apart.tokens(choice, choice)
    outputs = {tuple(together.tokens(1, choice)) for choice in range(3)}
    assert len(outputs) == 3
    assert together.freed() == [1]
    together.assert_at_rest()


def test_choices_reserve_the_longest_output_the_policy_promises() -> None:
    driver = Driver(num_blocks=64, policy=RESERVING, overlaps=False)
    driver.turn(Decode(spec(1, list(range(10)), 7, choices=(0, 1))))
    # 16 tokens each, of which two full blocks of the prompt are shared: 2 + 2 * 2.
    assert driver.reports[-1].load.free_blocks == 64 - 6


def test_a_cached_prefix_is_not_computed_again() -> None:
    driver = Driver()
    prompt = list(range(22))
    driver.finish(Decode(spec(1, prompt, 6)))
    driver.runner.batches.clear()
    driver.finish(Decode(spec(2, [*prompt, 50, 51], 6)))
    assert driver.runner.batches[0] == (1, 4)  # five of the six blocks' tokens were there
    assert driver.cached_tokens() == [0, 20]
    assert driver.tokens(2) == greedy([*prompt, 50, 51], 6, VOCAB)


@pytest.mark.parametrize(("prompt_tokens", "num_cached"), [(2, 12), (4, 12), (5, 16), (11, 20), (12, 20)])
def test_outputs_are_cached_as_far_as_their_kv_was_written(prompt_tokens: int, num_cached: int) -> None:
    driver = Driver()
    prompt = list(range(prompt_tokens))
    driver.finish(Decode(spec(1, prompt, 12)))
    # The last token of an output is never fed to the model: a block that it fills is not full.
    conversation = [*prompt, *driver.tokens(1)]
    told = {block_hash for report in driver.reports for block_hash in report.cached_hashes}
    assert told == set(hash_blocks(chain_root("model", b""), conversation[:-1], 4))
    driver.finish(Decode(spec(2, [*conversation, 3, 3], 4)))
    assert driver.cached_tokens() == [0, num_cached]
    assert driver.tokens(2) == greedy([*conversation, 3, 3], 4, VOCAB)


def test_rows_keep_their_sampling_when_others_leave() -> None:
    wishes = [
        SamplingParams(
            temperature=0.5 + handle / 4, seed=handle, frequency_penalty=handle % 3, top_k=3 * handle
        )
        for handle in range(6)
    ]
    together, alone = Driver(), Driver()
    specs = [spec(h, [h], 15 - 2 * h if h % 2 else 4 + h, sampling=wish) for h, wish in enumerate(wishes)]
    together.finish(*map(Decode, specs))
    for sequence in specs:
        alone.finish(Decode(sequence))
        assert together.tokens(sequence.handle) == alone.tokens(sequence.handle)
    together.assert_at_rest()


def test_a_fully_cached_prompt_still_computes_its_last_block() -> None:
    driver = Driver()
    prompt = list(range(12))
    driver.finish(Decode(spec(1, prompt, 5)))
    driver.finish(Decode(spec(2, prompt, 5)))
    assert driver.cached_tokens() == [0, 8]
    assert driver.tokens(2) == driver.tokens(1)


def test_prompts_with_another_salt_share_nothing() -> None:
    driver = Driver()
    driver.finish(Decode(spec(1, list(range(12)), 5)))
    driver.finish(Decode(spec(2, list(range(12)), 5, salt=b"tenant")))
    assert driver.cached_tokens() == [0, 0]


def test_a_waiting_prompt_takes_what_a_neighbour_computed_meanwhile() -> None:
    driver = Driver(token_budget=20, overlaps=False)
    prompt = list(range(40))
    driver.finish(Decode(spec(1, prompt, 3)), Decode(spec(2, prompt, 3)))
    assert driver.cached_tokens() == [0, 36]
    assert driver.tokens(2) == greedy(prompt, 3, VOCAB)
    driver.assert_at_rest()


def test_a_begun_block_is_finished_before_the_next_cache_lookup() -> None:
    driver = Driver(token_budget=18)
    prompt = list(range(16))
    # The first prompt is cached while the second has computed half of its first block.
    driver.finish(Decode(spec(1, prompt, 3)), Decode(spec(2, prompt, 3)))
    assert driver.tokens(2) == driver.tokens(1) == greedy(prompt, 3, VOCAB)
    assert driver.cached_tokens() == [0, 0]


def test_cached_and_evicted_blocks_are_reported() -> None:
    driver = Driver(num_blocks=6)
    driver.finish(Decode(spec(1, list(range(12)), 1)))
    first = {block_hash for report in driver.reports for block_hash in report.cached_hashes}
    assert len(first) == 3
    driver.finish(Decode(spec(2, list(range(50, 72)), 1)))
    evicted = {block_hash for report in driver.reports for block_hash in report.evicted_hashes}
    assert evicted == first
    driver.assert_at_rest()


def test_delivered_output_counts_as_output_after_a_resume() -> None:
    whole, resumed = Driver(), Driver()
    sampling = SamplingParams(
        temperature=0.8, seed=5, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.7
    )
    stop = StopRules(max_tokens=20, min_tokens=18)
    whole.finish(Decode(spec(1, [1, 2, 3], sampling=sampling, stop=stop)))
    delivered = whole.tokens(1)[:9]
    resumed.finish(Decode(spec(1, [1, 2, 3], sampling=sampling, stop=stop, outputs=delivered)))
    assert resumed.tokens(1) == whole.tokens(1)[9:]
    assert resumed.rows(1)[0][0] == 9
    assert resumed.rows(1)[-1][2] == FinishReason.LENGTH
    resumed.assert_at_rest()


def test_end_of_sequence_and_stop_tokens_end_a_choice_unless_ignored() -> None:
    tokens = greedy([3, 1], 12, VOCAB)
    end = tokens.index(tokens[6])  # its first occurrence
    for eos, stop, reason, length in (
        ((tokens[6],), StopRules(max_tokens=12), FinishReason.EOS, end + 1),
        ((), StopRules(max_tokens=12, stop_token_ids=(tokens[6],)), FinishReason.STOP, end + 1),
        ((tokens[6],), StopRules(max_tokens=12, ignore_eos=True), FinishReason.LENGTH, 12),
    ):
        driver = Driver(eos=eos)
        driver.finish(Decode(spec(1, [3, 1], stop=stop)))
        assert driver.tokens(1) == tokens[:length]
        assert driver.rows(1)[-1][2] == reason
        driver.assert_at_rest()


def test_no_end_token_is_drawn_before_min_tokens() -> None:
    tokens = greedy([3, 1], 12, VOCAB)
    driver = Driver(eos=(tokens[2],))
    driver.finish(Decode(spec(1, [3, 1], stop=StopRules(max_tokens=12, min_tokens=9))))
    assert tokens[2] not in driver.tokens(1)[:9]
    assert len(driver.tokens(1)) >= 9


def test_the_context_limit_ends_a_choice() -> None:
    driver = Driver(max_context=16)
    driver.finish(Decode(spec(1, list(range(10)), 50)))
    assert driver.tokens(1) == greedy(list(range(10)), 6, VOCAB)
    assert driver.rows(1)[-1][2] == FinishReason.LENGTH
    driver.assert_at_rest()


def test_logprobs_are_those_of_the_raw_logits_whoever_else_runs() -> None:
    sampling = SamplingParams(temperature=0.5, seed=3, frequency_penalty=1.0, logprobs=2)
    driver = Driver()
    driver.finish(
        Decode(spec(1, [1], 4)),
        Decode(spec(2, [2, 3], 4, sampling=sampling)),
        Decode(spec(3, [3], 4, sampling=SamplingParams(temperature=0.0, logprobs=0))),
    )
    history = [2, 3]
    seen = 0
    for report in driver.reports:
        columns = report.tokens
        top = 0
        for place, row in enumerate(columns.logprob_rows):
            begin, top = top, top + columns.top_counts[place]
            if columns.handles[row] == 3:
                assert columns.top_counts[place] == 0
                continue
            assert columns.handles[row] == 2
            logits = logits_after(history, VOCAB)
            logprobs = logits - _log_sum_exp(logits)
            token = columns.token_ids[row]
            assert columns.logprobs[place] == pytest.approx(logprobs[token])
            best = sorted(range(VOCAB), key=lambda token: -logits[token])[:2]
            assert list(columns.top_token_ids[begin:top]) == best
            assert columns.top_logprobs[begin:top] == pytest.approx([logprobs[token] for token in best])
            history.append(token)
            seen += 1
    assert seen == 4


def _log_sum_exp(logits: NDArray[np.float64]) -> float:
    return float(np.log(np.exp(logits).sum()))


def test_the_load_says_what_there_is() -> None:
    driver = Driver(token_budget=10, overlaps=False)
    driver.turn(Decode(spec(1, [1, 2, 3], 20, sampling=GREEDY)), Decode(spec(2, list(range(30)), 4)))
    load = driver.reports[-1].load
    assert (load.step, load.running, load.waiting) == (1, 1, 1)
    assert load.pending_prefill_tokens == 23
    assert load.context_tokens == 4
    # 3 tokens need 1 block, 30 need 8; what the outputs will need is not promised to them.
    assert load.free_blocks == 64 - 9
    assert driver.reports[-1].step_seconds > 0


def test_a_loop_goes_idle_at_the_same_cost_with_a_pool_of_any_size() -> None:
    def prepare(num_blocks: int) -> Callable[[], object]:
        driver = Driver(num_blocks=num_blocks)
        fill_cache(driver.blocks)
        waits: list[float] = []

        def drain(timeout_s: float) -> list[Command]:
            waits.append(timeout_s)
            return []

        return lambda: driver.loop.run(drain, lambda _: None, lambda: math.inf in waits)

    assert growth(prepare) < MOST_GROWTH


def test_a_turn_costs_the_same_with_a_pool_of_any_size() -> None:
    def prepare(num_blocks: int) -> Callable[[], object]:
        driver = Driver(num_blocks=num_blocks)
        fill_cache(driver.blocks)

        def turns() -> None:
            driver.loop.turn([Decode(spec(1, [1, 2, 3], 40))], lambda _: None)
            for _ in range(50):
                driver.loop.turn([], lambda _: None)

        return turns

    assert growth(prepare) < MOST_GROWTH


def fill_cache(blocks: BlockManager) -> None:
    blocks.reserve(blocks.num_blocks)
    table = blocks.allocate(blocks.num_blocks)
    for block in table:
        blocks.register(block, block.to_bytes(16))
    blocks.free(table)
    blocks.take_cache_events()
