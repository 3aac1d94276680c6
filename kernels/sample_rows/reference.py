"""The reference of `sample_rows` in plain PyTorch: each row by itself, sorted, in float64."""

import torch
from torch import Tensor

from kernels.logit_rows.arguments import Edits, Seen, Way


def sample_rows_reference(
    logits: Tensor,
    ways: Tensor,
    edits: Edits | None = None,
    seen: Seen | None = None,
    *,
    with_log_totals: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Arguments as for `kernels.sample_rows.sample_rows`, fields of its result as results."""
    largest = logits.max(dim=-1).values
    is_broken = ~torch.isfinite(largest)
    token_ids = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
    for row in (~is_broken).nonzero().view(-1).tolist():
        way = [float(value) for value in ways[:, row]]
        x = penalise(logits[row].double(), row, way, edits, seen)
        weights = kept_weights(x, way) if way[Way.TEMPERATURE] > 0 else None
        if weights is None or not weights.any():
            token_ids[row] = x.argmax()
        else:
            upto = weights.cumsum(0)
            # Rounding may leave no sum above the target: the last token that has any weight is meant then.
            last = weights.nonzero()[-1, 0]
            target = way[Way.NOISE] * upto[-1:]
            token_ids[row] = torch.searchsorted(upto, target, right=True)[0].clamp(max=last)
        if seen is not None and is_penalised(way):
            seen.counts[row, token_ids[row]] += 1
    log_totals = torch.logsumexp(logits.double(), dim=-1) if with_log_totals else None
    return token_ids, is_broken, log_totals


def is_penalised(way: list[float]) -> bool:
    return way[Way.REPETITION : Way.FREQUENCY + 1] != [1.0, 0.0, 0.0]


def penalise(x: Tensor, row: int, way: list[float], edits: Edits | None, seen: Seen | None) -> Tensor:
    """Logits [vocab] of a row after its edits and penalties."""
    if edits is not None:
        own = slice(*edits.offsets[row : row + 2].tolist())
        tokens = edits.tokens[own].long()
        edited = x[tokens] + edits.values[own].double()
        x = x + way[Way.OTHERS]
        x[tokens] = edited
    if seen is not None and is_penalised(way):
        counts, in_prompt = seen.counts[row], seen.in_prompt[row]
        repeated = torch.where(x < 0, x * way[Way.REPETITION], x / way[Way.REPETITION])
        x = torch.where(in_prompt | (counts > 0), repeated, x)
        x = x - way[Way.PRESENCE] * (counts > 0) - way[Way.FREQUENCY] * counts
    return x


def kept_weights(x: Tensor, way: list[float]) -> Tensor:
    """Weights [vocab] of what the filters leave, 1 for the largest; all 0 where every token is banned."""
    if x.max() == float("-inf"):
        return torch.zeros_like(x)
    weights = torch.exp((x - x.max()) / way[Way.TEMPERATURE])
    descending, order = x.sort(descending=True)
    if way[Way.TOP_K] > 0:
        lowest = descending[min(int(way[Way.TOP_K]), len(x)) - 1]
        weights = torch.where(x < lowest, 0.0, weights)
    if way[Way.TOP_P] < 1:
        upto = weights[order].cumsum(0)
        least = torch.searchsorted(upto, way[Way.TOP_P] * upto[-1:])[0].clamp(max=len(x) - 1)
        weights = torch.where(x < descending[least], 0.0, weights)
    return torch.where(weights < way[Way.MIN_P], 0.0, weights)
