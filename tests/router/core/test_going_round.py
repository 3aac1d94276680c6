"""A request whose KV does not arrive goes another way: other workers, or a decode worker alone."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.core import RouterCore
from router.core.model.actions import Action, ReleaseCredit, SendPrefill, SendReceive, Settle
from router.core.model.events import Granted, SequenceFailed, StepReported, WorkerJoined
from router.core.model.session import Phase
from router.core.model.state import CoreConfig
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.placement import Placement
from scheduling.policies import by_name
from scheduling.request import FailureReason, FinishReason, Slo
from tests.router.core_model import ModelWorker
from tests.router.core_world import World

PLACEMENTS = (Placement.CONDITIONAL, Placement.DISAGGREGATED)
MAX_TOKENS = 4


class Parted(World):
    """Some decode workers cannot reach some prefill workers, which both reach the router."""

    def __init__(
        self, placement: Placement, num_prefill: int, num_decode: int, policy: str = "slack"
    ) -> None:
        super().__init__()
        self.core = RouterCore(CoreConfig("router-a", by_name(policy), placement))
        self.cut: set[tuple[str, str]] = set()
        """Worker ids: a prefill worker, and a decode worker that cannot reach it."""
        self.senders_report = False
        """The sender reports that its handoff was not fetched in time, and not the receiver."""
        self.sent: list[tuple[str, str]] = []
        """Handoffs that were begun, and those that failed."""
        self.failed: list[tuple[str, str]] = []
        self.refusing: set[str] = set()
        """Ids of prefill workers that fail whatever they are given."""
        self.unreported: list[tuple[ModelWorker, SequenceFailed]] = []
        """Workers, and failures that they have not reported yet."""
        for number in range(num_prefill):
            self.join(f"p{number}", "prefill")
        for number in range(num_decode):
            self.join(f"d{number}", "decode")

    def join(self, name: str, role: str) -> None:
        """Prefill workers are quicker, so that prompts go to them first."""
        worker = ModelWorker(name, role, 1)
        self.workers[worker.facts.key] = worker
        step_s = 0.001 if role == "prefill" else 0.01
        self.tell(WorkerJoined(worker.facts, worker.load, CostModel((step_s, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)))

    def _carry_out(self, action: Action) -> None:
        super()._carry_out(action)
        if isinstance(action, SendReceive):
            target = self.workers[action.worker_key]
            pair = action.source_address.partition(":")[0], target.facts.worker_id
            self.sent.append(pair)
            if pair in self.cut:
                self.failed.append(pair)
                del target.running[action.spec.handle]
                reporter = self.workers[f"{pair[0]}:1"] if self.senders_report else target
                failure = SequenceFailed(action.spec.handle, FailureReason.HANDOFF, "no KV was sent")
                self.unreported.append((reporter, failure))
        if isinstance(action, SendPrefill) and action.worker_key.partition(":")[0] in self.refusing:
            worker = self.workers[action.worker_key]
            del worker.running[action.spec.handle]
            failure = SequenceFailed(action.spec.handle, FailureReason.REFUSED, "no memory")
            self.unreported.append((worker, failure))

    def serve(self, count: int = 1) -> None:
        """Take in so many requests at once, and serve them to their end."""
        for _ in range(count):
            self.arrive(f"r{len(self.heard)}", 1, MAX_TOKENS, 0.0, Slo())
        for _ in range(2000):
            while self.calls:
                self.answer(self.calls.pop(0))
            self.report_failures()
            for worker in list(self.workers.values()):
                if worker.running:
                    self.step(worker, sorted(worker.running))
            self.store.expire()
            self.pass_time(0.05)
            if not self.core.state.live:
                return

    def report_failures(self) -> None:
        unreported, self.unreported = self.unreported, []
        for worker, failure in unreported:
            self.tell(StepReported(worker.facts.key, TokenColumns(), worker.load, failures=(failure,)))

    def ends(self) -> list[FinishReason]:
        return [heard.ended[0] for heard in self.heard.values()]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_decode_worker_computes_alone_what_it_cannot_fetch(placement: Placement) -> None:
    world = Parted(placement, num_prefill=1, num_decode=1)
    world.cut = {("p0", "d0")}
    world.serve()
    assert world.ends() == [FinishReason.LENGTH]
    assert world.failed == [("p0", "d0")]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("broken", ["p0", "d0"])
@pytest.mark.parametrize("senders_report", [False, True])
def test_the_next_attempt_has_another_source_and_another_target(
    placement: Placement, broken: str, *, senders_report: bool
) -> None:
    """Whichever side is broken, and whichever reports it, the second attempt is without both."""
    world = Parted(placement, num_prefill=2, num_decode=2)
    world.senders_report = senders_report
    world.cut = {pair for pair in itertools.product(("p0", "p1"), ("d0", "d1")) if broken in pair}
    world.serve()
    assert world.ends() == [FinishReason.LENGTH]
    assert world.failed == [("p0", "d0")]
    assert world.sent == [("p0", "d0"), ("p1", "d1")]


@settings(max_examples=200)
@given(st.data())
def test_whatever_is_cut_every_request_is_served(data: st.DataObject) -> None:
    """Each prefill worker fails a request once at most: then a decode worker computes it alone."""
    num_prefill, num_decode = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    policy = data.draw(st.sampled_from(("slack", "chunked", "orca")))
    world = Parted(data.draw(st.sampled_from(PLACEMENTS)), num_prefill, num_decode, policy)
    pairs = [(f"p{p}", f"d{d}") for p in range(num_prefill) for d in range(num_decode)]
    world.cut = data.draw(st.sets(st.sampled_from(pairs)))
    world.senders_report = data.draw(st.booleans())
    count = data.draw(st.integers(1, 5))
    world.serve(count)
    assert world.ends() == [FinishReason.LENGTH] * count
    assert len(world.failed) <= count * num_prefill
    assert not world.core.state.groups


def test_conditional_placement_leaves_a_worker_that_failed_a_request() -> None:
    """It would be the quickest again, and the request would fail after three attempts."""
    world = Parted(Placement.CONDITIONAL, num_prefill=1, num_decode=1)
    world.refusing = {"p0"}
    world.serve()
    assert world.ends() == [FinishReason.LENGTH]
    assert world.core.state.counters.retried_attempts == 1


def test_a_failed_handoff_counts_for_its_own_request_alone() -> None:
    """The link may be back for the next one."""
    world = Parted(Placement.DISAGGREGATED, num_prefill=1, num_decode=1)
    world.cut = {("p0", "d0")}
    world.serve()
    world.cut = set()
    world.serve()
    assert world.sent == [("p0", "d0"), ("p0", "d0")]


def test_a_grant_of_a_worker_that_failed_is_given_back() -> None:
    """Another router may have offered the worker's capacity to whatever is first in the queue."""
    world = Parted(Placement.CONDITIONAL, num_prefill=1, num_decode=1)
    world.cut = {("p0", "d0")}
    world.arrive("r0", 1, MAX_TOKENS, 0.0, Slo())
    while not world.failed:
        world.answer(world.calls.pop(0))
    world.report_failures()
    (group,) = world.core.state.groups.values()
    while group.phase is not Phase.WAITING:
        world.answer(world.calls.pop(0))
    world.tell(Granted(group.key, "p0:1", "d0:1"))
    assert ReleaseCredit(group.key, "p0:1") in world.calls
    assert not [call for call in world.calls if isinstance(call, Settle)]
    world.serve(0)
    assert world.ends() == [FinishReason.LENGTH]
    assert world.failed == [("p0", "d0")]
