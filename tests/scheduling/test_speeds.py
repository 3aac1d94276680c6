"""Pipeline stages count for prompts, decodes and seats."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost_model import CostModel
from scheduling.prediction import (
    DecodeView,
    PrefillView,
    RequestCost,
    decode_step_s,
    own_prefill_s,
    prefill_speed,
    seq_capacity,
)

COST = CostModel((0.005, 1e-5, 2e-5, 3e-8, 1e-9, 3e-8), 176.0)
PREFILL = PrefillView(COST, token_budget=8192, limit_s=0.05)
DECODE = DecodeView(COST, 40, 40_000, 512, 5000, 50.0, 10.0)
stages = st.sampled_from([2, 4, 8])


@given(stages)
def test_a_pipeline_computes_prompts_as_fast_as_all_its_stages(num_stages: int) -> None:
    alone, staged = prefill_speed(PREFILL), prefill_speed(replace(PREFILL, num_stages=num_stages))
    assert staged.chunk == alone.chunk
    assert staged.rate == pytest.approx(num_stages * alone.rate)
    assert staged.rest_s == pytest.approx(alone.rest_s / num_stages)


@given(stages, st.integers(1, 50_000))
def test_a_lone_prompt_is_no_faster_on_a_pipeline(num_stages: int, prompt_tokens: int) -> None:
    """Its chunks follow one another, each behind those of other prompts."""
    cost = RequestCost(prompt_tokens, 0, 1, 1)
    alone_s = own_prefill_s(cost, prefill_speed(PREFILL))
    staged_s = own_prefill_s(cost, prefill_speed(replace(PREFILL, num_stages=num_stages)))
    assert staged_s == pytest.approx(alone_s * (num_stages + 1) / num_stages)


@given(stages, st.integers(1, 512))
def test_decodes_share_the_steps_of_a_pipeline(num_stages: int, num_seqs: int) -> None:
    staged = replace(DECODE, num_stages=num_stages)
    in_each = -(-num_seqs // (num_stages + 1))
    factor = max(1.0, min(num_seqs, num_stages + 1) / num_stages)
    assert decode_step_s(staged, num_seqs) == pytest.approx(decode_step_s(DECODE, in_each) * factor)


@given(stages, st.floats(0.006, 0.1), st.integers(1, 512))
def test_seats_of_a_pipeline_keep_the_pace(num_stages: int, pace_s: float, max_seqs: int) -> None:
    staged = replace(DECODE, num_stages=num_stages)
    seats = seq_capacity(staged, max_seqs, pace_s)
    assert 1 <= seats <= max_seqs
    if decode_step_s(staged, num_stages + 1) <= pace_s:
        assert decode_step_s(staged, seats) <= pace_s
    if seats < max_seqs:
        assert decode_step_s(staged, seats + num_stages + 1) > pace_s
