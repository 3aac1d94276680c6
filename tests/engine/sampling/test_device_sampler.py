"""A device draws the same tokens as the host; here the kernels' references run."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import engine.sampling.sampler
from engine.sampling.sampler import Logprobs, draw, draw_on_device, is_drawn_on_device, uniforms, warm_draws
from engine.sampling.sampling_table import SamplingTable
from kernels.logit_rows.arguments import Way
from kernels.sample_rows import Tokens, sample_rows
from router.intake.validation import MAX_LOGPROBS
from scheduling.request import SamplingParams

VOCAB = 50
NUM_ROWS = 40
ROWS = slice(3, NUM_ROWS)
CPU = torch.device("cpu")


def params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice((0.0, 0.4, 1.0, 5.0)),
        top_k=rng.choice((0, 1, 9, 2**32 - 1)),
        top_p=rng.choice((1.0, 0.9, 0.3)),
        min_p=rng.choice((0.0, 0.1, 1.0)),
        repetition_penalty=rng.choice((1.0, 1.0, 1.4, 0.8)),
        presence_penalty=rng.choice((0.0, 0.0, 1.0)),
        frequency_penalty=rng.choice((0.0, 0.0, -0.5)),
        logit_bias=tuple(
            (token, rng.uniform(-5, 5)) for token in rng.sample(range(VOCAB), rng.choice((0, 3)))
        ),
        seed=rng.getrandbits(64),
        logprobs=rng.choice((None, 0, 5)),
        allowed_token_ids=tuple(rng.sample(range(6, VOCAB - 10), rng.choice((0, 0, 7)))),
        bad_words=tuple(
            tuple(rng.choices((0, 1, 3, 4), k=rng.choice((1, 2)))) for _ in range(rng.choice((0, 4)))
        ),
    )


def filled_table(rows: list[SamplingParams]) -> SamplingTable:
    table = SamplingTable(len(rows), VOCAB, CPU)
    for row, entry in enumerate(rows):
        rng = random.Random(row)
        table.set(
            row,
            entry,
            rng.randrange(16),
            prompt_token_ids=rng.choices(range(VOCAB), k=6),
            output_token_ids=rng.choices(range(VOCAB), k=row % 7),
            min_tokens=rng.choice((0, 4)),
            banned=(5, 41, 2),
        )
        table.banned_now[row] = table.bad_words[row].banned_after([rng.choice((0, 1, 3, 4))])
    return table


def test_a_device_draws_what_the_host_draws() -> None:
    rng = random.Random(1)
    rows = [params(rng) for _ in range(NUM_ROWS)]
    here, there = filled_table(rows), filled_table(rows)
    indexes = np.arange(ROWS.stop - ROWS.start, dtype=np.int64) % 7
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(len(indexes), VOCAB, generator=generator) * 3
        expected = draw(logits, here, indexes, ROWS).wait()
        got = draw_on_device(logits, there, indexes, ROWS).wait()
        assert got.token_ids.tolist() == expected.token_ids.tolist()
        assert not got.is_broken.any()
        assert expected.logprobs is not None
        assert got.logprobs is not None
        assert_close(got.logprobs, expected.logprobs)
        # What was drawn counts in the next draw.
        indexes = indexes + 1


def assert_close(got: Logprobs, expected: Logprobs) -> None:
    assert got.rows.tolist() == expected.rows.tolist()
    np.testing.assert_allclose(got.chosen, expected.chosen, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(got.top_token_ids, expected.top_token_ids)
    np.testing.assert_allclose(got.top_logprobs, expected.top_logprobs, rtol=0, atol=1e-12)


def test_noise_is_the_bits_of_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels get it ready made, in 53 bits; it is never computed a second way."""
    given: list[Tensor] = []

    def spy(logits: Tensor, ways: Tensor, *others: Any, **options: Any) -> Tokens:
        given.append(ways)
        return sample_rows(logits, ways, *others, **options)

    monkeypatch.setattr(engine.sampling.sampler, "sample_rows", spy)
    table = filled_table([SamplingParams(seed=2**64 - 1 - row) for row in range(4)])
    indexes = np.array([0, 7, 4096], dtype=np.int64)
    draw_on_device(torch.zeros(3, VOCAB), table, indexes, slice(1, 4))
    noise = uniforms(table.seed[1:], table.choice[1:], indexes.astype(np.uint64))
    assert given[0][Way.NOISE].tolist() == noise.tolist()


def test_what_the_kernels_do_not_take_is_drawn_as_on_a_cpu() -> None:
    gpu = torch.device("cuda")
    assert is_drawn_on_device(gpu, torch.bfloat16, 1 << 18)
    assert not is_drawn_on_device(gpu, torch.bfloat16, (1 << 18) + 1)
    assert not is_drawn_on_device(gpu, torch.float64, 100)
    assert not is_drawn_on_device(torch.device("cpu"), torch.float32, 100)


def test_all_that_a_request_may_need_is_compiled_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: set[tuple[bool, bool, bool]] = set()
    told: set[int] = set()

    def spy(logits: Tensor, ways: Tensor, edits: object, seen: object, *, with_log_totals: bool) -> Tokens:
        drawn.add((edits is not None, seen is not None, with_log_totals))
        return sample_rows(logits, ways, edits, seen, with_log_totals=with_log_totals)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.sampling.sampler, "is_drawn_on_device", lambda *_: True)
    monkeypatch.setattr(engine.sampling.sampler, "sample_rows", spy)
    monkeypatch.setattr(engine.sampling.sampler, "top_logits", lambda logits, num: told.add(num))
    warm_draws(torch.device("cpu"), torch.float32, 97)
    assert len(drawn) == 8
    assert {1 << (most - 1).bit_length() for most in range(1, MAX_LOGPROBS + 1)} <= told
