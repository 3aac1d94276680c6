"""Read the messages of GenerateMany: rows of tokens in columns, and other events between them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TypeAlias

from google.rpc import status_pb2

from baton.v1 import inference_pb2
from baton.wire.transport import Row

Heard: TypeAlias = "inference_pb2.GenerateResponse | status_pb2.Status"
"""An event of a generation, or the status that ends it in place of its `Finished`."""


def parts_of(response: inference_pb2.GenerateManyResponse) -> Iterator[tuple[int, Heard | Row]]:
    """Yield a message's events and rows with the ids of their generations, in order.

    Raises `ValueError` if the columns of its tokens do not fit each other.
    """
    rows = _rows_in(response.tokens)
    taken = 0
    for event in response.events:
        if event.after_rows > len(response.tokens.ids):
            raise ValueError(f"an event after row {event.after_rows} of {len(response.tokens.ids)}")
        if event.after_rows > taken:
            yield from islice(rows, event.after_rows - taken)
            taken = event.after_rows
        if event.WhichOneof("event") == "status":
            yield event.id, status_pb2.Status.FromString(event.status)
        else:
            yield event.id, inference_pb2.GenerateResponse(event=event.generation)
    yield from rows


def _rows_in(rows: inference_pb2.TokenRows) -> Iterator[tuple[int, Row]]:
    # Lists: to iterate over a field of protobuf's costs three times as much.
    token_ids, text, deltas = list(rows.token_ids), rows.text_utf8, list(rows.deltas)
    columns = zip(
        list(rows.ids),
        list(rows.choices),
        list(rows.first_indexes),
        list(rows.num_tokens),
        list(rows.text_lengths),
        list(rows.num_deltas) or [0] * len(rows.ids),
        strict=True,
    )
    token_at = text_at = delta_at = 0
    for generation_id, choice, first_index, num_tokens, text_length, num_deltas in columns:
        token_end, text_end, delta_end = token_at + num_tokens, text_at + text_length, delta_at + num_deltas
        yield (
            generation_id,
            Row(
                choice,
                first_index,
                token_ids[token_at:token_end],
                text[text_at:text_end].decode(),
                deltas[delta_at:delta_end],
            ),
        )
        token_at, text_at, delta_at = token_end, text_end, delta_end
    if (token_at, text_at, delta_at) != (len(token_ids), len(text), len(deltas)):
        raise ValueError(
            f"{len(token_ids)} tokens and {len(text)} bytes, with {len(deltas)} deltas; "
            f"{token_at}, {text_at} and {delta_at} have rows"
        )


def event_of(row: Row) -> inference_pb2.GenerateResponse:
    """Return a row as the event that it would be on a call of its own."""
    response = inference_pb2.GenerateResponse()
    tokens = response.event.tokens
    tokens.choice = row.choice
    tokens.first_index = row.first_index
    tokens.token_ids.extend(row.token_ids)
    tokens.text = row.text
    tokens.deltas.extend(row.deltas)
    return response
