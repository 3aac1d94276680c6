"""The way of a token is measured by the code that serves: every token of every step gets to its caller."""

from __future__ import annotations

import orjson

from benchmarks.costs.token_path import PIECES, STREAMS, TEXT, Way, section


def test_every_token_of_a_step_is_written_to_its_caller() -> None:
    way = Way(streams=3, seed=1)
    event = b"data: " + orjson.dumps({"choices": [{"index": 0, "text": TEXT}]}) + b"\n\n"
    for step in (1, 2, 3):
        assert len(way.step_us()) == len(PIECES)
        assert way.line.num_bytes == 3 * step * len(event)


def test_costs_are_by_token_and_add_up() -> None:
    costs = {piece: {streams: [1.0, 3.0, 2.0] for streams in STREAMS} for piece in PIECES}
    text = section(costs, steps=10).markdown()
    assert f"| {PIECES[0]} | 2.0 (1.0 – 3.0) |" in text
    assert "| all of it | 14.0 (7.0 – 21.0) |" in text
