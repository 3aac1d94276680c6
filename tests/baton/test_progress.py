import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.errors import Internal, StreamCorrupt
from baton.progress import Progress
from baton.types import Accepted, Promise, PromptLogprobs, TokenLogprobs, Tokens


@st.composite
def deliveries(draw: st.DrawFn) -> list[Tokens]:
    """Consecutive runs of tokens of up to three choices, interleaved."""
    next_index = [0, 0, 0]
    events: list[Tokens] = []
    for _ in range(draw(st.integers(1, 12))):
        choice, count = draw(st.integers(0, 2)), draw(st.integers(1, 5))
        first = next_index[choice]
        events.append(Tokens(choice, first, tuple(range(first, first + count)), ""))
        next_index[choice] += count
    return events


@given(deliveries())
def test_what_comes_in_order_is_received_whole(events: list[Tokens]) -> None:
    progress = Progress(3)
    for event in events:
        assert progress.admit(event)
    for choice, token_ids in progress.received().items():
        assert token_ids == list(range(len(token_ids)))
        assert len(token_ids) == sum(len(event.token_ids) for event in events if event.choice == choice)


@given(deliveries(), st.data())
def test_a_missing_or_repeated_run_is_noticed_at_the_next_one(
    events: list[Tokens], data: st.DataObject
) -> None:
    victim = data.draw(st.integers(0, len(events) - 1))
    repeat = data.draw(st.booleans())
    changed = events[: victim + 1] + events[victim:] if repeat else events[:victim] + events[victim + 1 :]
    later_of_choice = any(event.choice == events[victim].choice for event in events[victim + 1 :])
    progress = Progress(3)
    noticed = False
    for event in changed:
        try:
            progress.admit(event)
        except StreamCorrupt:
            noticed = True
            break
    assert noticed == (repeat or later_of_choice)


def test_going_on_with_other_weights_is_noticed() -> None:
    promise = Promise(1.0, 1.0, None, None, at_risk=False)
    first, other, silent = (Accepted("r", promise, 1, 3, name) for name in ("f00d", "beef", ""))
    progress = Progress(1)
    assert progress.admit(first)
    assert not progress.admit(silent), "a router of an older version does not say"
    assert not progress.admit(first)
    with pytest.raises(Internal, match=r"began with weights f00d .* beef"):
        progress.admit(other)


def test_a_gap_in_the_log_probabilities_of_a_prompt_is_noticed() -> None:
    one = TokenLogprobs(-0.5, ())
    progress = Progress(1)
    assert progress.admit(PromptLogprobs(1, (one, one)))
    assert progress.admit(PromptLogprobs(3, (one,)))
    assert progress.num_prompt_logprobs == 3
    for wrong in (3, 5):
        with pytest.raises(Internal, match=f"at token {wrong}, expected 4"):
            progress.admit(PromptLogprobs(wrong, (one,)))
