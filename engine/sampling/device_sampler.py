"""Draws tokens on a GPU: parameters go up in one copy, and tokens stay there until they are fetched.

It draws as `engine.sampling.sampler` does, but with logits in float32 and weights in whole numbers
(`kernels/sample_rows`). A token differs only if the noise, which is the same, comes within rounding of a
boundary.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import Download
from engine.sampling.drawn import Drawn, Logprobs
from engine.sampling.noise import uniforms
from engine.sampling.sampling_table import SamplingTable
from kernels.logit_rows.arguments import Edits, Seen, Way
from kernels.sample_rows import sample_rows
from kernels.selection.kernel import MAX_ITEMS
from kernels.top_logits import top_logits

WARM_ALTERNATIVES = (1, 2, 4, 8, 16, 32)
"""Numbers of alternatives to compile `top_logits` for: powers of two, up to the most that a request may
have."""


def is_drawn_on_device(device: torch.device, dtype: torch.dtype, vocab: int) -> bool:
    """Return whether rows of such logits are drawn on the device.

    Float64 never is, to compare implementations.
    """
    return device.type == "cuda" and dtype != torch.float64 and vocab <= MAX_ITEMS


def warm_draws(device: torch.device, dtype: torch.dtype, vocab: int) -> None:
    """Compile the kernels that draw, so that no request waits for it."""
    if not is_drawn_on_device(device, dtype, vocab):
        return
    logits = torch.zeros(1, vocab, dtype=dtype, device=device)
    ways = torch.zeros(len(Way), 1, dtype=torch.float64, device=device)
    ways[[Way.TEMPERATURE, Way.TOP_P, Way.REPETITION]] = 1.0
    ways[Way.NOISE] = 0.5
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    edits = Edits(zero, zero.float(), torch.tensor([0, 1], dtype=torch.int32, device=device))
    seen = Seen(logits > 0, torch.zeros_like(logits, dtype=torch.int32))
    for has_edits, has_seen, has_totals in itertools.product((False, True), repeat=3):
        sample_rows(
            logits, ways, edits if has_edits else None, seen if has_seen else None, with_log_totals=has_totals
        )
    for num in WARM_ALTERNATIVES:
        top_logits(logits, min(num, vocab))


def draw_on_device(logits: Tensor, table: SamplingTable, indexes: NDArray[np.int64], rows: slice) -> Drawn:
    """Draw as `sampler.draw` does, without waiting for the device."""
    wanted = np.flatnonzero(table.wants_logprobs[rows])
    ways, places, *edits = table.upload([_ways(table, rows, indexes), wanted, *_edits(table, rows, indexes)])
    masked = table.masked(logits, rows)
    tokens = sample_rows(
        masked,
        ways,
        Edits(*edits) if edits else None,
        Seen(*table.counts.seen(rows)) if table.has_penalties[rows].any() else None,
        with_log_totals=bool(len(wanted)),
    )
    if tokens.log_totals is None:
        return Drawn(tokens.token_ids, tokens.is_broken)
    most = min(int(table.num_logprobs[rows].max()), logits.shape[1])
    log_totals = tokens.log_totals if masked is logits else logits.double().logsumexp(-1)
    logprobs = _logprobs(logits[places], tokens.token_ids[places], log_totals[places], most)
    wait = Download(logprobs).wait
    return Drawn(tokens.token_ids, tokens.is_broken, lambda: _columns(wait(), wanted + rows.start, most))


def _ways(table: SamplingTable, rows: slice, indexes: NDArray[np.int64]) -> NDArray[np.float64]:
    columns = {
        Way.TEMPERATURE: table.temperature[rows],
        Way.TOP_K: table.top_k[rows],
        Way.TOP_P: table.top_p[rows],
        Way.MIN_P: table.min_p[rows],
        Way.REPETITION: table.repetition[rows],
        Way.PRESENCE: table.presence[rows],
        Way.FREQUENCY: table.frequency[rows],
        Way.OTHERS: table.others[rows],
        Way.NOISE: uniforms(table.seed[rows], table.choice[rows], indexes.astype(np.uint64)),
    }
    return np.stack([columns[way] for way in Way]).astype(np.float64)


def _edits(table: SamplingTable, rows: slice, indexes: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return tokens, values and offsets of `Edits`; an empty list if no row has any."""
    is_banning = indexes < table.min_tokens[rows]
    edited = np.flatnonzero(table.has_bias[rows] | is_banning | table.has_bad_words[rows])
    if not len(edited):
        return []
    lengths = np.zeros(len(indexes) + 1, dtype=np.int32)
    edits = []
    for place in edited.tolist():
        row = rows.start + place
        row_edits = table.bias_and_banned[row] if is_banning[place] else table.bias[row]
        if table.has_bad_words[row] and table.banned_now[row]:
            row_edits = row_edits.with_banned(table.banned_now[row])
        edits.append(row_edits)
        lengths[place + 1] = len(row_edits.token_ids)
    return [
        np.concatenate([row_edits.token_ids for row_edits in edits]).astype(np.int32),
        np.concatenate([row_edits.values for row_edits in edits]).astype(np.float32),
        np.cumsum(lengths, dtype=np.int32),
    ]


def _logprobs(logits: Tensor, token_ids: Tensor, log_totals: Tensor, most: int) -> Tensor:
    """Return [r, 1 + 2 · most] float64: log-probabilities of chosen tokens, likeliest tokens, and theirs."""
    chosen = logits.gather(-1, token_ids.unsqueeze(-1)).double() - log_totals.unsqueeze(-1)
    if most == 0:
        return chosen
    values, top = top_logits(logits, most)
    return torch.cat((chosen, top.double(), values.double() - log_totals.unsqueeze(-1)), dim=-1)


def _columns(logprobs: NDArray[np.float64], rows: NDArray[np.int64], most: int) -> Logprobs:
    top_token_ids = logprobs[:, 1 : 1 + most].astype(np.int64)
    return Logprobs(rows, logprobs[:, 0], top_token_ids, logprobs[:, 1 + most :])
