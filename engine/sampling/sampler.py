"""The next token of every row, drawn at once.

Order: allowed tokens and logit bias, repetition, presence and frequency penalties, tokens banned until
min_tokens or as the end of a bad word, temperature, top-k, top-p, min-p. The draw is the inverse of the
distribution function, summed in vocabulary order in float64, at a number that depends on (seed, choice,
index) alone, so a token does not depend on the other rows of the batch. Log-probabilities are the log-softmax
of the model's own logits, before temperature, bias and penalties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.batch import Rows
from engine.device import Download
from engine.sampling.device_sampler import draw_on_device, is_drawn_on_device
from engine.sampling.drawn import Drawn, Logprobs, Sampled
from engine.sampling.logit_filters import keep_min_p, keep_top_k, keep_top_p
from engine.sampling.noise import uniforms
from engine.sampling.sampling_table import SamplingTable

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
