"""Every call that makes work is paid for by its tenant, whatever comes of it."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from baton.security.auth_file import add_key, new_api_key
from baton.v1 import generation_pb2, inference_pb2
from router.auth.auth import Auth
from router.intake.helpers.tokenizer_pool import TokenizerPool
from router.intake.model_facts import ModelFacts
from tests.router.api.served import served
from tests.router.conftest import RunningFleet

pytestmark = pytest.mark.integration

TOO_LONG = inference_pb2.GenerateRequest(text="w5 " * 50_000)
"""Longer than the model's context: it is tokenised, and then refused."""
CALLS: dict[str, Message] = {
    "ListModels": inference_pb2.ListModelsRequest(),
    "CountTokens": inference_pb2.CountTokensRequest(text="w5"),
    "Detokenize": inference_pb2.DetokenizeRequest(token_ids=[5]),
    "Quote": inference_pb2.QuoteRequest(request=TOO_LONG),
    "GenerateOnce": inference_pb2.GenerateOnceRequest(request=TOO_LONG),
}
TOKENISING: dict[str, Message] = {
    "CountTokens": inference_pb2.CountTokensRequest(text=TOO_LONG.text),
    "Detokenize": inference_pb2.DetokenizeRequest(token_ids=[5] * 60),
    "Quote": CALLS["Quote"],
    "GenerateOnce": CALLS["GenerateOnce"],
}
SERVED, REFUSED, OVER = (
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


async def outcomes(
    fleet: RunningFleet,
    pool: TokenizerPool,
    facts: ModelFacts,
    folder: Path,
    calls: list[tuple[str, Message]],
    **budget: float,
) -> list[grpc.StatusCode]:
    """Return how calls of a tenant with this budget end."""
    path, key = folder / "auth.json", new_api_key()
    add_key(path, key, "acme", budget=budget)
    found = []
    async with served(fleet, pool, facts, Auth(path, fleet.store), 1024) as stub:
        for name, request in calls:
            try:
                await getattr(stub, name)(request, metadata=(("authorization", f"Bearer {key}"),))
            except grpc.aio.AioRpcError as error:
                found.append(error.code())
            else:
                found.append(SERVED)
    return found


@pytest.mark.parametrize("name", CALLS)
async def test_every_call_counts_as_a_request(
    name: str, fleet: RunningFleet, pool: TokenizerPool, facts: ModelFacts, tmp_path: Path
) -> None:
    twice = [(name, CALLS[name])] * 2
    found = await outcomes(fleet, pool, facts, tmp_path, twice, requests_per_s=0.001, request_burst=1)
    assert found[0] in (SERVED, REFUSED)
    assert found[1] is OVER


@pytest.mark.parametrize("name", TOKENISING)
async def test_what_is_tokenised_costs_tokens_whatever_comes_of_it(
    name: str, fleet: RunningFleet, pool: TokenizerPool, facts: ModelFacts, tmp_path: Path
) -> None:
    """A budget of one token is in debt after it, and pays before the next text is tokenised."""
    twice = [(name, TOKENISING[name])] * 2
    found = await outcomes(fleet, pool, facts, tmp_path, twice, tokens_per_s=0.001, token_burst=1)
    assert found[0] in (SERVED, REFUSED)
    assert found[1] is OVER


async def test_asking_for_the_tenant_alone_counts_as_nothing(
    fleet: RunningFleet, pool: TokenizerPool, facts: ModelFacts, tmp_path: Path
) -> None:
    own = inference_pb2.ListModelsRequest(tenant_only=True)
    calls: list[tuple[str, Message]] = [("ListModels", own)] * 3
    found = await outcomes(fleet, pool, facts, tmp_path, calls, requests_per_s=0.001, request_burst=1)
    assert found == [SERVED] * 3


async def test_a_request_that_is_sent_again_is_the_same_request(
    fleet: RunningFleet, pool: TokenizerPool, facts: ModelFacts, tmp_path: Path
) -> None:
    def named(request_id: str, text: str = TOO_LONG.text) -> tuple[str, Message]:
        generate = inference_pb2.GenerateRequest(text=text, request_id=request_id)
        return "GenerateOnce", inference_pb2.GenerateOnceRequest(request=generate)

    calls = [named("a"), named("a"), named("a", TOO_LONG.text + "w6"), named("b")]
    found = await outcomes(fleet, pool, facts, tmp_path, calls, requests_per_s=0.001, request_burst=1)
    assert found == [REFUSED, REFUSED, OVER, OVER], "another text or id is another request"


async def test_a_refused_call_gets_back_what_it_paid(
    fleet: RunningFleet, pool: TokenizerPool, facts: ModelFacts, tmp_path: Path
) -> None:
    """No worker is there, so each waits for its TTFT at most."""

    def asked(number: int) -> tuple[str, Message]:
        slo = generation_pb2.Slo(ttft_ms=1)
        generate = inference_pb2.GenerateRequest(
            text="w5 w6", request_id=f"{number}", slo=slo, stop=generation_pb2.StopRules(max_tokens=40)
        )
        return "GenerateOnce", inference_pb2.GenerateOnceRequest(request=generate)

    calls = [asked(number) for number in range(5)]
    found = await outcomes(fleet, pool, facts, tmp_path, calls, tokens_per_s=0.001, token_burst=50)
    assert found == [grpc.StatusCode.UNAVAILABLE] * 5
