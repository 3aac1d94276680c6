"""Whatever arrives, leaves, breaks or is handed over, in any order: right tokens, and no block lost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.core.commands import Cancel, Decode, KVArrived, KVFailed, Prefill, Receive, Release
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.policies.chunked import CHUNKED
from scheduling.policies.policy import Policy
from scheduling.policies.prefill_first import PREFILL_FIRST
from scheduling.request import SequenceSpec
from tests.engine.fake_runner import greedy
from tests.engine.loop_driver import DEAR_TOKENS, RESERVING, UNKNOWN_COST, VOCAB, Driver, spec

# Few tokens and few lengths, so that prefixes are shared all the time.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=14)
LENGTHS = st.one_of(st.integers(1, 9), st.integers(10, 20))
CHOICES = st.one_of(st.just(1), st.integers(1, 3))


class StepLoopMachine(RuleBasedStateMachine):
    """One step loop in a small pool; the integrity check runs whenever it idles."""

    @initialize(
        budget=st.sampled_from([1, 3, 16]),
        num_blocks=st.sampled_from([10, 14, 40]),
        cost=st.sampled_from([UNKNOWN_COST, DEAR_TOKENS]),
        policy=st.sampled_from([CHUNKED, RESERVING, PREFILL_FIRST]),
        num_swap_blocks=st.sampled_from([0, 5, 12]),
        overlaps=st.booleans(),
    )
    def make(
        self,
        budget: int,
        num_blocks: int,
        cost: CostModel,
        policy: Policy,
        num_swap_blocks: int,
        overlaps: bool,
    ) -> None:
        self.driver = Driver(
            num_blocks=num_blocks,
            token_budget=budget,
            max_num_seqs=6,
            policy=policy,
            cost=cost,
            num_swap_blocks=num_swap_blocks,
            overlaps=overlaps,
        )
        # Outputs have been short so far: what comes now is expected to be, and is longer.
        self.driver.finish(*(Decode(spec(-1 - n, [n], 1)) for n in range(9)))
        self.driver.reports.clear()
        self.specs: dict[int, SequenceSpec] = {}
        self.receiving: list[int] = []
        self.prefilled: set[int] = set()
        self.cancelled: set[int] = set()
        self.broken: set[int] = set()

    def _new(self, prompt: list[int], max_tokens: int, num_choices: int) -> SequenceSpec:
        handle = len(self.specs)
        self.specs[handle] = spec(handle, prompt, max_tokens, choices=tuple(range(num_choices)))
        return self.specs[handle]

    @rule(prompts=st.lists(PROMPTS, min_size=1, max_size=3), max_tokens=LENGTHS, num_choices=CHOICES)
    def decode(self, prompts: list[list[int]], max_tokens: int, num_choices: int) -> None:
        self.driver.turn(*(Decode(self._new(prompt, max_tokens, num_choices)) for prompt in prompts))

    @rule(prompt=PROMPTS)
    def prefill(self, prompt: list[int]) -> None:
        one = self._new(prompt, 5, 1)
        self.prefilled.add(one.handle)
        self.driver.turn(Prefill(one))

    @rule(prompt=PROMPTS, max_tokens=LENGTHS, num_choices=CHOICES)
    def receive(self, prompt: list[int], max_tokens: int, num_choices: int) -> None:
        one = self._new(prompt, max_tokens, num_choices)
        self.driver.turn(Receive(one))
        if one.handle not in self.driver.failures():
            self.receiving.append(one.handle)

    def _told(self) -> list[int]:
        """Receivers that have their blocks."""
        told = {row.handle for report in self.driver.reports for row in report.received}
        return [handle for handle in self.receiving if handle in told]

    def _computed(self) -> set[int]:
        return {row.handle for report in self.driver.reports for row in report.prefilled}

    @precondition(lambda self: self._told())
    @rule(data=st.data())
    def kv_arrives(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self._told()))
        self.receiving.remove(handle)
        one = self.specs[handle]
        (told,) = [r for report in self.driver.reports for r in report.received if r.handle == handle]
        num_verified = data.draw(st.integers(0, len(told.blocks)))
        tokens = one.prompt_token_ids
        for place, block in enumerate(told.blocks[told.num_held : num_verified], told.num_held):
            for offset, token in enumerate(tokens[place * 4 : place * 4 + 4]):
                self.driver.runner.pool[block, offset, 0] = token
                self.driver.runner.pool[block, offset, 1] = place * 4 + offset
        first = greedy(tokens, 1, VOCAB)[0]
        count = len(one.choices)
        columns = TokenColumns([handle] * count, one.choices, [0] * count, [first] * count, [0] * count)
        self.driver.turn(KVArrived(handle, num_verified, columns))

    @precondition(lambda self: self._told())
    @rule(data=st.data())
    def kv_fails(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self._told()))
        self.receiving.remove(handle)
        self.broken.add(handle)
        self.driver.turn(KVFailed(handle, "gone"))

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.specs)))
        self.cancelled.add(handle)
        self.driver.turn(Cancel(handle))
        # A copy may still write to a receiver's blocks; everyone else is gone at once.
        assert handle in self.driver.freed() or handle in self._told()
        if handle in self.driver.freed() and handle in self.receiving:
            self.receiving.remove(handle)

    @precondition(lambda self: self.prefilled)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.driver.turn(Release(data.draw(st.sampled_from(sorted(self.prefilled)))))

    @rule()
    def the_step_breaks(self) -> None:
        self.driver.runner.error = RuntimeError("broken")
        self.driver.turn()
        self.driver.runner.error = None
        self.broken.update(h for h, told in self.driver.failures().items() if "broken" in told)

    @rule(turns=st.integers(1, 6))
    def go_on(self, turns: int) -> None:
        for _ in range(turns):
            self.driver.turn()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.finish()
        # What holds memory without running goes; whoever waits for it then has its turn.
        for _ in range(2 * len(self.specs)):
            held = self._told()
            self.broken.update(held)
            self.receiving = [handle for handle in self.receiving if handle not in held]
            self.driver.finish(*(Release(handle) for handle in self.prefilled & self._computed()))
            self.driver.finish(*(KVFailed(handle, "the end") for handle in held))
        for handle, sequence in self.specs.items():
            self._check(handle, sequence)
        assert sorted(self.driver.freed()) == sorted(self.specs)
        if self.specs:
            self.driver.assert_at_rest()

    def _check(self, handle: int, one: SequenceSpec) -> None:
        length = 1 if handle in self.prefilled else one.stop.max_tokens
        expected = greedy(one.prompt_token_ids, length, VOCAB)
        is_whole = handle not in self.cancelled | self.broken | set(self.receiving)
        if handle in self.driver.failures():
            told = self.driver.failures()[handle]
            assert "NO_BLOCKS" in told or handle in self.broken
            is_whole = False
        if handle in self.driver.freed() and handle in self.prefilled:
            is_whole = False  # it may have been released before it was computed
        for choice in one.choices:
            tokens = self.driver.tokens(handle, choice)
            assert tokens == (expected if is_whole else expected[: len(tokens)])


StepLoopMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=30)
TestStepLoop = StepLoopMachine.TestCase
