"""One choice's text and end against a reference that decodes everything at every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from model_output.text.detokenizer import Detokenizer
from model_output.text.output import Beginning, OutputRules, OutputStream, beginning_of, output_rules
from scheduling.request import FinishReason, Matched, StopRules
from tests.model_output.text.tokenizers_zoo import ALL, token_id

BYTES = ALL["byte_level"]
EOS = token_id(BYTES, "<eos>")
LETTERS = {letter: token_id(BYTES, letter) for letter in "abcdefghij"}


def rules(
    limit: int = 1000,
    min_tokens: int = 0,
    stops: tuple[str, ...] = (),
    eos: frozenset[int] = frozenset(),
    stop: frozenset[int] = frozenset(),
    include_stop: bool = False,
) -> OutputRules:
    rule = StopRules(
        limit,
        min_tokens=min_tokens,
        stop_strings=stops,
        stop_token_ids=tuple(stop),
        include_stop=include_stop,
    )
    return output_rules(rule, eos, prompt_tokens=1, max_context=10_000)


def run(
    rule: OutputRules,
    token_ids: list[int],
    tokenizer: Tokenizer = BYTES,
    *,
    skip: bool = True,
    prompt: Sequence[int] = (),
) -> tuple[list[str], FinishReason]:
    stream = OutputStream(rule, Detokenizer(tokenizer).stream(prompt, skip_special_tokens=skip))
    texts = []
    for token in token_ids:
        text, reason = stream.push(token)
        texts.append(text)
        if reason is not FinishReason.NONE:
            return texts, reason
    return texts, FinishReason.NONE


def settled(tokenizer: Tokenizer, token_ids: list[int], *, skip: bool, prompt: Sequence[int] = ()) -> str:
    """Return the text that no later token can change, by the stream, which other tests verify."""
    stream = Detokenizer(tokenizer).stream(prompt, skip_special_tokens=skip)
    return "".join(stream.push(token) for token in token_ids)


def reference(
    rule: OutputRules, token_ids: list[int], tokenizer: Tokenizer, *, skip: bool
) -> tuple[str, int, FinishReason]:
    """Text, number of tokens and reason, from the whole output anew at each token."""
    stops = [stop.text for stop in rule.stop_strings]
    for count in range(1, len(token_ids) + 1):
        out, last = token_ids[:count], token_ids[count - 1]
        is_end = count > rule.min_tokens and last in rule.eos_token_ids | rule.stop_token_ids
        is_last = is_end or count == rule.limit
        shown = out[:-1] if is_end and not rule.include_stop else out
        is_decoded = tokenizer.decode(shown, skip_special_tokens=skip)
        text = is_decoded if is_last else settled(tokenizer, out, skip=skip)
        before = len(settled(tokenizer, token_ids[: count - 1], skip=skip))
        begins = [
            (begin, which)
            for which, stop in enumerate(stops)
            for begin in range(len(text))
            if text.startswith(stop, begin) and begin + len(stop) > before
        ]
        if begins and count >= rule.min_tokens and not (is_end and rule.include_stop):
            begin, which = min(begins)
            return text[: begin + len(stops[which]) * rule.include_stop], count, FinishReason.STOP
        if is_last:
            reason = FinishReason.LENGTH
            if is_end:
                reason = FinishReason.EOS if last in rule.eos_token_ids else FinishReason.STOP
            return text, count, reason
    raise AssertionError("the limit ends every output")


@settings(max_examples=600)
@given(
    st.data(),
    st.sampled_from(sorted(ALL)),
    st.lists(
        st.sampled_from(["a", "stop", "lo w", "漢", "ñ and", "\ufffd", "👍", " ", "ab", "<think>"]),
        max_size=3,
    ),
    st.integers(0, 8),
    st.booleans(),
    st.booleans(),
)
def test_text_and_end_equal_those_of_decoding_everything_each_time(
    data: st.DataObject, name: str, stops: list[str], min_tokens: int, include_stop: bool, skip: bool
) -> None:
    tokenizer = ALL[name]
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), min_size=1, max_size=20))
    ends = st.sets(st.sampled_from(token_ids), max_size=2).map(frozenset)
    eos, stop = data.draw(ends), data.draw(ends)
    rule = rules(len(token_ids), min_tokens, tuple(stops), eos, stop, include_stop)
    texts, reason = run(rule, token_ids, tokenizer, skip=skip)
    assert ("".join(texts), len(texts), reason) == reference(rule, token_ids, tokenizer, skip=skip)


@given(st.data(), st.lists(st.text(min_size=1, max_size=4), max_size=3), st.text(max_size=25))
def test_arbitrary_text_is_cut_before_the_first_stop_string(
    data: st.DataObject, stops: list[str], text: str
) -> None:
    token_ids = [token_id(ALL["gemma"], f"<0x{byte:02X}>") for byte in text.encode()]
    if not token_ids:
        return
    texts, reason = run(rules(len(token_ids), stops=tuple(stops)), token_ids, ALL["gemma"])
    # All bytes are one run here, so all of the text comes at once.
    begins = [text.find(stop) for stop in stops if stop in text]
    assert "".join(texts) == (text[: min(begins)] if begins else text)
    assert reason is (FinishReason.STOP if begins else FinishReason.LENGTH)


@given(st.data(), st.sampled_from(sorted(ALL)), st.lists(st.sampled_from(["a", "lo w", "ab"]), max_size=3))
def test_the_text_and_the_end_are_found_again_from_the_tokens_alone(
    data: st.DataObject, name: str, stops: list[str]
) -> None:
    """A router that resumes a generation does this: only the last token ends it."""
    tokenizer = ALL[name]
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), min_size=1, max_size=12))
    ends = tuple(data.draw(st.sets(st.sampled_from(token_ids), max_size=2)))
    min_tokens = data.draw(st.integers(0, 6))
    stop = StopRules(len(token_ids), min_tokens, tuple(stops), ends)
    rule, detokenizer = output_rules(stop, (), 1, 10_000), Detokenizer(tokenizer)
    prompt = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=3))
    texts, reason = run(rule, token_ids, tokenizer, prompt=prompt)
    for count in range(len(texts)):
        begun = beginning_of(prompt, token_ids[:count], stop, rule, detokenizer)
        assert begun == Beginning("".join(texts[:count]), FinishReason.NONE, None)
    whole = beginning_of(prompt, token_ids[: len(texts)], stop, rule, detokenizer)
    found, match = whole.reason, whole.matched
    assert (whole.text, found) == ("".join(texts), reason)
    last = token_ids[len(texts) - 1]
    by_token = [Matched(stop_token_id=last)] if last in ends else []
    by_string = [
        Matched(stop_string=entry)
        for entry in stops
        if entry in settled(tokenizer, token_ids, skip=True, prompt=prompt)
    ]
    assert match in (by_token + by_string if reason is FinishReason.STOP else [None])


def ids(text: str) -> list[int]:
    return [LETTERS[letter] for letter in text]


def test_an_end_token_counts_and_is_not_shown() -> None:
    for rule, reason in (
        (rules(eos=frozenset([EOS])), FinishReason.EOS),
        (rules(stop=frozenset([EOS])), FinishReason.STOP),
    ):
        assert run(rule, [*ids("ab"), EOS, *ids("c")]) == (["a", "b", ""], reason)
    ends_with_text = rules(stop=frozenset(ids("c")))
    assert run(ends_with_text, ids("abcd")) == (["a", "b", ""], FinishReason.STOP)


def test_what_ends_a_choice_is_shown_if_asked_for() -> None:
    eos, at_c = frozenset([EOS]), frozenset(ids("c"))
    for rule, token_ids, skip, texts in (
        (rules(eos=eos, include_stop=True), [*ids("ab"), EOS], True, ["a", "b", ""]),
        (rules(eos=eos, include_stop=True), [*ids("ab"), EOS], False, ["a", "b", "<eos>"]),
        (rules(eos=eos), [*ids("ab"), EOS], False, ["a", "b", ""]),
        (rules(stop=at_c, include_stop=True), ids("abcd"), True, ["a", "b", "c"]),
        (rules(stops=("bc",), include_stop=True), ids("abcd"), True, ["a", "b", "c"]),
        (rules(stops=("bc",)), ids("abcd"), True, ["a", "", ""]),
        (rules(stops=("<eos>",)), [*ids("a"), EOS, *ids("b")], False, ["a", ""]),
    ):
        assert run(rule, token_ids, skip=skip)[0] == texts


def test_held_text_comes_with_the_row_that_ends_the_choice() -> None:
    rule = rules(limit=4, stops=("bcX",), eos=frozenset([EOS]))
    assert run(rule, [*ids("abc"), EOS]) == (["a", "", "", "bc"], FinishReason.EOS)
    assert run(rule, ids("aabc")) == (["a", "a", "", "bc"], FinishReason.LENGTH)


@pytest.mark.parametrize(("min_tokens", "num_tokens"), [(0, 2), (2, 2), (3, 5), (6, 6)])
def test_a_stop_string_counts_from_min_tokens_on(min_tokens: int, num_tokens: int) -> None:
    texts, reason = run(rules(limit=6, min_tokens=min_tokens, stops=("b",)), ids("abaabb"))
    assert len(texts) == num_tokens
    assert reason is FinishReason.STOP


def test_the_context_limits_the_output() -> None:
    stop = StopRules(max_tokens=50)
    assert output_rules(stop, (), prompt_tokens=90, max_context=100).limit == 10
    assert output_rules(stop, (), prompt_tokens=10, max_context=100).limit == 50
    assert output_rules(replace(stop, ignore_eos=True), (EOS,), 10, 100).eos_token_ids == frozenset()


def test_without_a_tokenizer_there_are_ends_but_no_text() -> None:
    stream = OutputStream(rules(limit=3, eos=frozenset([EOS])), None)
    assert [stream.push(7) for _ in range(3)] == [("", 0), ("", 0), ("", FinishReason.LENGTH)]
