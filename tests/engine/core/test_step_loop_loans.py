"""Prefixes come from another worker: tokens are right, nothing waits in vain, and lent blocks stay."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from engine.core.commands import BeginLoan, BlocksRead, Cancel, Command, Decode, Prefill, Release
from engine.core.report import Filled, Reading
from scheduling.cost_model import CostModel
from scheduling.memory.block_hash import chain_root, hash_blocks
from scheduling.request import PrefixSource
from tests.engine.fake_runner import greedy
from tests.engine.loop_driver import DEAR_TOKENS, VOCAB, Driver, spec
from tests.engine.tier_driver import TierDriver

pytestmark = pytest.mark.usefixtures("both_ways")

PROMPT = list(range(22))
OTHERS = [50 + n % 7 for n in range(40)]
HASHES = tuple(hash_blocks(chain_root("model", b""), PROMPT, 4))
SOURCE = PrefixSource("lender:1", "lender", len(HASHES))
FREE_TOKENS = CostModel((1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)


class FixedLinks:
    """Links on which every fetch takes the same time."""

    def __init__(self, fetch_s: float = 0.0) -> None:
        self.seconds = fetch_s

    def fetch_s(self, incarnation: str, num_blocks: int) -> float:
        assert incarnation == SOURCE.incarnation
        assert num_blocks > 0
        return self.seconds


class Lender(Driver):
    """A driver that has computed `PROMPT`, and lends."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.finish(Decode(spec(1, PROMPT, 2)))
        self._handles = itertools.count(100)

    def lend(self, hashes: tuple[bytes, ...] = HASHES, limit_s: float = 1.0) -> tuple[int, Filled | None]:
        """Return the handle of a loan, and its blocks if there are any."""
        handle, before = next(self._handles), len(self.reports)
        self.finish(BeginLoan(handle, hashes, limit_s))
        told = [filled for report in self.reports[before:] for filled in report.filled]
        return handle, told[0] if told else None


class Borrower(Driver):
    """A driver that fetches from a lender when a test says so."""

    def __init__(self, lender: Lender | None = None, *, links: FixedLinks | None = None, **more: Any) -> None:
        super().__init__(links=links or FixedLinks(), **more)
        self.lender = lender or Lender()
        self._num_ended = 0

    def readings(self) -> list[Reading]:
        """Return the reads that have not ended, in order."""
        return [reading for report in self.reports for reading in report.reads][self._num_ended :]

    def end_fetch(self, most: int = 1000, *, failed: bool | None = None) -> Command:
        """Fetch what the first of the waiting sequences asked for, or only the first blocks of it."""
        reading = self.readings()[0]
        self._num_ended += 1
        handle, filled = self.lender.lend(reading.hashes)
        pairs = [] if filled is None else list(zip(filled.blocks, reading.blocks, strict=False))[:most]
        for lent, block in pairs:
            self.runner.pool[block] = self.lender.runner.pool[lent]
        self.lender.finish(Release(handle))
        has_failed = len(pairs) < len(reading.blocks) if failed is None else failed
        return BlocksRead(reading.handle, len(pairs), failed=has_failed)


def asking(handle: int, prompt: list[int] = PROMPT, num_tokens: int = 6) -> Decode:
    return Decode(spec(handle, prompt, num_tokens, source=SOURCE))


# The borrower


def test_a_prefix_that_another_worker_has_is_fetched_and_not_computed() -> None:
    driver = Borrower()
    driver.finish(asking(1))
    (reading,) = driver.readings()
    assert (reading.source, reading.hashes) == (SOURCE, HASHES)
    driver.finish(driver.end_fetch())
    assert driver.tokens(1) == greedy(PROMPT, 6, VOCAB)
    assert driver.cached_tokens() == [20]
    assert driver.runner.batches[0] == (1, 2)
    driver.assert_at_rest()
    driver.lender.assert_at_rest()


def test_a_prompt_for_a_third_worker_offers_blocks_that_were_fetched() -> None:
    driver = Borrower()
    driver.finish(Prefill(spec(1, PROMPT, 6, source=SOURCE)))
    driver.finish(driver.end_fetch())
    offers = [filled for report in driver.reports for filled in report.filled]
    assert [(told.first_index, len(told.blocks), told.complete) for told in offers] == [
        (0, 5, False),
        (5, 1, True),
    ]
    driver.finish(Release(1))
    driver.assert_at_rest()


@pytest.mark.parametrize("num_fetched", range(6))
def test_what_did_not_come_is_computed(num_fetched: int) -> None:
    driver = Borrower()
    driver.finish(asking(1))
    driver.runner.pool[list(driver.readings()[0].blocks)] = 77
    driver.finish(driver.end_fetch(num_fetched))
    assert driver.tokens(1) == greedy(PROMPT, 6, VOCAB)
    assert driver.cached_tokens() == [4 * num_fetched]
    driver.assert_at_rest()


