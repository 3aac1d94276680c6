"""Convert protobuf messages that all services share to and from our own types."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from baton.worker.v1 import attempt_pb2, worker_pb2
from scheduling.columns import PromptLogprobs, TokenColumns
from scheduling.cost.cost_model import CostModel, StepShape
from scheduling.request import Fence


def field_values(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields by name, for a message that has the same fields."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def fence_to_pb(fence: Fence) -> attempt_pb2.Fence:
    return attempt_pb2.Fence(**field_values(fence))


def fence_from_pb(message: attempt_pb2.Fence) -> Fence:
    return Fence(
        tenant=message.tenant,
        request_id=message.request_id,
        session=message.session,
        attempt=message.attempt,
        choice=message.choice,
        source_incarnation=message.source_incarnation,
        target_incarnation=message.target_incarnation,
        router_id=message.router_id,
    )


def columns_to_pb(columns: TokenColumns) -> attempt_pb2.TokenColumns:
    return attempt_pb2.TokenColumns(**field_values(columns))


def columns_from_pb(message: attempt_pb2.TokenColumns) -> TokenColumns:
    """Return the columns as lists: protobuf's containers are slow to read row by row."""
    return TokenColumns(
        handles=list(message.handles),
        choices=list(message.choices),
        indexes=list(message.indexes),
        token_ids=list(message.token_ids),
        finish_reasons=list(message.finish_reasons),
        text_lengths=list(message.text_lengths),
        text_utf8=message.text_utf8,
        logprob_rows=list(message.logprob_rows),
        logprobs=list(message.logprobs),
        top_counts=list(message.top_counts),
        top_token_ids=list(message.top_token_ids),
        top_logprobs=list(message.top_logprobs),
        stop_rows=list(message.stop_rows),
        stop_places=list(message.stop_places),
    )


def prompt_logprobs_to_pb(piece: PromptLogprobs) -> worker_pb2.PromptLogprobs:
    return worker_pb2.PromptLogprobs(**field_values(piece))


def prompt_logprobs_from_pb(message: worker_pb2.PromptLogprobs) -> PromptLogprobs:
    return PromptLogprobs(
        handle=message.handle,
        first_index=message.first_index,
        logprobs=tuple(message.logprobs),
        num_top=message.num_top,
        top_token_ids=tuple(message.top_token_ids),
        top_logprobs=tuple(message.top_logprobs),
    )


def cost_to_pb(cost: CostModel) -> worker_pb2.CostModel:
    return worker_pb2.CostModel(**field_values(cost))


def shape_to_pb(shape: StepShape) -> worker_pb2.StepShape:
    return worker_pb2.StepShape(**field_values(shape))


def shape_from_pb(message: worker_pb2.StepShape) -> StepShape:
    return StepShape(
        num_tokens=message.num_tokens,
        num_seqs=message.num_seqs,
        decode_context=message.decode_context,
        chunk_attention=message.chunk_attention,
        chunk_context=message.chunk_context,
        num_decodes=message.num_decodes,
    )
