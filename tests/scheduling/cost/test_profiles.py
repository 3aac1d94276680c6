from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost.profiles import Profile, cost_fields, dump, parse, parse_cost
from scheduling.cost_model import Band, CostModel

PROFILE = Profile(
    name="box",
    model_name="small",
    block_size=16,
    kv_bytes_per_token=1024,
    num_blocks=100,
    max_num_seqs=8,
    token_budget=256,
    max_context=2048,
    cost=CostModel((1e-3, 1e-5, 1e-6, 1e-8, 1e-9, 1e-8), 16.0, 0.9, 1.0, 1.2),
    handoff_bytes_per_s=1e9,
    swap_bytes_per_s=2e9,
    host="a box",
    measured=("steps, on a Tuesday",),
    derived=("the rest",),
)

whole = st.integers(1, 1 << 40)
rates = st.floats(1e-3, 1e15)
bands = st.lists(st.floats(0.1, 10), min_size=3, max_size=3).map(lambda ratios: Band(*sorted(ratios)))
costs = st.builds(
    lambda coefficients, knee, ratios, floor_s, band: dataclasses.replace(
        CostModel(tuple(coefficients), knee, *sorted(ratios)), chunk_floor_s=floor_s, chunk_band=band
    ),
    st.lists(st.floats(0, 10), min_size=6, max_size=6),
    st.floats(0, 1e4),
    st.lists(st.floats(0.1, 10), min_size=3, max_size=3),
    st.floats(0, 1),
    st.none() | bands,
)
profiles = st.builds(
    Profile,
    name=st.text(min_size=1),
    model_name=st.text(min_size=1),
    block_size=whole,
    kv_bytes_per_token=whole,
    num_blocks=whole,
    max_num_seqs=whole,
    token_budget=whole,
    max_context=whole,
    cost=costs,
    handoff_bytes_per_s=rates,
    swap_bytes_per_s=rates,
    host=st.text(),
    weights_fingerprint=st.text(),
    measured=st.lists(st.text(), max_size=3).map(tuple),
    derived=st.lists(st.text(), max_size=3).map(tuple),
)


def written(**changes: object) -> str:
    return json.dumps(json.loads(dump(PROFILE)) | changes)


@given(profiles)
def test_what_is_written_is_read_again(profile: Profile) -> None:
    assert parse(dump(profile)) == profile


@given(costs)
def test_a_cost_model_alone_is_read_again(cost: CostModel) -> None:
    assert parse_cost(json.loads(json.dumps(cost_fields(cost)))) == cost


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name is empty; accepted: a name"),
        ({"model_name": 7}, "model_name is 7; accepted: a string"),
        ({"num_blocks": 0}, "num_blocks is 0; accepted: a whole number from 1"),
        ({"num_blocks": 1.5}, "num_blocks is 1.5; accepted: a whole number from 1"),
        ({"block_size": True}, "block_size is True; accepted: a whole number from 1"),
        ({"token_budget": -64}, "token_budget is -64; accepted: a whole number from 1"),
        ({"handoff_bytes_per_s": 0}, "handoff_bytes_per_s is 0.0; accepted: a finite number above 0"),
        ({"swap_bytes_per_s": math.inf}, "swap_bytes_per_s is inf; accepted: a finite number above 0"),
        ({"swap_bytes_per_s": "fast"}, "swap_bytes_per_s is 'fast'; accepted: a finite number"),
        ({"swap_bytes_per_s": 10**400}, "accepted: a finite number"),
        ({"measured": "all"}, "measured is 'all'; accepted: a list of strings"),
        ({"format": 2}, "format is 2; accepted: 1"),
        ({"colour": "red"}, "profile has 'colour'; accepted: exactly format"),
        ({"cost": [1, 2]}, "cost is list; accepted: an object"),
    ],
)
def test_a_field_that_cannot_be_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        parse(written(**changes))


@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("token_s", -1e-9, "a finite number from 0"),
        ("step_s", math.nan, "a finite number from 0"),
        ("knee_tokens", math.inf, "a finite number from 0"),
        ("chunk_floor_s", -1.0, "a finite number from 0"),
        ("ratio_q50", 0.0, "a finite number above 0"),
        ("ratio_q50", -1.0, "a finite number above 0"),
        ("ratio_q10", None, "a finite number"),
    ],
)
def test_a_cost_that_cannot_be_is_named(field: str, value: object, accepted: str) -> None:
    cost = {**cost_fields(PROFILE.cost), field: value}
    with pytest.raises(ValueError, match=rf"cost\.{field} is .*; accepted: {accepted}"):
        parse(written(cost=cost))


def test_quantiles_that_fall_are_refused() -> None:
    with pytest.raises(ValueError, match="ratios q10, q50, q95 are"):
        parse(written(cost=cost_fields(PROFILE.cost) | {"ratio_q10": 1.5}))


def test_a_band_of_chunks_is_whole_or_missing() -> None:
    with pytest.raises(ValueError, match="cost lacks chunk_ratio_q10, lacks chunk_ratio_q95"):
        parse(written(cost=cost_fields(PROFILE.cost) | {"chunk_ratio_q50": 1.0}))


def test_a_field_that_is_missing_is_named() -> None:
    document = json.loads(dump(PROFILE))
    del document["cost"]["token_s"]
    with pytest.raises(ValueError, match="cost lacks token_s; accepted: exactly step_s"):
        parse(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"box"', "[" * 100_000], ids=lambda text: text[:5])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"profile is .*; accepted: an object"):
        parse(text)


def test_a_block_has_its_tokens_bytes() -> None:
    assert dataclasses.replace(PROFILE, block_size=32).block_bytes == 32 * 1024
