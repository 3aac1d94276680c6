"""Stop strings in reasoning do not count, however the text comes, and those behind it do."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from model_output.text.detokenizer import Detokenizer
from model_output.text.output import OutputStream, beginning_of, output_rules
from model_output.text.reasoning import ReasoningEnd
from scheduling.request import FinishReason, Matched, StopRules
from tests.model_output.formats.drawing import CUTS, cut
from tests.model_output.text.test_output import BYTES, settled
from tests.model_output.text.tokenizers_zoo import token_id

OPENS, CLOSES = ("<think>", "<thought>"), ("</think>", "</thought>")
TEXTS = st.lists(
    st.sampled_from([*OPENS, *CLOSES, "<th", "</", "think>", "\n", " ", "a", "b", "<"]), max_size=8
).map("".join)
STOP = StopRules(1000, stop_strings=("\n\n", "ab", "<b"))


class Pieces:
    """Text by itself: token `n` is the piece at `n`."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    def push(self, token_id: int) -> str:
        return self._pieces[token_id]

    def flush(self) -> str:
        return ""


def told(stop: StopRules, pieces: list[str]) -> tuple[str, FinishReason, int | None]:
    """Return the text of pieces that come with a token each; the limit of tokens is just reached."""
    rules = output_rules(replace(stop, max_tokens=len(pieces)), (), 1, 10_000)
    output, text = OutputStream(rules, Pieces(pieces)), ""
    for place in range(len(pieces)):
        more, reason = output.push(place)
        text += more
        if reason is not FinishReason.NONE:
            break
    return text, reason, output.stop_place


def split(text: str, *, is_open: bool) -> tuple[str, str]:
    """Return reasoning, with its markers and the white space behind it, and the answer."""
    begun = text.lstrip()
    if not is_open and not begun.startswith(OPENS):
        return "", text
    ends = [(at, at + len(marker)) for marker in CLOSES if (at := text.find(marker)) >= 0]
    end = min(ends)[1] if ends else len(text)
    answer = text[end:].lstrip()
    return text[: len(text) - len(answer)], answer


@given(TEXTS, CUTS, st.booleans(), st.booleans())
def test_the_answer_ends_as_it_would_alone(
    text: str, places: list[int], is_open: bool, include_stop: bool
) -> None:
    stop = replace(
        STOP,
        include_stop=include_stop,
        reasoning_opens=() if is_open else OPENS,
        reasoning_closes=CLOSES,
    )
    thought, answer = split(text, is_open=is_open)
    expected, reason, place = told(replace(STOP, include_stop=include_stop), list(answer) or [""])
    for pieces in (cut(text, places), list(text) or [""]):
        found = told(stop, pieces)
        if reason is FinishReason.STOP and len(pieces) == len(text):
            assert found == (thought + expected, reason, place)
        elif reason is FinishReason.STOP:
            assert found[1] is reason
            assert found[0].startswith(thought)
        else:
            assert found == (text, FinishReason.LENGTH, None)


@given(TEXTS, CUTS, st.booleans())
def test_reasoning_is_told_at_once_and_no_text_is_lost(text: str, places: list[int], is_open: bool) -> None:
    end, thought, answer = ReasoningEnd(() if is_open else OPENS, CLOSES), "", ""
    for piece in cut(text, places):
        if end.is_over:
            answer += piece
        else:
            more, rest = end.push(piece)
            thought, answer = thought + more, answer + rest
        assert end.is_over or not answer
    answer += end.flush()
    assert (thought, answer) == split(text, is_open=is_open)


def test_routers_find_the_same_end() -> None:
    text = "so\n\n</think>\n\nyes\n\nno"
    stop = replace(STOP, stop_strings=("\n\n",), reasoning_closes=CLOSES)
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    token_ids = [token_id(BYTES, character) for character in spell.pre_tokenize_str(text)[0][0]]
    rules, detokenizer = output_rules(stop, (), 1, 10_000), Detokenizer(BYTES)
    counts = range(len(token_ids) + 1)
    begun = [beginning_of((), token_ids[:count], stop, rules, detokenizer) for count in counts]
    reasons = [(found.reason, found.matched) for found in begun]
    place = next(count for count in range(len(token_ids)) if reasons[count][0] is not FinishReason.NONE)
    assert settled(BYTES, token_ids[:place], skip=True) == "so\n\n</think>\n\nyes\n\n"
    assert reasons[place] == (FinishReason.STOP, Matched(stop_string="\n\n"))
