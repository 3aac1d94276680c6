"""The next token of every row, drawn at once.

Order: allowed tokens and logit bias, repetition, presence and frequency penalties, tokens banned until
min_tokens or as the end of a bad word, temperature, top-k, top-p, min-p. The draw is the inverse of the
distribution function, summed in vocabulary order in float64, at a number that depends on (seed, choice,
index) alone, so a token does not depend on the other rows of the batch. Log-probabilities are the log-softmax
of the model's own logits, before temperature, bias and penalties.

On a GPU, parameters go up in one copy, and tokens stay there until they are fetched. Draws are the same, but
with logits in float32 and weights in whole numbers (`kernels/sample_rows`). A token differs only if the
noise, which is the same, comes within rounding of a boundary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.batch import Rows
from engine.device import Download
from engine.sampling.logit_filters import keep_min_p, keep_top_k, keep_top_p
from engine.sampling.sampling_table import SamplingTable
from kernels.logit_rows.arguments import Edits, Seen, Way
from kernels.sample_rows import sample_rows
from kernels.selection.kernel import MAX_ITEMS
from kernels.top_logits import top_logits


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of the rows that want them; meaningless where a row is broken."""

    rows: NDArray[np.int64]
    """Rows of the table [r], ascending."""
    chosen: NDArray[np.float64]
    """[r]"""
    top_token_ids: NDArray[np.int64]
    """[r, most alternatives of any row], most likely first; a row uses its own leading part"""
    top_logprobs: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row."""

    token_ids: NDArray[np.int64]
    """[rows]; meaningless where a row is broken"""
    is_broken: NDArray[np.bool_]
    """[rows]; the row's largest logit is NaN or infinite, so there is nothing to draw from"""
    logprobs: Logprobs | None


class Drawn:
    """One token per row, on its way to the host; the next step can use it on the device before.

    The values are those at the point of the current stream where this is made.
    """

    def __init__(
        self, token_ids: Tensor, is_broken: Tensor, logprobs: Callable[[], Logprobs | None] | None = None
    ) -> None:
        self.token_ids = token_ids
        """[rows] int64 on the device; in the vocabulary, but meaningless where a row is broken"""
        self._token_ids, self._is_broken = Download(token_ids), Download(is_broken)
        self._logprobs = logprobs

    def wait(self) -> Sampled:
        """Wait until the tokens are on the host, and return them."""
        logprobs = None if self._logprobs is None else self._logprobs()
        return Sampled(self._token_ids.wait(), self._is_broken.wait(), logprobs)


Draw = Callable[[Tensor, SamplingTable, NDArray[np.int64], Rows], Drawn]
"""`draw` or `draw_each`."""


def draw(logits: Tensor, table: SamplingTable, indexes: NDArray[np.int64], rows: Rows | None = None) -> Drawn:
    """Draw a token for each of some rows of the table; by default, of the first ones.

    `logits` [rows, vocab] are the model's, in any floating dtype; they are changed only where grammars forbid
    tokens. `indexes` [rows] are the positions of the new tokens in their outputs. Counts for penalties are
    updated.
    """
    if rows is None:
        rows = slice(0, logits.shape[0])
    is_plain = table.is_plain[rows]
    if not is_plain.all() and is_drawn_on_device(logits.device, logits.dtype, logits.shape[-1]):
        assert isinstance(rows, slice), "on a GPU there is one micro-batch"
        return draw_on_device(logits, table, indexes, rows)
    # Log-probabilities are those of the model's own logits.
    masked = table.masked(logits, rows)
    largest, token_ids = masked.max(dim=-1)
    is_broken = ~torch.isfinite(largest)
    if is_plain.all():
        return Drawn(token_ids, is_broken)
    # Broken rows are drawn as well, with a meaningless result: only the device knows yet which are broken.
    special = np.flatnonzero(~is_plain)
    special_rows = special + rows.start if isinstance(rows, slice) else rows[special]
    places = torch.from_numpy(special).to(logits.device)
    token_ids[places] = _draw(masked[places].double(), table, special_rows, indexes[special])
    _count(table, special_rows, token_ids[places])
    return Drawn(token_ids, is_broken, _logprobs(logits, table, special, special_rows, token_ids))


def draw_each(
    logits: Tensor, table: SamplingTable, indexes: NDArray[np.int64], rows: Rows | None = None
) -> Drawn:
    """Draw as `draw` does, so that a row's bits do not depend on its place in the batch.

    On a GPU rows are independent anyway. On a CPU they are drawn one by one, as vector instructions round the
    end of an array differently from its body.
    """
    num_rows = logits.shape[0]
    if rows is None:
        rows = slice(0, num_rows)
    if logits.is_cuda or table.is_plain[rows].all():
        return draw(logits, table, indexes, rows)
    numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    places = [slice(place, place + 1) for place in range(num_rows)]
    sampled = _stack(
        [draw(logits[place].clone(), table, indexes[place], numbers[place]).wait() for place in places]
    )
    token_ids, is_broken = torch.from_numpy(sampled.token_ids), torch.from_numpy(sampled.is_broken)
    return Drawn(token_ids, is_broken, lambda: sampled.logprobs)


