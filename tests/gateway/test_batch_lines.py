"""Lines of a batch: checked, encoded and sent, each with a result of its own."""

from __future__ import annotations

import codecs
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.types import Model
from gateway.batches.calls import call, parse_line
from gateway.batches.lines import LineChecker
from gateway.batches.upload import _store_lines
from gateway.serving.errors import ApiError
from tests.gateway.batches import jsonl, line

MODEL = Model("demo_model", "llama", 4096, 300, True, "")


class Kept:
    """The pieces that an upload keeps."""

    def __init__(self) -> None:
        self.content = b""

    async def append(self, file_id: str, place: int, lines: bytes) -> None:
        self.content += lines


async def stored(content: bytes, max_line_bytes: int) -> tuple[int, bytes]:
    kept, checker = Kept(), LineChecker(lambda _: MODEL, max_line_bytes)
    await _store_lines(io.BytesIO(content), "file-1", kept, checker)  # type: ignore[arg-type]
    return checker.num_lines, kept.content


@given(st.integers(-3, 3), st.sampled_from([b"\r", b" ", b"\t"]), st.sampled_from([b"\n", b"\r\n", b""]))
async def test_each_line_that_is_checked_is_one_that_runs(more: int, padding: bytes, end: bytes) -> None:
    first, second = jsonl([line("a")])[:-1], jsonl([line("b")])
    longest = len(first) + 10
    content = first + padding * (10 + more) + end + second
    try:
        checked, kept = await stored(content, longest)
    except ApiError:
        return
    ran = [parse_line(n, data) for n, data in enumerate(filter(bytes.strip, kept.split(b"\n")))]
    assert [found.custom_id for found in ran] == ["a", "b"][:checked]
    assert not any(found.problem for found in ran)


@given(
    st.booleans(),
    st.lists(st.sampled_from([b"\n", b"\r\n", b" \n", b"\t\r\n"]), max_size=5).map(b"".join),
    st.sampled_from([b"", b" ", b"\r"]),
)
async def test_a_file_may_begin_with_a_mark_and_end_with_empty_lines(
    has_mark: bool, empty: bytes, end: bytes
) -> None:
    content = codecs.BOM_UTF8 * has_mark + jsonl([line("a"), line("b")]) + empty + end
    checked, kept = await stored(content, 1000)
    assert (checked, kept) == (2, content)
    ran = [parse_line(n, data) for n, data in enumerate(filter(bytes.strip, kept.split(b"\n")))]
    assert [(found.custom_id, found.problem) for found in ran] == [("a", ""), ("b", "")]


@pytest.mark.parametrize("begin", [b"\n", codecs.BOM_UTF8 + b"\n", jsonl([line("x")]) + b" \r\n\n"])
async def test_a_line_before_others_is_not_empty(begin: bytes) -> None:
    with pytest.raises(ApiError, match=r"line \d is empty; accepted: only lines at the end"):
        await stored(begin + jsonl([line("a")]), 1000)


async def test_a_mark_is_for_the_first_line_alone() -> None:
    with pytest.raises(ApiError, match="line 2: the body is not JSON"):
        await stored(jsonl([line("a")]) + codecs.BOM_UTF8 + jsonl([line("b")]), 1000)


async def test_padding_up_to_the_longest_line_hides_no_second_one() -> None:
    first = jsonl([line("a")])[:-1]
    content = first + b"\r" * 10 + jsonl([line("b")])
    with pytest.raises(ApiError, match=r"line 1: the line has \d+ bytes or more"):
        await stored(content, len(first) + 9)


@given(st.binary())
def test_a_line_that_cannot_be_read_has_a_problem(data: bytes) -> None:
    found = parse_line(3, data)
    assert found.number == 3
    assert found.problem.startswith("line 4 cannot be read")


async def test_an_exception_of_the_application_is_the_lines_own_failure() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"Internal Server Error"})
        raise RuntimeError

    reply = await call(app, "/v1/chat/completions", {}, {}, "acme")
    assert (reply.status, reply.body["error"]["type"]) == (500, "api_error")


async def test_a_body_is_sent_in_no_more_bytes_than_its_line() -> None:
    sent = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        sent.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    body = {"prompt": "夜のピクニック", "n": 1}
    await call(app, "/v1/completions", body, {}, "acme")
    assert sent == [json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()]
