"""Draws on a GPU: what rows ask for goes up in one copy, and their tokens stay there until they are fetched.

What is drawn is what `engine.sampling.sampler` says, with logits in float32 and weights in whole numbers
(`kernels/sample_rows`): a token differs where the noise, which is the same, comes within rounding of a
boundary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device.host_copies import Download
from engine.sampling.noise import uniforms
from engine.sampling.sampling_table import SamplingTable
from kernels.logit_rows.arguments import Edits, Seen, Way
from kernels.sample_rows import sample_rows
from kernels.selection.kernel import MAX_ITEMS
from kernels.top_logits import top_logits

WARM_ALTERNATIVES = (1, 2, 4, 8, 16, 32)
"""Powers of two, as `top_logits` is compiled for, up to what a request may ask for."""

LogprobColumns = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]
"""Rows of the table [r] that want them, the chosen tokens' [r], and the most likely tokens and theirs
[r, most alternatives of any row].
"""


def is_drawn_on_device(device: torch.device, dtype: torch.dtype, vocab: int) -> bool:
    """Of rows of such logits. float64 is for comparing implementations, wherever it runs."""
    return device.type == "cuda" and dtype != torch.float64 and vocab <= MAX_ITEMS


def warm_draws(device: torch.device, dtype: torch.dtype, vocab: int) -> None:
    """Compile what draws, so that neither the first request that samples nor its neighbours wait for it."""
    if not is_drawn_on_device(device, dtype, vocab):
        return
    logits = torch.zeros(1, vocab, dtype=dtype, device=device)
    ways = torch.zeros(len(Way), 1, dtype=torch.float64, device=device)
    ways[[Way.TEMPERATURE, Way.TOP_P, Way.REPETITION]] = 1.0
    ways[Way.NOISE] = 0.5
    one = torch.zeros(1, dtype=torch.int32, device=device)
    edits = Edits(one, one.float(), torch.tensor([0, 1], dtype=torch.int32, device=device))
    seen = Seen(logits > 0, torch.zeros_like(logits, dtype=torch.int32))
    for has_edits, has_seen, is_told in itertools.product((False, True), repeat=3):
        sample_rows(
            logits, ways, edits if has_edits else None, seen if has_seen else None, with_log_totals=is_told
        )
    for num in WARM_ALTERNATIVES:
        top_logits(logits, min(num, vocab))


def draw_on_device(
    logits: Tensor, table: SamplingTable, indexes: NDArray[np.int64], first_row: int
) -> tuple[Tensor, Tensor, Callable[[], LogprobColumns] | None]:
    """Token ids and whether rows are broken, both [rows] on the device, and how to wait for log-probabilities
    if somebody wants them; arguments as for `sampler.sample`. Nothing here waits for the device.
    """
    rows = slice(first_row, first_row + logits.shape[0])
    wanted = np.flatnonzero(table.num_logprobs[rows] >= 0)
    ways, places, *edits = table.upload([_ways(table, rows, indexes), wanted, *_edits(table, rows, indexes)])
    tokens = sample_rows(
        logits,
        ways,
        Edits(*edits) if edits else None,
        Seen(*table.counts.seen(rows)) if table.has_penalties[rows].any() else None,
        with_log_totals=bool(len(wanted)),
    )
    if tokens.log_totals is None:
        return tokens.token_ids, tokens.is_broken, None
    most = min(int(table.num_logprobs[rows].max()), logits.shape[1])
    told = _logprobs(logits[places], tokens.token_ids[places], tokens.log_totals[places], most)
    wait = told.numpy if told.device.type == "cpu" else Download(told).wait
    return tokens.token_ids, tokens.is_broken, lambda: _columns(wait(), wanted + first_row, most)


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
    """Tokens, values and offsets of `Edits`; nothing where no row has any."""
    is_banning = indexes < table.min_tokens[rows]
    edited = np.flatnonzero(table.has_bias[rows] | is_banning | table.has_bad_words[rows])
    if not len(edited):
        return []
    lengths = np.zeros(len(indexes) + 1, dtype=np.int32)
    edits = []
    for place in edited.tolist():
        row = rows.start + place
        one = table.bias_and_banned[row] if is_banning[place] else table.bias[row]
        if table.has_bad_words[row] and table.banned_now[row]:
            one = one.with_banned(table.banned_now[row])
        edits.append(one)
        lengths[place + 1] = len(one.token_ids)
    return [
        np.concatenate([one.token_ids for one in edits]).astype(np.int32),
        np.concatenate([one.values for one in edits]).astype(np.float32),
        np.cumsum(lengths, dtype=np.int32),
    ]


def _logprobs(logits: Tensor, token_ids: Tensor, log_totals: Tensor, most: int) -> Tensor:
    """[r, 1 + 2 · most] float64: the chosen tokens' log-probabilities, the likeliest tokens, and theirs."""
    chosen = logits.gather(-1, token_ids.unsqueeze(-1)).double() - log_totals.unsqueeze(-1)
    if most == 0:
        return chosen
    values, top = top_logits(logits, most)
    return torch.cat((chosen, top.double(), values.double() - log_totals.unsqueeze(-1)), dim=-1)


def _columns(told: NDArray[np.float64], rows: NDArray[np.int64], most: int) -> LogprobColumns:
    return rows, told[:, 0], told[:, 1 : 1 + most].astype(np.int64), told[:, 1 + most :]
