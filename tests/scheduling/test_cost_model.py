from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost_model import Band, CostModel, StepShape, quantile

coefficients = st.tuples(*[st.floats(0, 1e-3) for _ in range(6)])
models = st.builds(CostModel, coefficients, st.floats(0, 256), chunk_floor_s=st.floats(0, 0.1))
shapes = st.builds(
    StepShape.of,
    st.integers(0, 256),
    st.integers(0, 1 << 20),
    st.lists(st.tuples(st.integers(0, 8192), st.integers(1, 1024)), max_size=4),
)


def test_a_shape_counts_decodes_and_chunks() -> None:
    shape = StepShape.of(3, 700, [(100, 20), (0, 10)])
    assert shape == StepShape(33, 5, 700, 20 * 110 + 10 * 5, 100, 3)
    assert StepShape.of(3, 700, [(100, 20)]).with_chunk(0, 10) == shape


def test_the_cost_is_the_sum_of_its_terms() -> None:
    model = CostModel((1.0, 10.0, 100.0, 1e3, 1e4, 1e5), knee_tokens=4)
    assert model.predict(
        StepShape(num_tokens=6, num_seqs=2, decode_context=3, chunk_attention=4, chunk_context=5)
    ) == (1 + 20 + 200 + 3e3 + 4e4 + 5e5)


def test_up_to_the_knee_tokens_are_free() -> None:
    model = CostModel((1.0, 0, 1.0, 0, 0, 0), knee_tokens=64)
    assert model.predict(StepShape(64, 1, 0, 0, 0)) == model.predict(StepShape(1, 1, 0, 0, 0)) == 1.0
    assert model.predict(StepShape(65, 1, 0, 0, 0)) == 2.0


def test_only_a_step_with_a_chunk_has_a_least_time() -> None:
    model = CostModel((1.0, 0, 1.0, 0, 0, 0), knee_tokens=8, chunk_floor_s=4.0)
    assert model.predict(StepShape.of(8, 800, [])) == 1.0
    assert model.predict(StepShape.of(8, 800, [(0, 1)])) == 4.0
    assert model.predict(StepShape.of(8, 800, [(0, 5)])) == 6.0


@given(
    models,
    shapes,
    st.sampled_from([each.name for each in dataclasses.fields(StepShape) if each.name != "num_decodes"]),
    st.integers(0, 500),
)
def test_the_cost_is_never_negative_and_never_falls(
    model: CostModel, shape: StepShape, field: str, more: int
) -> None:
    larger = dataclasses.replace(shape, **{field: getattr(shape, field) + more})
    assert 0 <= model.predict(shape) <= model.predict(larger)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coefficients": ()}, "coefficients has 0 values; accepted: 6"),
        ({"coefficients": (1.0, -1e-9, 0, 0, 0, 0)}, "coefficients is .*; accepted: finite numbers from 0"),
        ({"coefficients": (math.nan, 0, 0, 0, 0, 0)}, "coefficients is .*; accepted: finite numbers from 0"),
        ({"knee_tokens": math.inf}, "knee_tokens is inf"),
        ({"chunk_floor_s": -1.0}, "chunk_floor_s is -1.0; accepted: a finite number from 0"),
        ({"ratio_q10": 0.0}, "ratios q10, q50, q95 are"),
        ({"ratio_q10": 1.2}, "ratios q10, q50, q95 are"),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"coefficients": (1.0, 0, 0, 0, 0, 0), "knee_tokens": 0}
    with pytest.raises(ValueError, match=message):
        CostModel(**(good | changes))  # type: ignore[arg-type] # as a peer's message might


def test_a_quantile_is_one_of_the_values() -> None:
    values = [value / 100 for value in range(201, 301)]
    assert [quantile(values, q) for q in (0.0, 0.1, 0.5, 0.95, 1.0)] == [2.01, 2.11, 2.51, 2.96, 3.0]
    assert quantile([7.0], 0.5) == 7.0


@pytest.mark.parametrize("ratio", [math.nan, math.inf, 0.0, -1.0, 1000.0, 0.001])
def test_nonsense_leaves_the_band_alone(ratio: float) -> None:
    model = CostModel((1.0,) * 6, 0.0, 0.9, 1.0, 1.1)
    assert model.with_ratios([ratio]) == model
    assert model.with_ratios([ratio, 1.2]) == dataclasses.replace(
        model, ratio_q10=1.2, ratio_q50=1.2, ratio_q95=1.2
    )


@given(models, st.lists(st.floats(0.02, 50), min_size=1, max_size=40))
def test_any_seen_ratios_make_a_valid_band(model: CostModel, seen: list[float]) -> None:
    band = model.with_ratios(seen)
    assert min(seen) <= band.ratio_q10 <= band.ratio_q50 <= band.ratio_q95 <= max(seen)


def test_steps_with_a_chunk_have_a_band_of_their_own() -> None:
    model = CostModel((0.005, 0, 0, 0, 0, 0), 0.0, chunk_floor_s=0.02)
    decode, chunk = StepShape.of(4, 100, ()), StepShape.of(4, 100, [(0, 64)])
    judged = model.judged_by([(decode, 0.005), (chunk, 0.03), (chunk, 0.03)])
    assert (judged.ratio_q95, judged.of_chunks.q95) == (1.0, 1.5)
    assert judged.predict_q95(decode) == 0.005
    assert judged.predict_q95(chunk) == pytest.approx(0.03)
    shared = dataclasses.replace(model, chunk_floor_s=0.0).judged_by([(decode, 0.005), (chunk, 0.01)])
    assert shared.chunk_band is None
    assert shared.predict_q95(chunk) == 0.01


def test_a_band_that_falls_is_refused() -> None:
    with pytest.raises(ValueError, match="ratios q10, q50, q95 are"):
        Band(1.0, 0.9, 1.1)
