"""Every policy can be asked for by its name."""

from __future__ import annotations

import pytest

from scheduling.policies import DEFAULT, NAMES, by_name
from scheduling.policies.policy import Order


def test_names_are_in_the_order_of_their_age() -> None:
    assert NAMES == (
        "static", "dynamic", "orca", "prefill_first", "chunked",
        "slos_serve", "jitserve", "qoserve", "polyserve", "slack",
    )  # fmt: skip
    assert DEFAULT == "slack"


@pytest.mark.parametrize("name", NAMES)
def test_a_name_finds_its_policy(name: str) -> None:
    assert by_name(name).name == name


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="policy is 'fifo'; accepted: static, dynamic, orca"):
        by_name("fifo")


def test_those_with_deadlines_bind_late() -> None:
    assert [name for name in NAMES if by_name(name).promises] == ["slos_serve", "slack"]
    assert [name for name in NAMES if by_name(name).takes_at_risk] == ["slos_serve"]
    assert [name for name in NAMES if by_name(name).late_go_last] == ["jitserve", "qoserve"]
    with_deadlines = ["slos_serve", "jitserve", "qoserve", "polyserve", "slack"]
    assert [name for name in NAMES if not by_name(name).binds_at_arrival] == with_deadlines
    assert [name for name in NAMES if by_name(name).cuts_steps] == with_deadlines
    assert [name for name in NAMES if by_name(name).order is not Order.ARRIVAL] == with_deadlines


def test_those_without_paged_growth_reserve_the_longest_output() -> None:
    assert [name for name in NAMES if by_name(name).reserves_maximum] == ["static", "dynamic", "orca"]
