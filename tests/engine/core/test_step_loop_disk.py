"""Prefixes come back from a disk: the outputs are those without it, and no sequence waits for it in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.commands import BlocksRead, Cancel, Decode, HandBack, Prefill, Release
from scheduling.cost_model import CostModel
from scheduling.memory.block_hash import chain_root, hash_blocks
from tests.engine.fake_runner import greedy
from tests.engine.loop_driver import VOCAB, spec
from tests.engine.tier_driver import PROMPT, TierDriver, evicting

pytestmark = pytest.mark.usefixtures("both_ways")

FREE_TOKENS = CostModel((1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)


def test_a_prefix_that_left_the_pool_is_read_and_not_computed(tmp_path: Path) -> None:
    driver = evicting(tmp_path)
    driver.runner.batches.clear()
    driver.finish_reads(Decode(spec(3, PROMPT, 6)))
    assert driver.tokens(3) == greedy(PROMPT, 6, VOCAB)
    assert driver.cached_tokens() == [20]
    assert driver.runner.batches[0] == (1, 2)
    driver.assert_at_rest()


def test_a_prefix_outlives_the_worker(tmp_path: Path) -> None:
    before = TierDriver(tmp_path)
    before.finish(Decode(spec(1, PROMPT, 2)))
    before.close()
    driver = TierDriver(tmp_path)
    driver.finish_reads(Decode(spec(1, [*PROMPT, 3, 4], 6)))
    assert driver.tokens(1) == greedy([*PROMPT, 3, 4], 6, VOCAB)
    assert driver.cached_tokens() == [20]


def test_a_prompt_for_another_worker_offers_blocks_that_were_read(tmp_path: Path) -> None:
    driver = evicting(tmp_path)
    driver.finish_reads(Prefill(spec(3, PROMPT, 6)))
    offers = [filled for report in driver.reports for filled in report.filled]
    assert [(told.first_index, len(told.blocks), told.complete) for told in offers] == [
        (0, 5, False),
        (5, 1, True),
    ]
    assert driver.tokens(3) == greedy(PROMPT, 1, VOCAB)
    assert driver.cached_tokens() == [20]
    driver.finish(Release(3))
    driver.assert_at_rest()


def test_the_pools_own_blocks_come_first(tmp_path: Path) -> None:
    driver = evicting(tmp_path)
    driver.finish_reads(Decode(spec(3, PROMPT[:9], 1)))
    driver.reports.clear()
    driver._num_ended = 0
    driver.finish(Decode(spec(4, PROMPT, 6)))
    (reading,) = driver.readings()
    assert reading.hashes == tuple(hash_blocks(chain_root("model", b""), PROMPT, 4)[2:5])
    driver.finish(driver.end_read())
    assert driver.tokens(4) == greedy(PROMPT, 6, VOCAB)


@pytest.mark.parametrize("num_read", range(6))
def test_what_was_not_read_is_computed(tmp_path: Path, num_read: int) -> None:
    driver = evicting(tmp_path)
    driver.finish(Decode(spec(3, PROMPT, 6)))
    driver.runner.pool[list(driver.readings()[0].blocks)] = 77
    driver.finish(driver.end_read(num_read))
    assert driver.tokens(3) == greedy(PROMPT, 6, VOCAB)
    assert driver.cached_tokens() == [4 * num_read]
    driver.assert_at_rest()


def test_others_run_while_a_read_runs(tmp_path: Path) -> None:
    driver = evicting(tmp_path)
    driver.finish(Decode(spec(3, PROMPT, 6)), Decode(spec(4, [9], 6)))
    assert driver.tokens(4) == greedy([9], 6, VOCAB)
    assert driver.tokens(3) == []
    load = driver.reports[-1].load
    assert (load.waiting, load.pending_prefill_tokens) == (1, 22)
    driver.finish(driver.end_read())
    assert driver.tokens(3) == greedy(PROMPT, 6, VOCAB)


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_cancelled_read_keeps_its_blocks_until_it_ends(tmp_path: Path, is_whole: bool) -> None:
    driver = evicting(tmp_path)
    driver.finish(Decode(spec(3, PROMPT, 6)))
    driver.finish(Cancel(3))
    driver.finish(Cancel(3))
    assert driver.freed() == []
    driver.finish(Decode(spec(4, [1] * 30, 12)))
    assert driver.tokens(4) == [], "there is no room for it"
    driver.finish(driver.end_read(5 if is_whole else 2))
    assert driver.freed() == [3, 4]
    assert driver.tokens(4) == greedy([1] * 30, 12, VOCAB)
    assert driver.tokens(3) == []
    driver.assert_at_rest()


def test_a_released_read_keeps_its_blocks_until_it_ends(tmp_path: Path) -> None:
    """The handoff of a prompt is given up while its beginning is read."""
    driver = evicting(tmp_path)
    driver.finish(Prefill(spec(3, PROMPT, 6)))
    driver.finish(Release(3))
    assert driver.freed() == []
    driver.finish(driver.end_read())
    assert driver.freed() == [3]
    driver.assert_at_rest()


def beginning_alike(driver: TierDriver) -> list[list[int]]:
    """Let sequences begin alike at one moment; return their prompts."""
    prompts = [PROMPT, [*PROMPT[:17], 90, 91], PROMPT]
    driver.finish(*(Decode(spec(3 + place, prompt, 2)) for place, prompt in enumerate(prompts)))
    return prompts


def test_sequences_that_begin_alike_read_once(tmp_path: Path) -> None:
    driver = evicting(tmp_path, num_blocks=24)
    prompts = beginning_alike(driver)
    assert len(driver.readings()) == 1
    driver.finish(driver.end_read())
    assert not driver.readings()
    for place, prompt in enumerate(prompts):
        assert driver.tokens(3 + place) == greedy(prompt, 2, VOCAB)
    assert driver.cached_tokens() == [20, 16, 20]
    driver.assert_at_rest()


def test_followers_of_a_cancelled_read_look_again(tmp_path: Path) -> None:
    driver = evicting(tmp_path, num_blocks=24)
    prompts = beginning_alike(driver)
    driver.finish(Cancel(3))
    driver.finish(driver.end_read(1))
    (reading,) = driver.readings()
    assert reading.handle == 4
    driver.finish_reads()
    for place, prompt in enumerate(prompts[1:], 1):
        assert driver.tokens(3 + place) == greedy(prompt, 2, VOCAB)
    driver.assert_at_rest()


def test_a_cancelled_follower_of_a_read_ends_at_once(tmp_path: Path) -> None:
    driver = evicting(tmp_path, num_blocks=24)
    beginning_alike(driver)
    driver.finish(Cancel(4))
    assert driver.freed() == [4]
    driver.finish_reads()
    assert driver.tokens(4) == []
    assert driver.tokens(5) == greedy(PROMPT, 2, VOCAB)
    driver.assert_at_rest()


def test_after_a_read_of_others_each_reads_what_only_it_needs(tmp_path: Path) -> None:
    first, second = [[*range(8), *[word] * 9] for word in (80, 81)]
    before = TierDriver(tmp_path)
    before.finish(Decode(spec(1, first, 2)))
    before.finish(Decode(spec(2, second, 2)))
    before.close()
    driver = TierDriver(tmp_path)
    driver.finish(Decode(spec(3, first, 2)), Decode(spec(4, second, 2)))
    assert [len(reading.hashes) for reading in driver.readings()] == [4]
    driver.finish(driver.end_read())
    assert [(reading.handle, len(reading.hashes)) for reading in driver.readings()] == [(4, 2)]
    driver.finish_reads()
    assert driver.cached_tokens() == [16, 16]
    assert driver.tokens(4) == greedy(second, 2, VOCAB)
    driver.assert_at_rest()


def test_a_sequence_that_goes_on_here_reads_its_output_too(tmp_path: Path) -> None:
    """Delivered tokens are part of its context, as after the death of another worker, or of this one."""
    outputs = greedy(PROMPT, 10, VOCAB)
    before = TierDriver(tmp_path)
    before.finish(Decode(spec(1, PROMPT, 10)))
    before.close()
    driver = TierDriver(tmp_path)
    driver.finish_reads(Decode(spec(2, PROMPT, 14, outputs=outputs[:8])))
    assert driver.cached_tokens() == [28]
    assert driver.tokens(2) == greedy(PROMPT, 14, VOCAB)[8:]


def test_a_sequence_that_was_preempted_reads_what_has_left_the_pool(tmp_path: Path) -> None:
    driver = TierDriver(tmp_path, num_blocks=13, num_swap_blocks=0, max_num_seqs=4)
    driver.finish(*(Decode(spec(100 + n, [60 + n], 1)) for n in range(9)))  # outputs have been short so far
    prompts = {1: PROMPT, 2: [50 + n % 7 for n in range(18)]}
    driver.turn(*(Decode(spec(handle, prompt, 14)) for handle, prompt in prompts.items()))
    for _ in range(40):
        driver.settle()
        if driver.readings():
            break
        driver.turn()
    assert any(report.preempted for report in driver.reports)
    (reading,) = driver.readings()
    driver.finish_reads()
    assert any(reading.handle in report.resumed for report in driver.reports)
    for handle, prompt in prompts.items():
        assert driver.tokens(handle) == greedy(prompt, 14, VOCAB)
    driver.assert_at_rest()


def test_a_sequence_that_reads_is_not_handed_back(tmp_path: Path) -> None:
    driver = evicting(tmp_path)
    driver.finish(Decode(spec(3, PROMPT, 6)))
    driver.finish_reads(HandBack())
    assert not driver.failures()
    assert driver.tokens(3) == greedy(PROMPT, 6, VOCAB)


def test_tokens_that_cost_nothing_are_computed(tmp_path: Path) -> None:
    driver = evicting(tmp_path, cost=FREE_TOKENS)
    driver.finish(Decode(spec(3, PROMPT, 6)))
    assert not driver.readings()
    assert driver.tokens(3) == greedy(PROMPT, 6, VOCAB)


def test_other_tenants_find_nothing(tmp_path: Path) -> None:
    driver = evicting(tmp_path)
    driver.finish(Decode(spec(3, PROMPT, 6, salt=b"another")))
    assert not driver.readings()


def test_wrong_kv_is_not_found_on_the_disk_again(tmp_path: Path) -> None:
    driver = evicting(tmp_path)
    driver.runner.poison = PROMPT[-1]
    driver.finish_reads(Decode(spec(3, PROMPT, 6)))
    assert "INTERNAL" in driver.failures()[3]
    driver.runner.poison = None
    driver.settle()
    driver.finish(Decode(spec(4, PROMPT, 6)))
    assert not driver.readings()[:1] or driver.readings()[0].handle != 4
    assert driver.tokens(4) == greedy(PROMPT, 6, VOCAB)


def test_without_a_cached_prefix_nothing_is_asked_for(tmp_path: Path) -> None:
    driver = TierDriver(tmp_path)
    driver.finish(Decode(spec(1, PROMPT, 6)))
    assert not driver.readings()
    driver.finish(BlocksRead(99, 0))
    driver.assert_at_rest()