def test_only_what_the_pool_lacks_is_fetched() -> None:
    driver = Borrower()
    driver.finish(Decode(spec(1, PROMPT[:13], 1)))
    driver.finish(asking(2))
    assert driver.readings()[0].hashes == HASHES[3:]
    driver.finish(driver.end_fetch())
    assert driver.tokens(2) == greedy(PROMPT, 6, VOCAB)


def test_nothing_is_fetched_that_the_pool_has() -> None:
    driver = Borrower()
    driver.finish(Decode(spec(1, PROMPT, 1)))
    driver.finish(asking(2))
    assert not driver.readings()


@pytest.mark.parametrize(
    "more", [{"cost": FREE_TOKENS}, {"cost": DEAR_TOKENS, "links": FixedLinks(21.0)}], ids=["free", "slow"]
)
def test_what_is_faster_to_compute_is_not_fetched(more: dict[str, Any]) -> None:
    driver = Borrower(**more)
    driver.finish(asking(1))
    assert not driver.readings()
    assert driver.tokens(1) == greedy(PROMPT, 6, VOCAB)


def test_a_worker_without_links_computes() -> None:
    driver = Driver()
    driver.finish(asking(1))
    assert not any(report.reads for report in driver.reports)
    assert driver.tokens(1) == greedy(PROMPT, 6, VOCAB)


def test_sequences_that_begin_alike_fetch_once() -> None:
    driver = Borrower()
    driver.finish(asking(1), asking(2), asking(3, [*PROMPT[:17], 90, 91]))
    assert len(driver.readings()) == 1
    driver.finish(driver.end_fetch())
    assert not driver.readings()
    assert driver.tokens(2) == greedy(PROMPT, 6, VOCAB)
    assert driver.tokens(3) == greedy([*PROMPT[:17], 90, 91], 6, VOCAB)
    assert driver.cached_tokens() == [20, 20, 16]


def test_followers_of_a_fetch_that_failed_do_not_try_one_by_one() -> None:
    driver = Borrower()
    driver.finish(*(asking(handle) for handle in range(1, 5)))
    driver.finish(driver.end_fetch(2))
    assert not driver.readings()
    for handle in range(1, 5):
        assert driver.tokens(handle) == greedy(PROMPT, 6, VOCAB)
    driver.assert_at_rest()


def test_a_follower_of_a_cancelled_fetch_fetches_itself() -> None:
    driver = Borrower()
    driver.finish(asking(1), asking(2))
    driver.finish(Cancel(1))
    assert driver.freed() == [], "a copy may still write to its blocks"
    driver.finish(driver.end_fetch(0, failed=False))
    assert driver.readings()[0].handle == 2
    driver.finish(driver.end_fetch())
    assert driver.tokens(2) == greedy(PROMPT, 6, VOCAB)
    assert driver.tokens(1) == []
    driver.assert_at_rest()


# The lender


def held(lender: Lender, filled: Filled | None) -> list[list[int]]:
    """Return the tokens in each block of a loan."""
    assert filled is not None
    return [lender.runner.pool[block, :, 0].tolist() for block in filled.blocks]


def test_lent_blocks_stay_while_others_take_the_pool() -> None:
    lender = Lender(num_blocks=24)
    handle, filled = lender.lend()
    assert held(lender, filled) == [PROMPT[begin : begin + 4] for begin in range(0, 20, 4)]
    for number in range(3):
        lender.finish(Decode(spec(10 + number, [60 + number, *OTHERS], 4)))
        assert lender.tokens(10 + number) == greedy([60 + number, *OTHERS], 4, VOCAB)
    assert held(lender, filled) == [PROMPT[begin : begin + 4] for begin in range(0, 20, 4)]
    lender.finish(Release(handle))
    assert lender.freed()[-1] == handle
    lender.assert_at_rest()


def test_a_loan_begins_anywhere_and_ends_where_the_cache_does() -> None:
    lender = Lender()
    handle, filled = lender.lend((*HASHES[2:], b"?" * 16))
    assert filled is not None
    assert filled.hashes == HASHES[2:]
    lender.finish(Release(handle))
    lender.assert_at_rest()


def test_what_is_not_there_is_refused() -> None:
    lender = Lender()
    handle, filled = lender.lend((b"?" * 16,))
    assert filled is None
    assert lender.failures()[handle] == "NO_BLOCKS: its blocks are not there to lend"
    assert lender.freed()[-1] == handle
    lender.assert_at_rest()


def test_no_more_than_a_quarter_of_the_pool_is_on_loan() -> None:
    lender = Lender(num_blocks=28)
    first, filled = lender.lend()
    second, rest = lender.lend()
    assert filled is not None
    assert rest is not None
    assert (len(filled.blocks), len(rest.blocks)) == (5, 2)
    _, nothing = lender.lend()
    assert nothing is None
    lender.finish(Release(first), Release(second))
    _, again = lender.lend()
    assert again is not None
    assert len(again.blocks) == 5


