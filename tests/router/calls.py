"""What clients ask of a router whose workers are scripted, and what they hear."""

from __future__ import annotations

from baton.v1 import generation_pb2, inference_pb2
from tests.router.scripted_worker import token_at

PROMPT = (5, 6, 7, 8, 9)


def request(max_tokens: int = 5, request_id: str = "", **fields: object) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        request_id=request_id,
        tokens=inference_pb2.TokenInput(token_ids=PROMPT),
        stop=generation_pb2.StopRules(max_tokens=max_tokens),
        **fields,  # type: ignore[arg-type]  # what a field takes is checked by the message
    )


def expected(count: int, choice: int = 0, first: int = 0) -> list[int]:
    return [token_at(PROMPT, choice, index) for index in range(first, first + count)]


async def events_of(call: object) -> list[inference_pb2.GenerationEvent]:
    return [response.event async for response in call]  # type: ignore[attr-defined]  # a call is an async iterable


def tokens_of(events: list[inference_pb2.GenerationEvent], choice: int = 0) -> list[int]:
    found: list[int] = []
    for event in events:
        if event.WhichOneof("event") == "tokens" and event.tokens.choice == choice:
            assert event.tokens.first_index == len(found)
            found.extend(event.tokens.token_ids)
    return found


def finished_of(events: list[inference_pb2.GenerationEvent]) -> inference_pb2.Finished:
    assert events[-1].WhichOneof("event") == "finished"
    return events[-1].finished
