"""Higher classes get the capacity they ask for; the rest is left to all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.learnt import BATCH_SHARE, HEADROOM, ClassShares
from scheduling.request import SloClass

RATE = 1000.0
ASKED = st.lists(st.tuples(st.sampled_from(SloClass), st.integers(1, 50_000)), max_size=30)


def shares_of(asked: list[tuple[SloClass, int]], admitted: list[tuple[SloClass, int]]) -> ClassShares:
    """At time 0."""
    shares = ClassShares()
    for slo_class, tokens in asked:
        shares.asked(slo_class, tokens, 0.0)
    for slo_class, tokens in admitted:
        shares.admitted(slo_class, tokens, 0.0)
    return shares


def test_batch_waits_while_it_has_what_interactive_asks_for() -> None:
    shares = shares_of([(SloClass.INTERACTIVE, 3000)], [(SloClass.BATCH, 8000)])
    wait_s = shares.wait_s(SloClass.BATCH, RATE, 0.0)
    assert wait_s > 0
    shares.asked(SloClass.INTERACTIVE, 3000, 0.0)
    assert shares.wait_s(SloClass.BATCH, RATE, 0.0) > wait_s


def test_what_it_has_fades_until_it_may_have_more() -> None:
    shares = shares_of([(SloClass.INTERACTIVE, 3000)], [(SloClass.BATCH, 8000)])
    wait_s = shares.wait_s(SloClass.BATCH, RATE, 0.0)
    assert shares.wait_s(SloClass.BATCH, RATE, wait_s + 0.01) == 0


def test_alone_a_class_may_have_all() -> None:
    shares = shares_of([(SloClass.BATCH, 90_000)], [(SloClass.BATCH, 90_000)])
    assert shares.wait_s(SloClass.BATCH, RATE, 0.0) == 0


@given(ASKED, ASKED)
def test_the_highest_class_never_waits_for_others(
    asked: list[tuple[SloClass, int]], admitted: list[tuple[SloClass, int]]
) -> None:
    assert shares_of(asked, admitted).wait_s(SloClass.INTERACTIVE, RATE, 0.0) == 0


@given(ASKED, ASKED)
def test_batch_is_left_its_share(
    asked: list[tuple[SloClass, int]], admitted: list[tuple[SloClass, int]]
) -> None:
    shares = shares_of(asked, admitted)
    for slo_class in SloClass:
        assert BATCH_SHARE * RATE <= shares.left_to(slo_class, RATE, 0.0) <= RATE


@given(ASKED, st.sampled_from(SloClass))
def test_with_room_for_all_that_is_asked_nobody_waits(
    asked: list[tuple[SloClass, int]], slo_class: SloClass
) -> None:
    shares = shares_of(asked, asked)
    rate = HEADROOM * sum(tokens for _, tokens in asked) + 1
    assert shares.wait_s(slo_class, rate, 0.0) == 0


def test_what_lower_classes_were_admitted_is_no_load_to_higher_ones() -> None:
    shares = shares_of([], [(SloClass.STANDARD, 1000), (SloClass.BATCH, 5000)])
    assert shares.admitted_until(SloClass.INTERACTIVE, 0.0) == 0
    assert 0 < shares.admitted_until(SloClass.STANDARD, 0.0) < shares.admitted_until(SloClass.BATCH, 0.0)
