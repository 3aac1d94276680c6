"""Every error names a reason of the contract, and the contract says what a client does about each."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

from baton.operators.v1 import fleet_pb2
from baton.v1 import errors_pb2, generation_pb2, inference_pb2
from router.api.status import CODES
from router.errors import Reason
from router.links.shell import Shell
from tests.router.calls import PROMPT, details_of, events_of, fields_of, reason_of, request, value_at
from tests.router.conftest import RunningFleet
from tools.house.source_tree import ROOT

WHAT_TO_DO = ("Give up", "Retry", "Resume")
GOOD = inference_pb2.GenerateRequest(tokens=inference_pb2.TokenInput(token_ids=PROMPT))


def contract() -> dict[str, str]:
    """Return the contract's comment on each reason, in one line."""
    text = (ROOT / "proto/baton/v1/errors.proto").read_text(encoding="utf-8")
    [body] = re.findall(r"^enum ErrorReason \{\n(.*?)^\}", text, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"((?:^  //.*\n)+)^  (\w+) = \d+;", body, flags=re.MULTILINE)
    return {name: " ".join(re.findall(r"^  // (.*)$", said, flags=re.MULTILINE)) for said, name in found}


def documented() -> dict[str, tuple[str, str]]:
    """Return the status and the action that the documented table has for each reason."""
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| [^|]+ \| [^|]+ \| ([^|]+) \|$", text, flags=re.MULTILINE)
    return {reason: (status, action) for reason, status, action in rows}


def test_the_contract_lists_exactly_the_reasons_that_errors_carry() -> None:
    names = ["ERROR_REASON_UNSPECIFIED", *(reason.name for reason in Reason)]
    assert list(errors_pb2.ErrorReason.keys()) == names
    assert [errors_pb2.ErrorReason.Value(reason.name) for reason in Reason] == [
        entry.value for entry in Reason
    ]
    assert set(CODES) == set(Reason)


def test_every_reason_is_one_that_some_code_raises() -> None:
    used = set()
    for path in (ROOT / "router").rglob("*.py"):
        if path.name == "status.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used |= {node.attr} if node.value.id == "Reason" else set()
    assert used == {reason.name for reason in Reason}


@pytest.mark.parametrize("reason", Reason)
def test_the_contract_and_the_documents_say_status_and_what_to_do(reason: Reason) -> None:
    said = contract()[reason.name]
    status = CODES[reason].name
    assert said.startswith(f"{status}. ")
    action = next(entry for entry in WHAT_TO_DO if f". {entry}" in said)
    assert documented()[reason.name] == (status, action.lower())


def test_the_documents_list_no_other_reasons() -> None:
    assert set(documented()) == {reason.name for reason in Reason}


