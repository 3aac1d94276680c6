"""Messages of GenerateMany, whose tokens are columns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.v1 import inference_pb2
from baton.wire.rows import Heard, event_of, parts_of
from baton.wire.transport import Row

ROWS = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.integers(0, 3),
        st.lists(st.integers(0, 2**31), min_size=1),
        st.text(),
        st.lists(st.text(), max_size=3),
    )
)


@given(ROWS, st.data())
def test_events_come_out_of_the_columns_as_they_went_in(
    rows: list[tuple[int, int, list[int], str, list[str]]], data: st.DataObject
) -> None:
    message = inference_pb2.GenerateManyResponse()
    said: list[tuple[int, object]] = []
    for row, (generation_id, choice, token_ids, text, contents) in enumerate(rows):
        if data.draw(st.booleans()):
            message.events.add(id=generation_id, after_rows=row).generation.queued.position = row
            said.append((generation_id, row))
        _add_row(message.tokens, generation_id, choice, token_ids, text, contents)
        said.append((generation_id, (choice, tuple(token_ids), text, contents)))
    if not message.tokens.deltas:
        del message.tokens.num_deltas[:]
    assert [(generation_id, _plain(heard)) for generation_id, heard in events_in(message)] == said


@pytest.mark.parametrize(
    "column", ["ids", "choices", "num_tokens", "text_lengths", "token_ids", "num_deltas"]
)
def test_columns_that_do_not_fit_each_other_are_refused(column: str) -> None:
    message = inference_pb2.GenerateManyResponse()
    _add_row(message.tokens, 1, 0, [5, 6], "ab", ["a", "b"])
    getattr(message.tokens, column).append(1)
    with pytest.raises(ValueError, match=r"argument|tokens and"):
        events_in(message)


def test_an_event_after_more_rows_than_there_are_is_refused() -> None:
    message = inference_pb2.GenerateManyResponse()
    message.events.add(id=1, after_rows=1)
    with pytest.raises(ValueError, match="after row 1 of 0"):
        events_in(message)


def _add_row(
    rows: inference_pb2.TokenRows,
    generation_id: int,
    choice: int,
    token_ids: list[int],
    text: str,
    contents: list[str],
) -> None:
    rows.ids.append(generation_id)
    rows.choices.append(choice)
    rows.first_indexes.append(0)
    rows.num_tokens.append(len(token_ids))
    rows.token_ids.extend(token_ids)
    rows.text_lengths.append(len(text.encode()))
    rows.text_utf8 += text.encode()
    rows.num_deltas.append(len(contents))
    rows.deltas.extend(inference_pb2.Delta(content=content) for content in contents)


def events_in(message: inference_pb2.GenerateManyResponse) -> list[tuple[int, Heard]]:
    return [(each, event_of(part) if isinstance(part, Row) else part) for each, part in parts_of(message)]


def _plain(heard: Heard) -> object:
    assert isinstance(heard, inference_pb2.GenerateResponse)
    if heard.event.HasField("queued"):
        return heard.event.queued.position
    found = heard.event.tokens
    contents = [delta.content for delta in found.deltas]
    return found.choice, tuple(found.token_ids), found.text, contents