def test_a_loan_takes_no_block_that_a_sequence_was_promised() -> None:
    lender = Lender(num_blocks=8)
    prompt = [70 + n for n in range(20)]
    lender.turn(Decode(spec(2, prompt, 9)))
    handle, _ = lender.lend()
    lender.finish(Release(handle))
    assert lender.tokens(2) == greedy(prompt, 9, VOCAB)
    lender.assert_at_rest()


def test_a_sequence_that_needs_the_whole_pool_goes_on_when_loans_end() -> None:
    lender = Lender(num_blocks=8)
    prompt = [70 + n for n in range(20)]
    handle, filled = lender.lend()
    assert filled is not None
    lender.turn(Decode(spec(2, prompt, 9)))
    for _ in range(30):
        lender.turn()
    assert held(lender, filled) == [PROMPT[begin : begin + 4] for begin in range(0, 8, 4)]
    lender.finish(Release(handle))
    assert lender.tokens(2) == greedy(prompt, 9, VOCAB)
    lender.assert_at_rest()


# With a disk


def evicted(folder: Path, **more: Any) -> TierDriver:
    """Return a driver whose pool has lost the blocks of `PROMPT` to its disk."""
    driver = TierDriver(folder, num_blocks=32, **more)
    driver.finish(Decode(spec(1, PROMPT, 2)))
    for number in range(4):
        driver.finish(Decode(spec(2 + number, [60 + number, *OTHERS], 2)))
    driver.settle()
    driver.reports.clear()
    return driver


def test_what_left_the_pool_is_read_before_it_is_lent(tmp_path: Path) -> None:
    driver = evicted(tmp_path)
    driver.finish(BeginLoan(100, HASHES, 1.0))
    (reading,) = driver.readings()
    assert (reading.hashes, reading.source) == (HASHES, None)
    driver.finish(driver.end_read())
    (filled,) = [filled for report in driver.reports for filled in report.filled]
    assert filled.hashes == HASHES
    found = [driver.runner.pool[block, :, 0].tolist() for block in filled.blocks]
    assert found == [PROMPT[begin : begin + 4] for begin in range(0, 20, 4)]
    driver.finish(Release(100))
    driver.assert_at_rest()


def test_a_pool_with_little_room_lends_less(tmp_path: Path) -> None:
    """A sequence has taken all but three blocks, as one that waits for the same prompt's KV does."""
    driver = evicted(tmp_path)
    driver.turn(Decode(spec(50, [90] * 113, 2)))
    driver.turn(BeginLoan(100, HASHES, 1.0))
    driver.finish()
    (reading,) = driver.readings()
    assert reading.hashes == HASHES[:3]
    driver.finish(driver.end_read(), Release(100))
    assert driver.tokens(50) == greedy([90] * 113, 2, VOCAB)
    driver.assert_at_rest()


@pytest.mark.parametrize("num_read", range(4))
def test_what_the_disk_failed_to_bring_is_not_lent(tmp_path: Path, num_read: int) -> None:
    driver = evicted(tmp_path)
    driver.finish(BeginLoan(100, HASHES, 1.0))
    driver.finish(driver.end_read(num_read))
    lent = [filled.hashes for report in driver.reports for filled in report.filled]
    assert lent == ([HASHES[:num_read]] if num_read else [])
    assert (100 in driver.failures()) == (num_read == 0)
    driver.finish(Release(100))
    driver.assert_at_rest()


def test_a_loan_that_is_given_up_keeps_its_blocks_until_its_read_ends(tmp_path: Path) -> None:
    driver = evicted(tmp_path)
    driver.finish(BeginLoan(100, HASHES, 1.0))
    driver.finish(Release(100))
    assert driver.freed() == []
    driver.finish(driver.end_read())
    assert driver.freed() == [100]
    driver.assert_at_rest()


def test_a_disk_that_is_too_slow_for_the_borrower_is_not_read(tmp_path: Path) -> None:
    driver = evicted(tmp_path)
    driver.finish(BeginLoan(100, HASHES, driver.tiers.readable(HASHES)[-1].read_s))
    assert not driver.readings()
    assert 100 in driver.failures()


@pytest.mark.parametrize(("fetch_s", "fetches"), [(0.0, True), (1.0, False)])
def test_the_faster_of_disk_and_worker_is_read(tmp_path: Path, fetch_s: float, fetches: bool) -> None:
    driver = evicted(tmp_path, links=FixedLinks(fetch_s), cost=DEAR_TOKENS)
    driver.finish(asking(50))
    (reading,) = driver.readings()
    assert (reading.source == SOURCE) is fetches