INFERENCE = "/baton.v1.InferenceService/"
METHODS = {
    f"/{service.full_name}/{method.name}": method.input_type
    for file in (inference_pb2.DESCRIPTOR, fleet_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
}
TRUNCATED = b"\x0a\xff\xff"
LONE_SURROGATE = b"\x0a\x05a\xed\xa0\x80b"
"""In the first field, if that is text."""


async def raw_error(fleet: RunningFleet, method: str, data: bytes) -> grpc.aio.AioRpcError:
    """The error that bytes end a call with."""
    async with grpc.aio.insecure_channel(fleet.address) as channel:
        start: Any = channel.unary_stream(method)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in start(data):
                pass
    return caught.value


@pytest.mark.integration
@pytest.mark.parametrize("method", METHODS)
async def test_bytes_that_are_no_message_are_the_callers_mistake(
    fleet: RunningFleet, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = METHODS[method].fields_by_number.get(1)
    is_text = first is not None and first.cpp_type == first.CPPTYPE_STRING
    for data in (TRUNCATED, LONE_SURROGATE) if is_text else (TRUNCATED,):
        error = await raw_error(fleet, method, data)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert reason_of(error) == "MALFORMED_MESSAGE"
        assert "UTF-8" in (error.details() or "")
    assert "Traceback" not in caplog.text
    assert not caplog.records


@pytest.mark.integration
async def test_calls_that_do_not_exist_are_named(fleet: RunningFleet) -> None:
    for method in (f"{INFERENCE}Imagine", "/baton.v2.InferenceService/Generate"):
        error = await raw_error(fleet, method, b"")
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert reason_of(error) == "UNKNOWN_METHOD"
        assert method in (error.details() or "")


@pytest.mark.integration
async def test_a_bug_of_the_router_is_an_internal_error_that_says_so(
    fleet: RunningFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Shell, _outbox: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(Shell, "open_stream", fail)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events_of(fleet.inference.Generate(request()))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert reason_of(caught.value) == "INTERNAL_ERROR"
    assert "secret" not in str(caught.value)


def wrong(**fields: Any) -> inference_pb2.GenerateRequest:
    """A good request but for these fields."""
    made = inference_pb2.GenerateRequest()
    made.CopyFrom(GOOD)
    made.MergeFrom(inference_pb2.GenerateRequest(**fields))
    return made


def sampled(**fields: Any) -> inference_pb2.GenerateRequest:
    return wrong(sampling=generation_pb2.SamplingParams(**fields))


def resumption(**fields: Any) -> inference_pb2.ResumeRequest:
    given: dict[str, Any] = {"request": wrong(request_id="r"), "session": 1} | fields
    return inference_pb2.ResumeRequest(**given)


def received(*token_ids: int, choice: int = 0) -> inference_pb2.ReceivedTokens:
    return inference_pb2.ReceivedTokens(choice=choice, token_ids=token_ids)


WRONG: list[tuple[str, Any, list[str]]] = [
    ("Generate", sampled(top_p=1.01), ["sampling.top_p"]),
    ("Generate", sampled(logit_bias={50257: 1.0}), ["sampling.logit_bias[50257]"]),
    ("Generate", inference_pb2.GenerateRequest(), ["text", "chat", "tokens"]),
    ("GenerateOnce", inference_pb2.GenerateOnceRequest(request=sampled(n=17)), ["request.sampling.n"]),
    (
        "GenerateOnce",
        inference_pb2.GenerateOnceRequest(),
        ["request.text", "request.chat", "request.tokens"],
    ),
    ("Quote", inference_pb2.QuoteRequest(request=wrong(model="other")), ["request.model"]),
    ("Quote", inference_pb2.QuoteRequest(request=sampled(n=17)), ["request.sampling.n"]),
    ("Resume", resumption(request=GOOD), ["request.request_id"]),
    ("Resume", resumption(session=0), ["session"]),
    ("Resume", resumption(request=wrong(request_id="r", tenant="\n")), ["request.tenant"]),
    ("Resume", resumption(received=[received(5, choice=1)]), ["received[0].choice"]),
    (
        "Resume",
        resumption(
            request=wrong(request_id="r", sampling=generation_pb2.SamplingParams(n=2)),
            received=[received(5), received(5, 6, 7, 128, choice=1)],
        ),
        ["received[1].token_ids[3]"],
    ),
    ("Cancel", inference_pb2.CancelRequest(), ["request_id"]),
    ("Detokenize", inference_pb2.DetokenizeRequest(token_ids=[5, 128]), ["token_ids[1]"]),
    ("Detokenize", inference_pb2.DetokenizeRequest(token_ids=[5] * 8193), ["token_ids"]),
    ("CountTokens", inference_pb2.CountTokensRequest(), ["text", "chat"]),
    ("CountTokens", inference_pb2.CountTokensRequest(chat=inference_pb2.ChatInput()), ["chat.messages"]),
    ("Watch", fleet_pb2.WatchRequest(interval_ms=1), ["interval_ms"]),
]


@pytest.mark.integration
@pytest.mark.parametrize(("method", "message", "paths"), WRONG)
async def test_wrong_fields_are_named_by_their_path_in_the_message(
    fleet: RunningFleet, method: str, message: Any, paths: list[str]
) -> None:
    call: Callable[[Any], Any] = getattr(fleet.operators if method == "Watch" else fleet.inference, method)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (events_of(call(message)) if method in ("Generate", "Resume", "Watch") else call(message))
    assert fields_of(caught.value) == paths
    for path in paths:
        value_at(message, path)
    assert (caught.value.details() or "").startswith(f"{paths[0]} is ")
    assert details_of(caught.value)["google.rpc.ErrorInfo"].metadata["field"] == paths[0]
