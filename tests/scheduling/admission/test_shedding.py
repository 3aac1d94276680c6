"""Shedding: the most are kept, promises are not broken while capacity lasts, batch has its share."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.backlog import Stake, Waiting
from scheduling.admission.learnt import BATCH_SHARE, BatchFloor
from scheduling.admission.shedding import Plan, Service, plan
from scheduling.request import SloClass
from tests.growth import LARGE, MOST_GROWTH, SMALL, growth

stakes = st.sampled_from(Stake)


def jobs_of(
    stakes: st.SearchStrategy[Stake], classes: st.SearchStrategy[SloClass]
) -> st.SearchStrategy[list[Waiting]]:
    parts = st.tuples(classes, st.integers(1, 40), st.integers(1, 10), stakes)
    return st.lists(parts, max_size=9).map(
        lambda found: [
            Waiting(f"j{i}", entry, float(due), tokens, stake)
            for i, (entry, due, tokens, stake) in enumerate(found)
        ]
    )


any_jobs = jobs_of(stakes, st.sampled_from(SloClass))
services = st.builds(
    Service,
    now=st.just(0.0),
    rate=st.floats(0.2, 5),
    num_workers=st.integers(1, 4),
    start_tokens=st.integers(0, 20),
)


def in_time(jobs: list[Waiting], rate: float) -> bool:
    done = 0.0
    for job in sorted(jobs, key=lambda one: one.due_at):
        done += job.tokens / rate
        if done > job.due_at:
            return False
    return True


@given(jobs_of(st.just(Stake.AT_RISK), st.just(SloClass.STANDARD)), st.sampled_from([0.25, 0.5, 1.0, 2.0]))
def test_no_plan_keeps_more(jobs: list[Waiting], rate: float) -> None:
    shed = set(plan(jobs, Service(0.0, rate, 1)).shed)
    kept = [job for job in jobs if job.key not in shed]
    assert in_time(kept, rate)
    assert not any(in_time(list(more), rate) for more in combinations(jobs, len(kept) + 1))


@given(any_jobs, services)
def test_while_capacity_lasts_nobody_accepted_is_a_victim(jobs: list[Waiting], service: Service) -> None:
    made = plan(jobs, service)
    by_key = {job.key: job for job in jobs}
    assert made.broken == ()
    assert all(by_key[key].stake is Stake.AT_RISK for key in made.shed)
    assert all(by_key[key].stake is Stake.ACCEPTED for key in made.late)


@given(any_jobs, services, st.booleans())
def test_who_asked_for_nothing_is_never_let_go(
    jobs: list[Waiting], service: Service, may_break: bool
) -> None:
    made = plan(jobs, service, may_break=may_break)
    touched = {*made.shed, *made.broken, *made.late}
    assert not touched & {job.key for job in jobs if job.stake is Stake.NONE}


@given(any_jobs, services, st.booleans())
def test_a_plan_carried_out_asks_for_nothing_more(
    jobs: list[Waiting], service: Service, may_break: bool
) -> None:
    made = plan(jobs, service, may_break=may_break)
    gone = {*made.shed, *made.broken}
    again = plan([job for job in jobs if job.key not in gone], service, may_break=may_break)
    assert (again.shed, again.broken) == ((), ())


@given(any_jobs, services, st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_it_is_told_in(
    jobs: list[Waiting], service: Service, draw: object
) -> None:
    shuffled = list(jobs)
    draw.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    assert plan(shuffled, service) == plan(jobs, service)


def test_the_largest_goes_and_at_risk_goes_before_accepted() -> None:
    def job(key: str, tokens: int, stake: Stake) -> Waiting:
        return Waiting(key, SloClass.STANDARD, 10.0, tokens, stake)

    small, large = job("small", 2, Stake.AT_RISK), job("large", 6, Stake.AT_RISK)
    promised = job("promised", 8, Stake.ACCEPTED)
    service = Service(0.0, 1.0, 1)
    assert plan([small, large, promised], service) == Plan(shed=("large",))
    dying = Service(0.0, 0.25, 1)
    assert plan([small, promised], dying) == Plan(shed=("small",), late=("promised",))
    assert plan([small, promised], dying, may_break=True) == Plan(broken=("promised",))


def test_higher_classes_are_planned_first_and_batch_keeps_its_share() -> None:
    flood = [Waiting(f"i{i}", SloClass.INTERACTIVE, 1000.0, 100, Stake.ACCEPTED) for i in range(9)]
    batch = Waiting("batch", SloClass.BATCH, 201.0, 10, Stake.AT_RISK)
    assert plan([*flood, batch], Service(0.0, 1.0, 1)) == Plan()
    hasty = Waiting("batch", SloClass.BATCH, 199.0, 10, Stake.AT_RISK)
    assert plan([*flood, hasty], Service(0.0, 1.0, 1)) == Plan(shed=("batch",))


def test_one_too_long_for_any_worker_goes_alone() -> None:
    short = [Waiting(f"s{i}", SloClass.STANDARD, 10.0, 9, Stake.AT_RISK) for i in range(4)]
    long = Waiting("z", SloClass.STANDARD, 10.0, 11, Stake.AT_RISK)
    assert plan([*short, long], Service(0.0, 40.0, 40)) == Plan(shed=("z",))


@given(st.lists(st.tuples(st.sampled_from(SloClass), st.integers(1, 1000), st.booleans()), max_size=50))
def test_batch_is_owed_its_share_and_never_less_than_zero(
    went: list[tuple[SloClass, int, bool]],
) -> None:
    floor = BatchFloor()
    past = 0
    for slo_class, tokens, batch_waits in went:
        floor.dispatched(slo_class, tokens, batch_waits=batch_waits)
        past += tokens if slo_class is not SloClass.BATCH else 0
        assert 0 <= floor.owed_tokens <= past * BATCH_SHARE / (1 - BATCH_SHARE) + 1e-6


def test_with_its_share_paid_out_batch_has_all_of_it() -> None:
    floor, batch, others = BatchFloor(), 0, 0
    for _ in range(2000):
        if floor.owed_tokens >= 100:
            batch += 100
            floor.dispatched(SloClass.BATCH, 100, batch_waits=True)
        else:
            others += 100
            floor.dispatched(SloClass.INTERACTIVE, 100, batch_waits=True)
    assert batch / (batch + others) == pytest.approx(BATCH_SHARE, abs=0.001)


def test_a_plan_costs_the_same_however_many_wait_too_long() -> None:
    def prepare(count: int) -> Callable[[], object]:
        rng = random.Random(1)
        tokens = [rng.randrange(100, 2000) for _ in range(count)]
        jobs = [
            Waiting(str(place), SloClass.STANDARD, 0.02 * place, token, Stake.AT_RISK)
            for place, token in enumerate(tokens)
        ]
        return lambda: plan(jobs, Service(0.0, 40_000.0, 8))

    assert growth(prepare) < MOST_GROWTH * LARGE / SMALL
