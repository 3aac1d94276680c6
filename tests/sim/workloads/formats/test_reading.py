"""Every format is read back as it was written, plain or gzipped; a damaged row is refused by its line."""

from __future__ import annotations

import gzip
import io
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.workloads.formats.reading import FORMATS, find_format, requests, text_lines
from sim.workloads.trace import TraceError, TraceRequest
from tests.sim.workloads.formats.written import WRITERS

MILLION = 1_000_000
MOST_GROWTH_BYTES = 32 * 2**20
"""A row that is kept takes 200 bytes at least, which are 200 MB for a million of them."""


@st.composite
def traces(draw: st.DrawFn, name: str) -> list[TraceRequest]:
    """Draw requests that this format can hold, with times in whole milliseconds."""
    at_ms, drawn = 0, []
    low = 1 if name == "baton" else 0
    for _ in range(draw(st.integers(1, 5))):
        prompt = draw(st.integers(low, 3000))
        blocks: tuple[int, ...] = ()
        if name == "mooncake":
            count = -(-prompt // 512)
            blocks = tuple(draw(st.lists(st.integers(0, 2**63 - 1), min_size=count, max_size=count)))
        drawn.append(
            TraceRequest(
                at_ms / 1000,
                prompt,
                draw(st.integers(low, 500)),
                shared_blocks=blocks,
                shared_block_tokens=512 if blocks else 0,
            )
        )
        at_ms += draw(st.integers(0, 10_000_000))
    return drawn


CASES = st.sampled_from(sorted(FORMATS)).flatmap(lambda name: st.tuples(st.just(name), traces(name)))


def read(data: bytes, name: str | None = None) -> tuple[str, list[TraceRequest]]:
    kind, lines = find_format(text_lines(cast(io.RawIOBase, io.BytesIO(data))), name)
    return kind.name, list(requests(lines, kind))


def told(request: TraceRequest) -> TraceRequest:
    """Leave out what sums of seconds have behind the microseconds."""
    return replace(request, at_s=round(request.at_s, 6))


@given(case=CASES, is_named=st.booleans())
def test_a_trace_is_read_back_plain_and_gzipped(case: tuple[str, list[TraceRequest]], is_named: bool) -> None:
    name, trace = case
    data = "".join(WRITERS[name](trace)).encode()
    for packed in (data, gzip.compress(data)):
        kind, again = read(packed, name if is_named else None)
        assert kind == name
        assert list(map(told, again)) == trace


HEAD = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n",
    "mooncake": '{"timestamp": 7000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n',
    "baton": '{"index": 0, "at_s": 7, "prompt_tokens": 10, "output_tokens": 2}\n',
}


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("azure", "2023-11-16 18:15:47,3.5,44", "ContextTokens is '3.5'; accepted: an integer from 0"),
        ("azure", "2023-11-16 18:15:47,,44", "ContextTokens is ''; accepted"),
        ("azure", "2023-11-16 18:15:47,374,-4", "GeneratedTokens is '-4'; accepted"),
        ("azure", f"2023-11-16 18:15:47,374,{'9' * 5000}", "GeneratedTokens is '999"),
        ("azure", "2023-11-16 18:15:47,374,²", "GeneratedTokens is '²'; accepted"),
        ("azure", "yesterday,374,44", "TIMESTAMP is 'yesterday'; accepted: a time such as 2023-11-16 18"),
        ("azure", "2023-11-16 18:15:46,374,44", "TIMESTAMP is -0.68059; accepted: from 0, the time of"),
        ("azure", "2023-11-16 18:15:47,374", "the number of columns is 2; accepted: 3, as in the header"),
        ("azure", "", "the number of columns is 1; accepted: 3"),
        ("burstgpt", "6,GPT-4,1,2,3", "the number of columns is 5; accepted: 6"),
        ("burstgpt", "-6,GPT-4,1,2,3,API log", "Timestamp is '-6'; accepted: a number of seconds from 0"),
        ("burstgpt", "nan,GPT-4,1,2,3,API log", "Timestamp is 'nan'; accepted"),
        ("burstgpt", "4,GPT-4,1,2,3,API log", "Timestamp is -1.0; accepted: from 0, the time of the line"),
        ("burstgpt", "6,GPT-4,1,many,3,API log", "Response tokens is 'many'; accepted: an integer"),
        ("mooncake", "{}", "timestamp is None; accepted: milliseconds from 0"),
        ("mooncake", "7", "the line is '7'; accepted: a JSON object"),
        ("mooncake", '{"timestamp": 6000, "input_length": 1, "output_length": 1, "hash_ids": [1]}',
         "timestamp is 6.0; accepted: from 7, the time of the line before, in seconds of the trace"),
        ("mooncake", '{"timestamp": 1e400, "input_length": 1, "output_length": 1, "hash_ids": [1]}',
         "timestamp is inf; accepted"),
        ("mooncake", '{"timestamp": 7000, "input_length": true, "output_length": 1, "hash_ids": [1]}',
         "input_length is True; accepted: an integer from 0 to"),
        ("mooncake", '{"timestamp": 7000, "input_length": 513, "output_length": 1, "hash_ids": [1]}',
         "the number of hash_ids is 1; accepted: 2 for 513 tokens, one for each 512"),
        ("mooncake", '{"timestamp": 7000, "input_length": 5, "output_length": 1, "hash_ids": [-1]}',
         "hash_ids is [-1]; accepted: a list of integers from 0"),
        ("mooncake", '{"timestamp": 7000, "input_length": 5, "output_length": 1, "hash_ids": [1], "x": 3}',
         "x is 3; accepted: only timestamp, input_length, output_length, hash_ids"),
        ("baton", '{"index": 1, "at_s": 6, "prompt_tokens": 10, "output_tokens": 2}',
         "at_s is 6.0; accepted: from 7, the time of the line before"),
    ],
)  # fmt: skip
def test_a_damaged_row_is_refused_by_line_and_field(name: str, row: str, said: str) -> None:
    line = HEAD[name].count("\n") + 1
    with pytest.raises(TraceError) as raised:
        read(f"{HEAD[name]}{row}\n".encode())
    assert str(raised.value).startswith(f"line {line}: {said}")
    assert raised.value.line == line


