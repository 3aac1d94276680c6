"""The spans of positions that a row's context may be summed in.

Their length is a constant: it is part of what a row's bits depend on.
"""

from kernels.paged_attention.kernel import MAX_TILE

# Of fewer positions, adding up costs more than another program saves. A span that grew with the longest
# context would leave a short one of the same model in one piece.
SPAN = 4 * MAX_TILE


def count_spans(capacity: int, window: int | None, span: int) -> int:
    """The most spans that one token may see in tables of so many positions, at least 1."""
    num_spans = -(-capacity // span)
    return max(1, num_spans if window is None else min(num_spans, -(-window // span) + 1))
