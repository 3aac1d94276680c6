"""Convert protobuf messages that all services share to and from our own types."""

from __future__ import annotations

from baton.worker.v1 import attempt_pb2, worker_pb2
from scheduling.columns import PromptLogprobs, TokenColumns
from scheduling.cost.cost_model import CostModel, StepShape
from scheduling.request import Fence


def fence_to_pb(fence: Fence) -> attempt_pb2.Fence:
    return attempt_pb2.Fence(
        tenant=fence.tenant,
        request_id=fence.request_id,
        session=fence.session,
        attempt=fence.attempt,
        choice=fence.choice,
        source_incarnation=fence.source_incarnation,
        target_incarnation=fence.target_incarnation,
        router_id=fence.router_id,
    )


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
    return attempt_pb2.TokenColumns(
        handles=columns.handles,
        choices=columns.choices,
        indexes=columns.indexes,
        token_ids=columns.token_ids,
        # An enum column takes plain numbers; the stub asks for the enum's own type.
        finish_reasons=columns.finish_reasons,  # type: ignore[arg-type]
        text_lengths=columns.text_lengths,
        text_utf8=columns.text_utf8,
        logprob_rows=columns.logprob_rows,
        logprobs=columns.logprobs,
        top_counts=columns.top_counts,
        top_token_ids=columns.top_token_ids,
        top_logprobs=columns.top_logprobs,
        stop_rows=columns.stop_rows,
        stop_places=columns.stop_places,
    )


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
    return worker_pb2.PromptLogprobs(
        handle=piece.handle,
        first_index=piece.first_index,
        logprobs=piece.logprobs,
        num_top=piece.num_top,
        top_token_ids=piece.top_token_ids,
        top_logprobs=piece.top_logprobs,
    )


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
    return worker_pb2.CostModel(
        coefficients=cost.coefficients,
        knee_tokens=cost.knee_tokens,
        ratio_q10=cost.ratio_q10,
        ratio_q50=cost.ratio_q50,
        ratio_q95=cost.ratio_q95,
        is_trusted=cost.is_trusted,
    )


def shape_to_pb(shape: StepShape) -> worker_pb2.StepShape:
    return worker_pb2.StepShape(
        num_tokens=shape.num_tokens,
        num_seqs=shape.num_seqs,
        decode_context=shape.decode_context,
        chunk_attention=shape.chunk_attention,
        chunk_context=shape.chunk_context,
        num_decodes=shape.num_decodes,
    )


def shape_from_pb(message: worker_pb2.StepShape) -> StepShape:
    return StepShape(
        num_tokens=message.num_tokens,
        num_seqs=message.num_seqs,
        decode_context=message.decode_context,
        chunk_attention=message.chunk_attention,
        chunk_context=message.chunk_context,
        num_decodes=message.num_decodes,
    )