def test_columns_are_found_by_their_names() -> None:
    data = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5.5,ab-12,3.2,ChatGPT,472,18,490,Conversation log\n"
        "7,,,GPT-4,0,0,0,API log\n"
    )
    kind, trace = read(data.encode())
    assert kind == "burstgpt"
    assert trace == [TraceRequest(0.0, 472, 18), TraceRequest(1.5, 0, 0)]


def test_times_with_a_zone_are_read() -> None:
    data = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,7,1\n"
    data += "2024-05-10 00:00:01.009930+00:00,8,2\n"
    assert read(data.encode()) == ("azure", [TraceRequest(0.0, 7, 1), TraceRequest(1.0, 8, 2)])


@pytest.mark.parametrize("first", ["", "7\n", "a,b\n", "TIMESTAMP,ContextTokens\n", '{"chat_id": 1}\n', "\n"])
def test_a_file_of_unknown_format_is_refused(first: str) -> None:
    with pytest.raises(TraceError, match=r"line 1: the line is .*; accepted: "):
        read(first.encode())


def test_a_format_that_is_stated_is_the_one_that_is_read() -> None:
    with pytest.raises(TraceError, match=r"line 1: the header is '{.*; accepted: TIMESTAMP,ContextTokens,"):
        read(HEAD["mooncake"].encode(), "azure")


def _endless(name: str) -> Iterator[str]:
    """Yield lines without end, all of one second."""
    if name == "baton":
        return (
            f'{{"index": {index}, "at_s": 7, "prompt_tokens": 10, "output_tokens": 2}}\n'
            for index in itertools.count()
        )
    first = HEAD[name].splitlines(keepends=True)
    return itertools.chain(first, itertools.repeat(first[-1]))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_million_rows_take_the_memory_of_a_few(name: str) -> None:
    kind, lines = find_format(_endless(name), None)
    rows = requests(lines, kind)
    next(rows)
    before = _resident_bytes()
    count = sum(1 for _ in itertools.islice(rows, MILLION // len(FORMATS)))
    assert count == MILLION // len(FORMATS)
    assert _resident_bytes() - before < MOST_GROWTH_BYTES


def test_lines_are_unpacked_while_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as packed:
        packed.writelines(itertools.islice(_endless("azure"), MILLION // 4))
    before = _resident_bytes()
    with path.open("rb", buffering=0) as file:
        assert sum(len(line) for line in text_lines(file)) > MOST_GROWTH_BYTES / 4
    assert _resident_bytes() - before < MOST_GROWTH_BYTES / 4
