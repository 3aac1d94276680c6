"""Rows are taken with everything that belongs to them."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from scheduling.columns import PromptLogprobs, TokenColumns, take_rows

Row = tuple[int, int, int, int, int, bytes, tuple[float, list[tuple[int, float]]] | None, int | None]

tops = st.lists(st.tuples(st.integers(0, 99), st.floats(-9, 0)), max_size=3)
rows_of_all_kinds = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(0, 3),
        st.integers(0, 99),
        st.integers(0, 99),
        st.integers(0, 3),
        st.binary(max_size=3),
        st.none() | st.tuples(st.floats(-9, 0), tops),
        st.none() | st.integers(0, 15),
    ),
    max_size=8,
)


def columns_of(rows: list[Row]) -> TokenColumns:
    columns = TokenColumns(
        handles=[row[0] for row in rows],
        choices=[row[1] for row in rows],
        indexes=[row[2] for row in rows],
        token_ids=[row[3] for row in rows],
        finish_reasons=[row[4] for row in rows],
    )
    text = b"".join(row[5] for row in rows)
    if text:
        columns.text_utf8, columns.text_lengths = text, [len(row[5]) for row in rows]
    with_logprobs = [(place, row[6]) for place, row in enumerate(rows) if row[6] is not None]
    columns.logprob_rows = [place for place, _ in with_logprobs]
    columns.logprobs = [logprob for _, (logprob, _) in with_logprobs]
    columns.top_counts = [len(top) for _, (_, top) in with_logprobs]
    columns.top_token_ids = [token_id for _, (_, top) in with_logprobs for token_id, _ in top]
    columns.top_logprobs = [logprob for _, (_, top) in with_logprobs for _, logprob in top]
    columns.stop_rows = [place for place, row in enumerate(rows) if row[7] is not None]
    columns.stop_places = [row[7] for row in rows if row[7] is not None]
    return columns


@given(rows_of_all_kinds, st.data())
def test_taking_rows_is_the_same_as_never_having_had_the_others(rows: list[Row], data: st.DataObject) -> None:
    kept = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1)))) if rows else []
    taken = take_rows(columns_of(rows), kept, [rows[row][0] for row in kept])
    expected = columns_of([rows[row] for row in kept])
    for field in fields(TokenColumns):
        assert getattr(taken, field.name) == getattr(expected, field.name), field.name


@given(st.integers(1, 5), st.integers(0, 6), st.integers(0, 3), st.integers(0, 14))
def test_prompt_logprobs_are_cut_with_their_alternatives(
    first_index: int, count: int, num_top: int, index: int
) -> None:
    def piece(indexes: range) -> PromptLogprobs:
        tops = [entry for entry in indexes for _ in range(num_top)]
        return PromptLogprobs(7, indexes.start, [*indexes], num_top, tops, tops)

    whole = piece(range(first_index, first_index + count))
    assert whole.next_index == first_index + count
    kept = whole.from_index(index)
    assert kept.next_index == max(whole.next_index, index)
    assert kept == piece(range(max(first_index, index), max(whole.next_index, index)))
