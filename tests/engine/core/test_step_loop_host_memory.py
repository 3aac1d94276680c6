"""Prefixes come back from host memory, alone or before a disk: the outputs are those without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.core.commands import BeginLoan, Cancel, Decode, Release
from engine.execution import step_loop
from scheduling.memory.block_hash import chain_root, hash_blocks
from tests.engine import tier_driver
from tests.engine.fake_runner import greedy
from tests.engine.loop_driver import VOCAB, spec
from tests.engine.tier_driver import PROMPT, TierDriver, evicting

pytestmark = pytest.mark.usefixtures("both_ways")


@pytest.fixture(autouse=True, params=[False, True], ids=["in place", "late"])
def both_places(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test with a pool in host memory, and with copies that end later, as those of a device do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tier_driver, "IS_LATE", request.param)
        yield


HASHES = tuple(hash_blocks(chain_root("model", b""), PROMPT, 4))


def test_a_prefix_that_left_the_pool_is_read_and_not_computed() -> None:
    driver = evicting(None, most_in_host=40)
    driver.runner.batches.clear()
    driver.finish_reads(Decode(spec(3, PROMPT, 6)))
    assert driver.tokens(3) == greedy(PROMPT, 6, VOCAB)
    assert driver.cached_tokens() == [20]
    assert driver.runner.batches[0] == (1, 2)
    driver.assert_at_rest()


@pytest.mark.parametrize("place", range(5))
def test_behind_a_damaged_block_the_prompt_is_computed(place: int) -> None:
    driver = evicting(None, most_in_host=40)
    driver.finish(Decode(spec(3, PROMPT, 6)))
    slot = driver.tiers._memory.find(HASHES[place])
    assert slot is not None
    driver.tiers._memory.data(slot)[3] ^= 1
    driver.finish(driver.end_read())
    assert driver.tokens(3) == greedy(PROMPT, 6, VOCAB)
    assert driver.cached_tokens() == [4 * place]
    driver.assert_at_rest()


def test_what_was_evicted_after_the_read_was_asked_for_is_computed() -> None:
    driver = evicting(None, most_in_host=10)
    driver.finish(Decode(spec(3, PROMPT, 6)))
    (reading,) = driver.readings()
    for number in range(10 - 2):
        driver.tiers.keep([reading.blocks[0]], [number.to_bytes(16, "little")])
    driver.finish(driver.end_read())
    assert driver.tokens(3) == greedy(PROMPT, 6, VOCAB)
    assert driver.cached_tokens()[0] < 20
    driver.assert_at_rest()


@pytest.mark.parametrize("num_read", [0, 2, 5])
def test_a_cancelled_read_keeps_its_blocks_until_it_ends(num_read: int) -> None:
    driver = evicting(None, most_in_host=40)
    driver.finish(Decode(spec(3, PROMPT, 6)))
    driver.finish(Cancel(3))
    assert driver.freed() == []
    driver.finish(driver.end_read(num_read))
    assert driver.freed() == [3]
    assert driver.tokens(3) == []
    driver.assert_at_rest()


def test_a_prefix_in_two_tiers_is_read_from_both(tmp_path: Path) -> None:
    driver = evicting(tmp_path, most_in_host=3)
    assert 0 < sum(block_hash in driver.tiers._memory for block_hash in HASHES) < len(HASHES)
    driver.finish_reads(Decode(spec(3, PROMPT, 6)))
    assert driver.tokens(3) == greedy(PROMPT, 6, VOCAB)
    assert driver.cached_tokens() == [20]
    driver.assert_at_rest()


def test_a_loan_is_served_from_host_memory() -> None:
    driver = TierDriver(None, num_blocks=32, most_in_host=100)
    driver.finish(Decode(spec(1, PROMPT, 2)))
    for number in range(4):
        driver.finish(Decode(spec(2 + number, [60 + number, *([70] * 60)], 2)))
    driver.reports.clear()
    driver.finish(BeginLoan(100, HASHES, 1.0))
    assert [reading.hashes for reading in driver.readings()] == [HASHES]
    driver.finish(driver.end_read())
    (filled,) = [filled for report in driver.reports for filled in report.filled]
    found = [driver.runner.pool[block, :, 0].tolist() for block in filled.blocks]
    assert found == [PROMPT[begin : begin + 4] for begin in range(0, 20, 4)]
    driver.finish(Release(100))
    driver.assert_at_rest()


def test_wrong_kv_is_not_found_again() -> None:
    driver = evicting(None, most_in_host=40)
    driver.runner.poison = PROMPT[-1]
    driver.finish_reads(Decode(spec(3, PROMPT, 6)))
    assert "INTERNAL" in driver.failures()[3]
    assert not any(block_hash in driver.tiers._memory for block_hash in HASHES)
    driver.runner.poison = None
    driver.reports.clear()
    driver.finish(Decode(spec(4, PROMPT, 6)))
    assert driver.tokens(4) == greedy(PROMPT, 6, VOCAB)
    driver.assert_at_rest()


def test_a_read_does_not_wait_for_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = evicting(None, most_in_host=40, num_blocks=16, overlaps=True)
    driver.turn(Decode(spec(4, [60] * 3, 8)))
    marks = {}

    def mark_steps(device: torch.device) -> object:
        mark = object()
        marks[mark] = driver.runner.num_steps
        return mark

    monkeypatch.setattr(step_loop, "mark_steps", mark_steps)
    num_steps = driver.runner.num_steps
    (report,) = driver.turn(Decode(spec(3, PROMPT, 6)))
    assert report.reads
    assert marks[report.received_behind] == num_steps
    assert driver.runner.num_steps == num_steps + 1, "other sequences ran on"
