"""The names of sessions that others can see."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st

from router.core.dispatch import group_key
from router.core.model.session import Session, Timeline
from router.request import Request
from scheduling.admission.prefixes import NO_HITS
from scheduling.request import SamplingParams, Slo, StopRules

# Mostly what a key is made of itself, so that names that imitate one are found soon.
NAMES = st.text("/#%01a ", max_size=6) | st.text(st.characters(min_codepoint=32, max_codepoint=126))
GROUPS = st.tuples(NAMES, NAMES, st.integers(0, 11), st.integers(0, 15))


def key_of(tenant: str, request_id: str, number: int, first_choice: int) -> str:
    session = Session(
        sid=1,
        request=Request(
            tenant=tenant,
            request_id=request_id,
            session=0,
            digest=b"",
            prompt_token_ids=(1,),
            sampling=SamplingParams(),
            seed_given=True,
            stop=StopRules(max_tokens=1),
            slo=Slo(),
            received_at=0.0,
        ),
        number=number,
        goal=Slo(),
        aim=Slo(),
        prefix_hits=NO_HITS,
        timeline=Timeline(0.0),
        choices=[],
    )
    return group_key(session, first_choice)


@hypothesis.given(GROUPS, GROUPS)
@hypothesis.example(("a", "b/c", 0, 0), ("a/b", "c", 0, 0))
@hypothesis.example(("a", "b", 0, 1), ("a", "b/0#1", 0, 0))
def test_no_two_groups_share_a_key(one: tuple[str, str, int, int], other: tuple[str, str, int, int]) -> None:
    assert (key_of(*one) == key_of(*other)) == (one == other)


@hypothesis.given(NAMES, NAMES)
def test_a_key_holds_no_space(tenant: str, request_id: str) -> None:
    """The store separates it by one from what comes before."""
    assert " " not in key_of(tenant, request_id, 0, 3)
