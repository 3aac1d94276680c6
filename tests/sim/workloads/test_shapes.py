from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest

from sim.workloads.shapes import DEFAULT_CAPS, WORKLOADS, RequestShape, arrivals, prompt_ids, shapes


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_same_seed_gives_the_same_requests(workload: str) -> None:
    assert shapes(workload, 50, 1, 0.1) == shapes(workload, 50, 1, 0.1)
    assert shapes(workload, 50, 1, 0.1) != shapes(workload, 50, 2, 0.1)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_lengths_stay_between_one_token_and_the_cap(workload: str) -> None:
    for shape in shapes(workload, 500, 3, 1.0):
        assert shape.prompt_tokens >= 1
        assert 1 <= shape.output_tokens <= DEFAULT_CAPS[workload]


def test_chat_has_the_stated_medians() -> None:
    # The median of 4000 draws with sigma 0.93 has a standard error of 2 %; the cap of 8192 lowers it by 4 %.
    found = shapes("chat", 4000, 5, 1.0)
    assert statistics.median(entry.prompt_tokens for entry in found) == pytest.approx(1730, rel=0.12)
    assert statistics.median(entry.output_tokens for entry in found) == pytest.approx(415, rel=0.1)


def test_the_cap_redraws_instead_of_clipping() -> None:
    found = [shape.output_tokens for shape in shapes("burst", 2000, 1, 1.0, cap=32)]
    assert max(found) <= 32
    assert found.count(32) < 200


def test_mixed_has_three_classes_in_equal_shares() -> None:
    classes = [shape.slo_class for shape in shapes("mixed", 3000, 1, 0.1)]
    for slo_class in ("interactive", "standard", "batch"):
        assert classes.count(slo_class) == pytest.approx(1000, rel=0.1)


def test_half_of_a_shared_prompt_comes_from_the_pool() -> None:
    found = shapes("shared", 200, 1, 1.0)
    for entry in found:
        assert entry.shared_block_tokens * len(entry.shared_blocks) <= entry.prompt_tokens // 2
    assert any(entry.shared_blocks for entry in found)


def test_prompts_with_the_same_shared_block_begin_alike() -> None:
    first = RequestShape(30, 1, shared_blocks=(3,), shared_block_tokens=10)
    second = RequestShape(25, 1, shared_blocks=(3,), shared_block_tokens=10)
    one = prompt_ids(first, random.Random(1), 97)
    two = prompt_ids(second, random.Random(2), 97)
    assert (len(one), len(two)) == (30, 25)
    assert one[:10] == two[:10]
    assert one[10:25] != two[10:25]


@pytest.mark.parametrize("process", ["poisson", "gamma:2", "gamma:4"])
def test_arrivals_have_the_stated_rate(process: str) -> None:
    times = list(itertools.islice(arrivals(process, 50.0, seed=1), 20_000))
    assert times == sorted(times)
    # 20 000 gaps of CV 4 leave the mean a standard error of 3 %.
    assert len(times) / times[-1] == pytest.approx(50.0, rel=0.1)


def test_a_burst_arrives_at_once() -> None:
    assert set(itertools.islice(arrivals("burst", 1.0, seed=1), 10)) == {0.0}


def test_on_and_off_by_turns_of_a_minute() -> None:
    times = list(itertools.takewhile(lambda at: at < 6000, arrivals("onoff", 20.0, seed=1)))
    calm = sum(int(at / 60) % 2 == 0 for at in times)
    # 50 minutes at 10/s and 50 at 40/s: 30 000 and 120 000 arrivals, with standard errors below 1 %.
    assert calm == pytest.approx(30_000, rel=0.03)
    assert len(times) - calm == pytest.approx(120_000, rel=0.03)


@pytest.mark.parametrize("process", ["weekly", "poisson:2", "gamma:wide", "gamma:0", "gamma:nan"])
def test_an_unknown_arrival_process_is_named(process: str) -> None:
    with pytest.raises(ValueError, match=f"is '{process.removeprefix('gamma:')}'; accepted"):
        arrivals(process, 1.0, seed=1)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate is"):
        arrivals("poisson", rate, seed=1)
