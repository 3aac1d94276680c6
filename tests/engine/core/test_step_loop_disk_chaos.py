"""Blocks leave a small pool for a disk and come back all the time, in any order: right tokens, none lost."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.core.commands import Cancel, Command, Decode, Prefill, Release
from scheduling.cost.cost_model import CostModel
from scheduling.policies.chunked import CHUNKED
from scheduling.policies.policy import Policy
from scheduling.request import SequenceSpec
from tests.engine.disk_driver import DiskDriver
from tests.engine.fake_runner import greedy
from tests.engine.loop_driver import DEAR_TOKENS, RESERVING, UNKNOWN_COST, VOCAB, spec

# Few tokens and few lengths, so that prefixes are shared all the time.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=22)
LENGTHS = st.integers(1, 12)


class DiskMachine(RuleBasedStateMachine):
    """One step loop in a pool that blocks leave all the time; reads end at any time, whole or not."""

    @initialize(
        num_blocks=st.sampled_from([9, 12, 16]),
        most=st.sampled_from([3, 40]),
        cost=st.sampled_from([UNKNOWN_COST, DEAR_TOKENS]),
        policy=st.sampled_from([CHUNKED, RESERVING]),
        budget=st.sampled_from([3, 16]),
        num_swap_blocks=st.sampled_from([0, 5]),
        overlaps=st.booleans(),
    )
    def make(
        self,
        num_blocks: int,
        most: int,
        cost: CostModel,
        policy: Policy,
        budget: int,
        num_swap_blocks: int,
        overlaps: bool,
    ) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.driver = DiskDriver(
            Path(self.folder.name),
            num_blocks=num_blocks,
            most=most,
            cost=cost,
            policy=policy,
            token_budget=budget,
            num_swap_blocks=num_swap_blocks,
            max_num_seqs=4,
            overlaps=overlaps,
        )
        self.specs: dict[int, SequenceSpec] = {}
        self.prefills: set[int] = set()
        self.cancelled: set[int] = set()

    def _turn(self, *commands: Command) -> None:
        self.driver.turn(*commands)
        self.driver.settle()

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

    @rule(turns=st.integers(1, 8))
    def go_on(self, turns: int) -> None:
        for _ in range(turns):
            self._turn()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        for _ in range(2 * len(self.specs) + 1):
            self.driver.finish_reads(*(Release(handle) for handle in self.prefills))
        for handle, sequence in self.specs.items():
            expected = greedy(sequence.prompt_token_ids, sequence.stop.max_tokens, VOCAB)
            is_whole = handle not in self.cancelled | self.prefills
            if "NO_BLOCKS" in self.driver.failures().get(handle, ""):
                continue
            for choice in sequence.choices:
                tokens = self.driver.tokens(handle, choice)
                assert tokens == (expected if is_whole else expected[: len(tokens)])
        assert sorted(self.driver.freed()) == sorted(self.specs)
        if self.specs:
            self.driver.assert_at_rest()
        self.driver.close()
        self.folder.cleanup()


DiskMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDisk = DiskMachine.TestCase
