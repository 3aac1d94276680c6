"""Bad words are never completed, and what may be drawn is all that is drawn, however steps are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Decode
from engine.sampling.sampling_table import BadWords
from scheduling.request import SamplingParams, StopRules, leaves_a_token
from tests.engine.fake_runner import logits_after
from tests.engine.loop_driver import VOCAB, Driver, spec

WORDS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), max_size=5).map(tuple)


@given(WORDS, st.lists(st.integers(0, 3), max_size=8))
def test_a_token_is_banned_where_it_would_complete_a_word(
    words: tuple[tuple[int, ...], ...], output: list[int]
) -> None:
    longer = [word for word in words if len(word) > 1]
    completing = {
        token for token in range(4) for word in longer if tuple([*output, token][-len(word) :]) == word
    }
    assert BadWords(words).banned_after(output) == sorted(completing)
    assert bool(BadWords(words)) == bool(longer)


@given(
    WORDS,
    st.sets(st.integers(0, 5)).map(tuple),
    st.sets(st.integers(0, 5), max_size=2).map(tuple),
    st.integers(0, 2),
    st.booleans(),
    st.lists(st.integers(0, 5), max_size=6),
)
def test_where_a_token_is_left_none_is_ever_missing(
    words: tuple[tuple[int, ...], ...],
    allowed: tuple[int, ...],
    stops: tuple[int, ...],
    min_tokens: int,
    ignore_eos: bool,
    output: list[int],
) -> None:
    vocab, eos = 6, (5,)
    sampling = SamplingParams(allowed_token_ids=allowed, bad_words=words)
    stop = StopRules(9, min_tokens, stop_token_ids=stops, ignore_eos=ignore_eos)
    if not leaves_a_token(sampling, stop, eos, vocab):
        return
    barred = set(BadWords(words).banned_after(output)) | {word[0] for word in words if len(word) == 1}
    if len(output) < min_tokens:
        barred |= set(stops) | (set() if ignore_eos else set(eos))
    assert set(allowed or range(vocab)) - barred


def reference(prompt: list[int], num_tokens: int, sampling: SamplingParams) -> list[int]:
    """Greedy, the whole history anew for each token."""
    output: list[int] = []
    while len(output) < num_tokens:
        logits = logits_after([*prompt, *output], VOCAB)
        barred = {word[-1] for word in sampling.bad_words if tuple([*output, word[-1]][-len(word) :]) == word}
        allowed = set(sampling.allowed_token_ids or range(VOCAB)) - barred
        output.append(max(allowed, key=lambda token: float(logits[token])))
    return output


@pytest.mark.parametrize("overlaps", [False, True])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_output_holds_to_them_beside_others(overlaps: bool, data: st.DataObject) -> None:
    driver = Driver(
        token_budget=data.draw(st.integers(1, 9)),
        num_blocks=data.draw(st.sampled_from([16, 64])),
        num_swap_blocks=data.draw(st.sampled_from([0, 50])),
        overlaps=overlaps,
    )
    expected = {}
    for handle in range(data.draw(st.integers(1, 4))):
        prompt = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=9))
        allowed = data.draw(st.sampled_from([(), (1, 2, 3, 9), (0, 1, 2, 3, 4, 5)]))
        sampling = SamplingParams(temperature=0.0, allowed_token_ids=allowed, bad_words=data.draw(WORDS))
        if leaves_a_token(sampling, StopRules(9), (), VOCAB):
            expected[handle] = reference(prompt, 12, sampling)
            driver.turn(Decode(spec(handle, prompt, 12, sampling=sampling)))
    driver.finish()
    for handle, tokens in expected.items():
        assert driver.tokens(handle) == tokens
    assert not driver.failures()


def test_a_request_that_leaves_nothing_to_draw_is_refused() -> None:
    driver = Driver(eos=(7,))
    nothing = (
        (SamplingParams(allowed_token_ids=(3,), bad_words=((5, 3),)), StopRules(9)),
        (SamplingParams(allowed_token_ids=(7,)), StopRules(9, 1)),
        (SamplingParams(bad_words=tuple((token,) for token in range(VOCAB))), StopRules(9)),
    )
    for handle, (sampling, stop) in enumerate(nothing):
        driver.finish(Decode(spec(handle, [1], sampling=sampling, stop=stop)))
        assert "leave no token to draw" in driver.failures()[handle]
    driver.finish(Decode(spec(9, [1], sampling=nothing[1][0], stop=StopRules(9))))
    assert driver.tokens(9) == [7]
