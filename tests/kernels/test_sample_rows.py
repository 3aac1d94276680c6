"""Tokens are those that the reference means, in any company, at the edges of what the filters leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.logit_rows.arguments import Edits, Seen, Way
from kernels.sample_rows import Tokens, sample_rows, sample_rows_reference
from kernels.sample_rows.reference import kept_weights, penalise
from tests.kernels.interpreter import Interpreter

PLAIN = {
    Way.TEMPERATURE: 1.0,
    Way.TOP_K: 0,
    Way.TOP_P: 1.0,
    Way.MIN_P: 0.0,
    Way.REPETITION: 1.0,
    Way.PRESENCE: 0.0,
    Way.FREQUENCY: 0.0,
    Way.NOISE: 0.5,
    Way.OTHERS: 0.0,
}
# Every filter alone and with others; top_k as large as anybody asks for; more kept than a pass holds.
WAYS: dict[str, dict[Way, float]] = {
    "plain": {},
    "hot": {Way.TEMPERATURE: 3.0},
    "greedy": {Way.TEMPERATURE: 0.0, Way.TOP_K: 3, Way.PRESENCE: 1.0},
    "nearly_greedy": {Way.TEMPERATURE: 5e-324},
    "top_k": {Way.TOP_K: 7},
    "top_k_of_all": {Way.TOP_K: 2**32 - 1, Way.TEMPERATURE: 0.5},
    "top_p": {Way.TOP_P: 0.83},
    "min_p": {Way.MIN_P: 0.2, Way.TEMPERATURE: 1.3},
    "only_edited": {Way.OTHERS: float("-inf")},
    "only_edited_filtered": {Way.OTHERS: float("-inf"), Way.TOP_K: 4, Way.TOP_P: 0.9, Way.MIN_P: 0.01},
    "only_edited_greedy": {Way.OTHERS: float("-inf"), Way.TEMPERATURE: 0.0, Way.REPETITION: 1.2},
    "every_filter": {Way.TOP_K: 10, Way.TOP_P: 0.7, Way.MIN_P: 0.03, Way.TEMPERATURE: 1.7},
    "penalties": {Way.REPETITION: 1.3, Way.PRESENCE: -1.1, Way.FREQUENCY: 0.4, Way.TOP_K: 12},
    "penalties_hot": {Way.REPETITION: 0.7, Way.TEMPERATURE: 2.5, Way.TOP_P: 0.97},
}
# Of the noise's place between the first and the last of what is kept: far from a boundary for certain only
# where tokens have shares beyond this.
LEAST_SHARE = 1e-3
EDGE = 0.05


@dataclass
class Rows:
    """Arguments of the op for rows that are asked for one by one."""

    logits: list[Tensor] = field(default_factory=list)
    ways: list[list[float]] = field(default_factory=list)
    edits: list[dict[int, float]] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)

    def add(self, logits: Tensor, way: dict[Way, float], edits: dict[int, float], seed: int) -> None:
        tokens = torch.randint(0, len(logits), (30,), generator=torch.Generator().manual_seed(seed)).tolist()
        # The likeliest have been seen as well: their penalties decide.
        best = logits.topk(min(4, len(logits))).indices.tolist()
        self.logits.append(logits)
        self.ways.append([{**PLAIN, **way}[entry] for entry in Way])
        self.edits.append(edits)
        self.prompts.append(tokens[:20] + best[:2])
        self.outputs.append(tokens[20:] + best[1:] + best[1:])

    def arguments(self, picked: list[int] | None = None) -> tuple[Tensor, Tensor, Edits, Seen]:
        picked = list(range(len(self.logits))) if picked is None else picked
        logits = torch.stack([self.logits[row] for row in picked])
        in_prompt = torch.zeros(logits.shape, dtype=torch.bool)
        counts = torch.zeros(logits.shape, dtype=torch.int32)
        for place, row in enumerate(picked):
            in_prompt[place, self.prompts[row]] = True
            counts[place] = torch.bincount(torch.tensor(self.outputs[row]), minlength=logits.shape[1])
        edits = [sorted(self.edits[row].items()) for row in picked]
        flat = [pair for pairs in edits for pair in pairs]
        offsets = torch.tensor([0, *map(len, edits)]).cumsum(0).int()
        tokens = torch.tensor([token for token, _ in flat], dtype=torch.int32)
        values = torch.tensor([value for _, value in flat], dtype=torch.float32)
        ways = torch.tensor([self.ways[row] for row in picked], dtype=torch.float64).T.contiguous()
        return logits, ways, Edits(tokens, values, offsets), Seen(in_prompt, counts)

    def weights(self, row: int) -> Tensor:
        logits, _, edits, seen = self.arguments([row])
        way = self.ways[row]
        return kept_weights(penalise(logits[0].double(), 0, way, edits, seen), way)


def peaked_logits(vocab: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Some thirty tokens that matter, many of them equal, among others that hardly do."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(vocab, generator=generator) - 16
    likely = torch.randperm(vocab, generator=generator)[: min(30, vocab)]
    logits[likely] = (torch.rand(len(likely), generator=generator) * 6).mul(2).round().div(2)
    return logits.to(dtype)


def make_rows(vocab: int, dtype: torch.dtype = torch.float32) -> Rows:
    """Each way three times: noise just inside the first token that counts, in one between, in the last."""
    rows = Rows()
    for seed, way in enumerate(WAYS.values()):
        logits = peaked_logits(vocab, seed, dtype)
        likely = logits.topk(min(3, vocab)).indices.tolist()
        edits = {likely[0]: -1.5, likely[-1]: float("-inf"), vocab - 1: 2.5} if seed % 3 == 1 else {}
        if Way.OTHERS in way:
            edits = dict.fromkeys(logits.topk(min(6, vocab)).indices.tolist()[1:], 0.5) | {0: 0.0}
        for place in range(3):
            row = len(rows.ways)
            rows.add(logits, way, edits, seed)
            if rows.ways[row][Way.TEMPERATURE] > 0:
                rows.ways[row][Way.NOISE] = decidable_noise(rows.weights(row), place)
    return rows


def decidable_noise(weights: Tensor, place: int) -> float:
    upto = weights.cumsum(0) / weights.sum()
    counting = (weights / weights.sum() > LEAST_SHARE).nonzero().view(-1).tolist()
    token = (counting[0], counting[len(counting) // 2], counting[-1])[place]
    end = float(upto[token])
    begin = end - float(weights[token] / weights.sum())
    return begin + (EDGE, 0.5, 1 - EDGE)[place] * (end - begin)


def assert_equals_reference(got: Tokens, after: Seen, rows: Rows) -> None:
    logits, ways, edits, seen = rows.arguments()
    token_ids, is_broken, log_totals = sample_rows_reference(logits, ways, edits, seen, with_log_totals=True)
    assert got.token_ids.tolist() == token_ids.tolist()
    assert got.is_broken.tolist() == is_broken.tolist()
    assert torch.equal(after.counts, seen.counts)
    assert log_totals is not None
    assert got.log_totals is not None
    # A float32 exponential of up to e^-24 is off by 24 eps, and the sum of weights by no more than each.
    torch.testing.assert_close(got.log_totals, log_totals, rtol=0, atol=24 * 2**-23)


# One tile that is hardly begun; three of which the last ends within a group of 32.
@pytest.mark.parametrize(("vocab", "dtype"), [(45, torch.bfloat16), (8999, torch.float32)], ids=str)
def test_kernel_equals_reference(interpreter: Interpreter, vocab: int, dtype: torch.dtype) -> None:
    rows = make_rows(vocab, dtype)
    arguments = rows.arguments()
    before = arguments[0].clone()
    got, after = interpreter.run_and_return_args("sample_rows", *arguments, with_log_totals=True)
    assert_equals_reference(got, after[3], rows)
    assert torch.equal(after[0], before)


def test_every_candidate_of_a_flat_row_can_be_drawn(interpreter: Interpreter) -> None:
    """More candidates than one pass over them holds, in every tile."""
    rows = Rows()
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 0.05
    for way in ({Way.TOP_P: 0.93}, {Way.TOP_K: 4000}, {Way.MIN_P: 0.8, Way.TOP_P: 0.999}, {}):
        for noise in (0.0004321, 0.9994321):
            rows.add(logits, {**way, Way.NOISE: noise}, {}, 0)
    got = interpreter.run("sample_rows", *rows.arguments())
    for row, token in enumerate(got.token_ids.tolist()):
        weights = rows.weights(row)
        shares = weights.cumsum(0) / weights.sum()
        assert weights[token] > 0
        # Each token has some 2^-12: noise as near as 2^-19 to a boundary may give the one beyond.
        noise = rows.ways[row][Way.NOISE]
        assert shares[token] > noise - 2**-19
        assert shares[token] - weights[token] / weights.sum() < noise + 2**-19


def test_a_row_is_drawn_as_if_it_were_alone(interpreter: Interpreter) -> None:
    rows, picked = make_rows(300), [25, 4, 13, 7, 31]
    together = interpreter.run("sample_rows", *rows.arguments(picked), with_log_totals=True)
    for place, row in enumerate(picked[:3]):
        alone = interpreter.run("sample_rows", *rows.arguments([row]), with_log_totals=True)
        assert alone.token_ids[0] == together.token_ids[place]
        assert alone.log_totals[0] == together.log_totals[place]


def test_broken_rows_are_told_and_leave_no_trace(interpreter: Interpreter) -> None:
    rows = make_rows(300)
    logits, ways, edits, seen = rows.arguments([25, 26, 27, 28])
    logits[0, 7], logits[1], logits[2, 299] = float("nan"), float("-inf"), float("inf")
    counts = seen.counts.clone()
    got, after = interpreter.run_and_return_args("sample_rows", logits, ways, edits, seen)
    assert got.is_broken.tolist() == [True, True, True, False]
    assert torch.equal(after[3].counts[:3], counts[:3])
    assert ((got.token_ids >= 0) & (got.token_ids < 300)).all()


def test_a_row_without_any_token_left_draws_one_all_the_same(interpreter: Interpreter) -> None:
    rows = Rows()
    banned = dict.fromkeys(range(40), float("-inf"))
    rows.add(peaked_logits(40, 0, torch.float32), {Way.TOP_P: 0.9}, banned, 0)
    got = interpreter.run("sample_rows", *rows.arguments())
    assert not got.is_broken[0]
    assert 0 <= got.token_ids[0] < 40


def test_logits_may_be_rows_of_something_wider(interpreter: Interpreter) -> None:
    logits, ways, edits, seen = make_rows(300).arguments([4, 25, 31])
    wider = torch.full((3, 320), torch.nan)
    wider[:, :300] = logits
    got = interpreter.run("sample_rows", wider[:, :300], ways, edits, seen)
    assert got.token_ids.tolist() == sample_rows_reference(logits, ways, edits, seen)[0].tolist()


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "too_wide": ({"logits": torch.zeros(2, 2**18 + 1)}, "logits has vocab 262145; accepted: 1 to 262144"),
    "ints": ({"logits": torch.zeros(2, 5).int()}, "logits has dtype torch.int32"),
    "ways_float32": ({"ways": torch.zeros(9, 2)}, "ways has dtype torch.float32"),
    "ways_of_others": ({"ways": torch.zeros(9, 3).double()}, r"ways has shape \[9, 3\]; accepted: \[9, 2\]"),
    "counts_of_others": (
        {"seen": Seen(torch.zeros(2, 5).bool(), torch.zeros(2, 4).int())},
        r"seen.counts has shape \[2, 4\]",
    ),
}


@pytest.mark.parametrize("bad", BAD_ARGUMENTS)
def test_refuses(bad: str) -> None:
    changed, message = BAD_ARGUMENTS[bad]
    good: dict[str, Any] = {"logits": torch.zeros(2, 5), "ways": torch.zeros(9, 2).double()}
    with pytest.raises(ValueError, match=message):
        sample_rows(**{**good, **changed})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("vocab", [45, 8999, 128256, 2**18])
def test_compiled_kernel_equals_reference(vocab: int, dtype: torch.dtype) -> None:
    rows = make_rows(vocab, dtype)
    logits, ways, edits, seen = rows.arguments()
    on_gpu = Seen(seen.in_prompt.cuda(), seen.counts.cuda())
    moved = Edits(edits.tokens.cuda(), edits.values.cuda(), edits.offsets.cuda())
    got = sample_rows(logits.cuda(), ways.cuda(), moved, on_gpu, with_log_totals=True)
    assert got.log_totals is not None
    here = Tokens(got.token_ids.cpu(), got.is_broken.cpu(), got.log_totals.cpu())
    assert_equals_reference(here, Seen(seen.in_prompt, on_gpu.counts.cpu()), rows)


@pytest.mark.gpu
def test_compiled_kernel_gives_each_row_what_it_gives_it_alone() -> None:
    logits = torch.randn(512, 128256, device="cuda", generator=torch.Generator("cuda").manual_seed(0)) * 3
    columns = [list(({**PLAIN, **way}).values()) for way in WAYS.values()]
    ways = torch.tensor(columns, dtype=torch.float64, device="cuda").repeat(47, 1)[:512].T.contiguous()
    ways[Way.REPETITION], ways[Way.PRESENCE], ways[Way.FREQUENCY] = 1.0, 0.0, 0.0
    ways[Way.NOISE] = torch.linspace(1e-6, 1 - 1e-6, 512)
    together = sample_rows(logits, ways)
    for row in range(0, 512, 37):
        alone = sample_rows(logits[row : row + 1], ways[:, row : row + 1].contiguous())
        assert alone.token_ids[0] == together.token_ids[row]
