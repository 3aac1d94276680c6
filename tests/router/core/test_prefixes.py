"""A promise counts what the worker it will go to has cached, and no more than any that may take it has."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.core import RouterCore
from router.core.judge import held_by_workers, held_everywhere
from router.core.model.actions import AskGrants, Reject, SendDecode, TellAccepted
from router.core.model.events import (
    Arrived,
    Enqueued,
    Granted,
    SettleAnswered,
    StepReported,
    WorkerFacts,
    WorkerHeld,
    WorkerLoad,
    WorkerLost,
)
from runtime.state.records import Settled
from scheduling.admission.prefixes import NO_HITS, PrefixHits
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.memory.prefix_reads import TierHit
from scheduling.placement import Placement
from scheduling.prediction import HeldPrefix, PeerHit, QueueAhead, RequestCost
from scheduling.request import PrefixSource, Slo
from tests.router.core_driver import ARRIVAL, ONE, TWO, arrive, call, core_of, judged, tell

COST = CostModel((0.0, 0.0, 0.001, 0.0, 0.0, 0.0), 0.0)
"""A millisecond for each token."""
PROMPT = 48
ALONE = QueueAhead(0, 0)
HITS = {ONE.key: 8}
BLOCK = ONE.block_size
FULL = WorkerLoad(pending_prefill_tokens=10_000, free_blocks=64)


def core_with(placement: Placement = Placement.AGGREGATED) -> RouterCore:
    return core_of("slack", cost=COST, placement=placement)


def predicted_ms(
    core: RouterCore,
    hits: dict[str, int],
    ahead: QueueAhead = ALONE,
    on_disk: Mapping[str, tuple[TierHit, ...]] = NO_HITS.in_tiers,
) -> float:
    found = PrefixHits(hits, on_disk)
    return judged(core, RequestCost(PROMPT, 0, 12, 1), Slo(), ahead, 1.0, found).predicted.ttft_s * 1000


def test_an_idle_fleet_promises_what_the_holder_of_the_prefix_takes() -> None:
    core = core_with()
    assert predicted_ms(core, HITS) == pytest.approx(predicted_ms(core, {}) - 8 * BLOCK)
    tight = call(ARRIVAL, prompt_token_ids=range(PROMPT), slo=Slo(ttft_ms=PROMPT - 8 * BLOCK + 1))
    assert any(isinstance(action, Reject) for action in arrive(core_with(), 1, tight))
    told = arrive(core, 1, call(tight, hits=PrefixHits(HITS)))
    assert any(isinstance(action, TellAccepted) for action in told)
    # And it is that worker alone that the prompt is offered to.
    assert [action.worker.key for action in told if isinstance(action, AskGrants)] == [ONE.key]


def test_a_holder_that_is_not_free_does_not_count() -> None:
    core = core_with()
    tell(core, StepReported(ONE.key, TokenColumns(), FULL))
    without = core_with()
    tell(without, StepReported(ONE.key, TokenColumns(), FULL))
    assert predicted_ms(core, HITS) == pytest.approx(predicted_ms(without, {}))


@pytest.mark.parametrize(
    ("hits", "ahead", "placement"),
    [
        (HITS, QueueAhead(10, 1), Placement.AGGREGATED),
        (HITS, QueueAhead(0, 0), Placement.CONDITIONAL),
    ],
)
def test_if_any_worker_may_take_it_only_common_blocks_count(
    hits: dict[str, int], ahead: QueueAhead, placement: Placement
) -> None:
    core = core_with(placement)
    assert predicted_ms(core, hits, ahead) == pytest.approx(predicted_ms(core, {}, ahead))
    both = {ONE.key: 8, TWO.key: 5}
    assert held_everywhere(core.state, PrefixHits(both)) == HeldPrefix(5 * BLOCK)
    assert predicted_ms(core, both, ahead) == pytest.approx(predicted_ms(core, {}, ahead) - 5 * BLOCK)


def test_with_as_many_waiting_as_free_any_worker_may_take_it() -> None:
    core = core_with()
    for number in (1, 2):
        arrive(core, number)
    for worker in core.state.fleet.workers.values():
        worker.asking = False
    found = held_by_workers(core.state, PrefixHits(HITS), QueueAhead(0, 0))
    assert found == {ONE.key: HeldPrefix(0), TWO.key: HeldPrefix(0)}


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 60), st.integers(0, 60), st.integers(0, 2))
def test_a_known_prefix_promises_no_sooner_than_its_holders(
    one: int, two: int, bound_one: int, bound_two: int, ahead: int
) -> None:
    core, hits = core_with(), {ONE.key: one, TWO.key: two}
    for facts, bound in ((ONE, bound_one), (TWO, bound_two)):
        load = WorkerLoad(pending_prefill_tokens=bound, free_blocks=64)
        tell(core, StepReported(facts.key, TokenColumns(), load))
    before = QueueAhead(20 * ahead, ahead)
    found = predicted_ms(core, hits, before)
    assert found <= predicted_ms(core, {}, before) + 1e-6
    most = {key: max(one, two) for key in hits}
    assert found >= predicted_ms(core, most, before) - 1e-6


# On a disk

READ_MS = 4
ON_DISK = {ONE.key: (TierHit(8, READ_MS / 1000),)}
SLOW = {ONE.key: (TierHit(8, 8 * BLOCK / 1000),)}
"""A read that takes as long as computing the same."""


def test_a_promise_counts_the_read_in_place_of_the_computing() -> None:
    core = core_with()
    expected = predicted_ms(core, {}) - 8 * BLOCK + READ_MS
    assert predicted_ms(core, {}, on_disk=ON_DISK) == pytest.approx(expected)
    assert predicted_ms(core, {}, on_disk=SLOW) == pytest.approx(predicted_ms(core, {}))


def test_what_the_disk_has_behind_the_memory_adds_to_it() -> None:
    core = core_with()
    behind = {ONE.key: (TierHit(3, READ_MS / 1000),)}
    expected = predicted_ms(core, {}) - 8 * BLOCK + READ_MS
    assert predicted_ms(core, {ONE.key: 5}, on_disk=behind) == pytest.approx(expected)


def test_a_prompt_is_offered_to_a_worker_that_would_read_it() -> None:
    for facts in (ONE, TWO):
        hit = {facts.key: (TierHit(8, READ_MS / 1000),)}
        told = arrive(
            core_with(), 1, call(ARRIVAL, prompt_token_ids=range(PROMPT), hits=PrefixHits(in_tiers=hit))
        )
        assert [action.worker.key for action in told if isinstance(action, AskGrants)] == [facts.key]


def test_memory_is_a_better_choice_than_a_disk() -> None:
    hits = call(
        ARRIVAL,
        prompt_token_ids=range(PROMPT),
        hits=PrefixHits({ONE.key: 0, TWO.key: 8}, {ONE.key: (TierHit(8, READ_MS / 1000),)}),
    )
    told = arrive(core_with(), 1, hits)
    assert [action.worker.key for action in told if isinstance(action, AskGrants)] == [TWO.key]


def test_a_prefix_on_all_disks_counts_wherever_the_prompt_goes() -> None:
    core = core_with(Placement.CONDITIONAL)
    hits = {ONE.key: (TierHit(8, 0.001),), TWO.key: (TierHit(5, 0.002),)}
    expected = predicted_ms(core, {}) - 5 * BLOCK + 2
    assert predicted_ms(core, {}, on_disk=hits) == pytest.approx(expected)
    assert predicted_ms(core, {}, on_disk=ON_DISK) == pytest.approx(predicted_ms(core, {}))


def test_an_slo_that_only_a_disk_can_keep_is_not_impossible() -> None:
    slo = Slo(ttft_ms=PROMPT - 8 * BLOCK + READ_MS + 1)
    tight = call(ARRIVAL, prompt_token_ids=range(PROMPT), slo=slo)
    assert any(isinstance(action, Reject) for action in arrive(core_with(), 1, tight))
    told = arrive(core_with(), 1, call(tight, hits=PrefixHits(in_tiers=ON_DISK)))
    assert any(isinstance(action, TellAccepted) for action in told)


blocks = st.integers(0, 6)
reads = st.builds(TierHit, st.integers(1, 6), st.floats(0, 0.05))
ways = st.lists(reads, min_size=1, max_size=2, unique_by=lambda hit: hit.num_blocks).map(
    lambda hits: tuple(sorted(hits, key=lambda hit: hit.num_blocks))
)
tiers = st.fixed_dictionaries({}, optional={ONE.key: ways, TWO.key: ways})


@given(blocks, blocks, tiers, st.integers(0, 60), st.integers(0, 60), st.integers(0, 2))
def test_tiers_promise_no_later_than_none_and_no_sooner_than_the_pool(
    one: int, two: int, in_tiers: dict[str, tuple[TierHit, ...]], bound_one: int, bound_two: int, ahead: int
) -> None:
    core, hits = core_with(), {ONE.key: one, TWO.key: two}
    for facts, bound in ((ONE, bound_one), (TWO, bound_two)):
        load = WorkerLoad(pending_prefill_tokens=bound, free_blocks=64)
        tell(core, StepReported(facts.key, TokenColumns(), load))
    before = QueueAhead(20 * ahead, ahead)
    found = predicted_ms(core, hits, before, in_tiers)
    assert found <= predicted_ms(core, hits, before) + 1e-6
    behind = {key: read[-1].num_blocks for key, read in in_tiers.items()}
    in_pool = {key: num + behind.get(key, 0) for key, num in hits.items()}
    assert found >= predicted_ms(core, in_pool, before) - 1e-6


# At another worker

FETCH_MS = 6
NUM_FETCHED = 10
FROM_TWO = {ONE.key: (PeerHit(TWO.key, NUM_FETCHED, FETCH_MS / 1000, 0.0),)}


def asking(at_peers: Mapping[str, tuple[PeerHit, ...]]) -> Arrived:
    hits = PrefixHits({ONE.key: 0, TWO.key: NUM_FETCHED}, at_peers=at_peers)
    return call(ARRIVAL, prompt_token_ids=range(PROMPT), hits=hits)


def sources(core: RouterCore, event: Arrived, worker_key: str) -> list[PrefixSource | None]:
    """Return the source that is named to a worker once it is granted the request."""
    tell(core, event, Enqueued("t/r1/0", 0, 0), Granted("t/r1/0", worker_key, worker_key))
    told = tell(core, SettleAnswered("t/r1/0", worker_key, worker_key, Settled.OK))
    return [action.spec.prefix_source for action in told if isinstance(action, SendDecode)]


def test_a_prompt_goes_to_a_free_holder_of_its_beginning() -> None:
    told = arrive(core_with(), 1, asking(FROM_TWO))
    assert [action.worker.key for action in told if isinstance(action, AskGrants)] == [TWO.key]


@pytest.mark.parametrize(("peer_hits", "goes_to"), [({}, TWO), (FROM_TWO, ONE)])
def test_a_prompt_leaves_a_busy_holder_if_fetching_is_sooner(
    peer_hits: Mapping[str, tuple[PeerHit, ...]], goes_to: WorkerFacts
) -> None:
    """Half a step of waiting is less than computing what the holder has, and more than fetching it."""
    core = core_with()
    load = WorkerLoad(pending_prefill_tokens=1, free_blocks=64)
    tell(core, StepReported(TWO.key, TokenColumns(), load))
    told = arrive(core, 1, asking(peer_hits))
    assert [action.worker.key for action in told if isinstance(action, AskGrants)] == [goes_to.key]


def test_a_promise_counts_the_fetch_where_the_prompt_would_be_fetched() -> None:
    core, hits = core_with(), PrefixHits({TWO.key: NUM_FETCHED}, {}, FROM_TWO)
    assert hits.held_by(ONE.key, BLOCK, COST) == HeldPrefix(
        NUM_FETCHED * BLOCK, FETCH_MS / 1000, FROM_TWO[ONE.key][0]
    )
    # Whichever of the two takes it, no more than the fetch is added.
    assert held_everywhere(core.state, hits) == HeldPrefix(
        NUM_FETCHED * BLOCK, FETCH_MS / 1000, FROM_TWO[ONE.key][0]
    )


def test_the_worker_that_fetches_is_told_from_where() -> None:
    expected = PrefixSource(TWO.address, TWO.incarnation, NUM_FETCHED)
    assert sources(core_with(), asking(FROM_TWO), ONE.key) == [expected]
    assert sources(core_with(), asking(FROM_TWO), TWO.key) == [None]
    assert sources(core_with(), asking({}), ONE.key) == [None]


def test_no_source_is_named_where_fetching_is_slower_than_computing() -> None:
    slow = {ONE.key: (PeerHit(TWO.key, NUM_FETCHED, NUM_FETCHED * BLOCK / 1000, 0.0),)}
    assert sources(core_with(), asking(slow), ONE.key) == [None]


def test_a_source_that_is_gone_or_stands_still_is_not_named() -> None:
    core = core_with()
    tell(core, WorkerLost(TWO.key, "killed"))
    assert sources(core, asking(FROM_TWO), ONE.key) == [None]
    core = core_with()
    tell(core, WorkerHeld(TWO.key))
    assert sources(core, asking(FROM_TWO), ONE.key) == [None]