def _stack(rows: Sequence[Sampled]) -> Sampled:
    wanted = [row.logprobs for row in rows if row.logprobs is not None]
    return Sampled(
        np.concatenate([row.token_ids for row in rows]),
        np.concatenate([row.is_broken for row in rows]),
        _stack_logprobs(wanted) if wanted else None,
    )


def _stack_logprobs(parts: Sequence[Logprobs]) -> Logprobs:
    most = max(part.top_token_ids.shape[1] for part in parts)

    def widened(columns: NDArray[Any]) -> NDArray[Any]:
        return np.pad(columns, ((0, 0), (0, most - columns.shape[1])))

    return Logprobs(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.chosen for part in parts]),
        np.concatenate([widened(part.top_token_ids) for part in parts]),
        np.concatenate([widened(part.top_logprobs) for part in parts]),
    )


def _draw(
    logits: Tensor, table: SamplingTable, rows: NDArray[np.int64], indexes: NDArray[np.int64]
) -> Tensor:
    """Draw tokens [r] of the table's `rows` from their logits [r, vocab] in float64, which may change."""
    logits = _process(logits, table, rows, indexes)
    temperature = table.temperature[rows]
    is_random = temperature > 0
    if is_random.all():
        return _draw_random(logits, table, rows, indexes)
    token_ids = logits.argmax(dim=-1)
    if is_random.any():
        chosen = torch.from_numpy(np.flatnonzero(is_random)).to(logits.device)
        token_ids[chosen] = _draw_random(logits[chosen], table, rows[is_random], indexes[is_random])
    return token_ids


def _process(
    logits: Tensor, table: SamplingTable, rows: NDArray[np.int64], indexes: NDArray[np.int64]
) -> Tensor:
    """Apply bias, penalties and bans, which hold for greedy and random draws alike."""
    for place in np.flatnonzero(table.has_bias[rows]):
        edits = table.bias[rows[place]]
        values = torch.from_numpy(edits.values).to(logits.device, logits.dtype)
        token_ids = torch.from_numpy(edits.token_ids).to(logits.device)
        edited = logits[place, token_ids] + values
        if table.others[rows[place]] < 0:
            logits[place] = float("-inf")
        logits[place, token_ids] = edited
    is_penalised = table.has_penalties[rows]
    if is_penalised.any():
        places = torch.from_numpy(np.flatnonzero(is_penalised)).to(logits.device)
        penalised = rows[is_penalised]
        logits[places] = table.counts.penalise(
            logits[places],
            torch.from_numpy(penalised).to(logits.device),
            _column(table.repetition[penalised], logits),
            _column(table.presence[penalised], logits),
            _column(table.frequency[penalised], logits),
        )
    for place in np.flatnonzero(indexes < table.min_tokens[rows]):
        banned = torch.from_numpy(table.banned[rows[place]].token_ids).to(logits.device)
        logits[place, banned] = float("-inf")
    for place in np.flatnonzero(table.has_bad_words[rows]):
        logits[place, table.banned_now[rows[place]]] = float("-inf")
    return logits


def _draw_random(
    logits: Tensor, table: SamplingTable, rows: NDArray[np.int64], indexes: NDArray[np.int64]
) -> Tensor:
    # The largest logit becomes 0 first, so that no small temperature can make it infinite.
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / _column(table.temperature[rows], logits)
    for keep, parameter, is_used in (
        (keep_top_k, table.top_k[rows], table.top_k[rows] > 0),
        (keep_top_p, table.top_p[rows], table.top_p[rows] < 1),
        (keep_min_p, table.min_p[rows], table.min_p[rows] > 0),
    ):
        if is_used.all():
            logits = keep(logits, _column(parameter, logits))
        elif is_used.any():
            places = torch.from_numpy(np.flatnonzero(is_used)).to(logits.device)
            logits[places] = keep(logits[places], _column(parameter[is_used], logits))
    noise = uniforms(table.seed[rows], table.choice[rows], indexes.astype(np.uint64))
    return _invert(logits, _column(noise, logits))


