"""Blocks leave a small pool for other tiers, come back or are lent, in any order: right tokens, none lost.

Blocks in host memory are damaged now and then, and budgets are too small for most of what comes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.core.commands import BeginLoan, Cancel, Command, Decode, Prefill, Release
from scheduling.cost_model import CostModel
from scheduling.memory.block_hash import chain_root, hash_blocks
from scheduling.policies.chunked import CHUNKED
from scheduling.policies.policy import Policy
from scheduling.request import SequenceSpec
from tests.engine.fake_runner import greedy
from tests.engine.loop_driver import DEAR_TOKENS, RESERVING, UNKNOWN_COST, VOCAB, spec
from tests.engine.tier_driver import TierDriver

# Few tokens and few lengths, so that prefixes are shared all the time.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=22)
LENGTHS = st.integers(1, 12)
FIRST_LOAN = 10_000


class TierMachine(RuleBasedStateMachine):
    """One step loop in a pool that blocks leave all the time; reads end at any time, whole or not."""

    @initialize(
        num_blocks=st.sampled_from([9, 12, 16]),
        budgets=st.sampled_from([(3, 0), (40, 0), (None, 1), (None, 5), (None, 40), (3, 2), (40, 5)]),
        cost=st.sampled_from([UNKNOWN_COST, DEAR_TOKENS]),
        policy=st.sampled_from([CHUNKED, RESERVING]),
        budget=st.sampled_from([3, 16]),
        num_swap_blocks=st.sampled_from([0, 5]),
        overlaps=st.booleans(),
        is_late=st.booleans(),
    )
    def make(
        self,
        num_blocks: int,
        budgets: tuple[int | None, int],
        cost: CostModel,
        policy: Policy,
        budget: int,
        num_swap_blocks: int,
        overlaps: bool,
        is_late: bool,
    ) -> None:
        self.folder = tempfile.TemporaryDirectory()
        most, most_in_host = budgets
        self.driver = TierDriver(
            None if most is None else Path(self.folder.name),
            num_blocks=num_blocks,
            most=most or 1,
            most_in_host=most_in_host,
            cost=cost,
            policy=policy,
            token_budget=budget,
            num_swap_blocks=num_swap_blocks,
            max_num_seqs=4,
            overlaps=overlaps,
            is_late=is_late,
        )
        self.specs: dict[int, SequenceSpec] = {}
        self.prefills: set[int] = set()
        self.cancelled: set[int] = set()
        self.loans: dict[int, list[int]] = {}
        """The prompts whose blocks are lent, by handle."""
        self.num_loans = 0

    def _turn(self, *commands: Command) -> None:
        self.driver.turn(*commands)
        self.driver.settle()
        self._check_loans()

    def _check_loans(self) -> None:
        """Lent blocks hold what they should for as long as they are lent."""
        lent = {told.handle: told for report in self.driver.reports for told in report.filled}
        for handle, prompt in self.loans.items():
            blocks = lent[handle].blocks if handle in lent else ()
            for place, block in enumerate(blocks):
                expected = prompt[4 * place : 4 * place + 4]
                assert self.driver.runner.pool[block, :, 0].tolist() == expected

    @rule(prompt=PROMPTS, max_tokens=LENGTHS, num_choices=st.sampled_from([1, 1, 2]))
    def decode(self, prompt: list[int], max_tokens: int, num_choices: int) -> None:
        handle = len(self.specs)
        self.specs[handle] = spec(handle, prompt, max_tokens, choices=tuple(range(num_choices)))
        self._turn(Decode(self.specs[handle]))

    @rule(prompt=PROMPTS)
    def prefill(self, prompt: list[int]) -> None:
        handle = len(self.specs)
        self.specs[handle] = spec(handle, prompt, 1)
        self.prefills.add(handle)
        self._turn(Prefill(self.specs[handle]))

    @precondition(lambda self: self.prefills)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """At any time: a handoff may be given up before its prompt is computed, or read."""
        self._turn(Release(data.draw(st.sampled_from(sorted(self.prefills)))))

    @precondition(lambda self: self.driver.readings())
    @rule(num_blocks=st.sampled_from([0, 1, 2, 9, 9, 9]))
    def the_read_ends(self, num_blocks: int) -> None:
        self._turn(self.driver.end_read(num_blocks))

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.specs)))
        self.cancelled.add(handle)
        self._turn(Cancel(handle))

    @rule(prompt=PROMPTS)
    def lend(self, prompt: list[int]) -> None:
        hashes = tuple(hash_blocks(chain_root("model", b""), prompt, 4))
        if hashes:
            self.num_loans += 1
            self.loans[FIRST_LOAN + self.num_loans] = prompt
            self._turn(BeginLoan(FIRST_LOAN + self.num_loans, hashes, 1.0))

    @precondition(lambda self: self.loans)
    @rule(data=st.data())
    def end_loan(self, data: st.DataObject) -> None:
        """At any time: the borrower may leave while blocks are read."""
        handle = data.draw(st.sampled_from(sorted(self.loans)))
        del self.loans[handle]
        self._turn(Release(handle))

    @precondition(lambda self: self.driver.tiers._memory.num_kept)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """Flip a bit of a block in host memory."""
        memory = self.driver.tiers._memory
        slot = memory.find(data.draw(st.sampled_from(sorted(memory.newest_first()))))
        assert slot is not None
        content = memory.data(slot)
        content[data.draw(st.integers(0, len(content) - 1))] ^= 0x04

    @rule(turns=st.integers(1, 8))
    def go_on(self, turns: int) -> None:
        for _ in range(turns):
            self._turn()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        for _ in range(2 * len(self.specs) + 1):
            self.driver.finish_reads(*(Release(handle) for handle in (*self.prefills, *self.loans)))
        for handle, sequence in self.specs.items():
            expected = greedy(sequence.prompt_token_ids, sequence.stop.max_tokens, VOCAB)
            is_whole = handle not in self.cancelled | self.prefills
            if "NO_BLOCKS" in self.driver.failures().get(handle, ""):
                continue
            for choice in sequence.choices:
                tokens = self.driver.tokens(handle, choice)
                assert tokens == (expected if is_whole else expected[: len(tokens)])
        loans = range(FIRST_LOAN + 1, FIRST_LOAN + 1 + self.num_loans)
        assert sorted(self.driver.freed()) == [*sorted(self.specs), *loans]
        if self.specs:
            self.driver.assert_at_rest()
        self.driver.close()
        self.folder.cleanup()


TierMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTiers = TierMachine.TestCase