def _invert(logits: Tensor, noise: Tensor) -> Tensor:
    """Return the first token whose cumulative probability exceeds `noise` [r, 1]."""
    weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:].clone()
    # Rounding may leave no sum above the target: take the last token that has any weight then.
    last = torch.searchsorted(cumulative, total)
    drawn = torch.searchsorted(cumulative, noise * total, right=True)
    # If every token was banned, there is no weight, but some token has to be drawn.
    return torch.minimum(drawn, last).squeeze(-1).clamp(max=logits.shape[-1] - 1)


def _count(table: SamplingTable, rows: NDArray[np.int64], token_ids: Tensor) -> None:
    """Count the token [r] that each of `rows` drew."""
    is_penalised = table.has_penalties[rows]
    if is_penalised.any():
        places = torch.from_numpy(np.flatnonzero(is_penalised)).to(token_ids.device)
        table.counts.add(torch.from_numpy(rows[is_penalised]).to(token_ids.device), token_ids[places])


def _logprobs(
    logits: Tensor,
    table: SamplingTable,
    special: NDArray[np.int64],
    rows: NDArray[np.int64],
    token_ids: Tensor,
) -> Callable[[], Logprobs] | None:
    """Return a function that waits for the log-probabilities of `rows`; None if no row wants them.

    `special` are the places of `rows` in `logits` and `token_ids`.
    """
    is_wanted = table.wants_logprobs[rows]
    if not is_wanted.any():
        return None
    wanted = rows[is_wanted]
    places = torch.from_numpy(special[is_wanted]).to(logits.device)
    logprobs = torch.log_softmax(logits[places].double(), dim=-1)
    chosen = logprobs.gather(-1, token_ids[places].unsqueeze(-1)).squeeze(-1)
    most = min(int(table.num_logprobs[wanted].max()), logits.shape[-1])
    top = torch.topk(logprobs, most, dim=-1)
    columns = [Download(column) for column in (chosen, top.indices, top.values)]
    return lambda: Logprobs(wanted, *(column.wait() for column in columns))


def _column(values: NDArray[np.float64] | NDArray[np.int64], like: Tensor) -> Tensor:
    """Return [r] numbers as [r, 1] on the device of `like`."""
    return torch.from_numpy(values).to(like.device).unsqueeze(-1)


# Noise: a counter-based generator (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011)
# whose mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom
# Number Generators", OOPSLA 2014), applied once per word of the counter.

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_30, _SHIFT_27, _SHIFT_31, _SHIFT_11 = (np.uint64(bits) for bits in (30, 27, 31, 11))
_HALF = 0.5
_SCALE = 2.0**-53


def uniforms(
    seeds: NDArray[np.uint64], choices: NDArray[np.uint64], indexes: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Return one number in (0, 1), ends excluded, for each row; arguments and result are [rows].

    It depends on a row's (seed, choice, index) alone, on any device and in any batch.
    """
    state = _mix(seeds + _GAMMA)
    state = _mix((state ^ choices) + _GAMMA)
    state = _mix((state ^ indexes) + _GAMMA)
    # 53 bits, moved to the middle of their interval, so the result is neither 0 nor 1.
    uniform: NDArray[np.float64] = ((state >> _SHIFT_11).astype(np.float64) + _HALF) * _SCALE
    # The topmost interval's middle rounds up to 1.
    return np.minimum(uniform, 1.0 - _SCALE, out=uniform)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> _SHIFT_30)) * _MIX_1
    state = (state ^ (state >> _SHIFT_27)) * _MIX_2
    return state ^ (state >> _SHIFT_31)


# On a GPU

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
    """Draw as `draw` does, without waiting for the device."""
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
    logprobs = _logprobs_on_device(logits[places], tokens.token_ids[places], log_totals[places], most)
    wait = Download(logprobs).wait
    return Drawn(tokens.token_ids, tokens.is_broken, lambda: _parted(wait(), wanted + rows.start, most))


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


def _logprobs_on_device(logits: Tensor, token_ids: Tensor, log_totals: Tensor, most: int) -> Tensor:
    """Return [r, 1 + 2 · most] float64: log-probabilities of chosen tokens, likeliest tokens, and theirs."""
    chosen = logits.gather(-1, token_ids.unsqueeze(-1)).double() - log_totals.unsqueeze(-1)
    if most == 0:
        return chosen
    values, top = top_logits(logits, most)
    return torch.cat((chosen, top.double(), values.double() - log_totals.unsqueeze(-1)), dim=-1)


def _parted(logprobs: NDArray[np.float64], rows: NDArray[np.int64], most: int) -> Logprobs:
    """Return what `_logprobs_on_device` returned for some rows, on the host, as columns."""
    top_token_ids = logprobs[:, 1 : 1 + most].astype(np.int64)
    return Logprobs(rows, logprobs[:, 0], top_token_ids, logprobs[:, 1 + most :])
