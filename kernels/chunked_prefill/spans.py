"""How long the spans are that a row's context may be summed in, and how many of them a token sees.

Their length is the same in every step, whatever its contexts: it is part of what a row's bits depend on.
"""

from kernels.launch import next_power_of_2
from kernels.paged_attention.kernel import MAX_TILE

MIN_SPAN = 4 * MAX_TILE  # of less, adding up costs more than another program saves
MAX_SPANS = 32  # of the longest context; each costs a decode head_dim floats for each query head


def choose_span(max_context: int) -> int:
    """Positions, from the longest context that can come: every step has to have the same."""
    return max(MIN_SPAN, next_power_of_2(-(-max_context // MAX_SPANS)))


def count_spans(capacity: int, window: int | None, span: int) -> int:
    """The most spans that one token may see in tables of so many positions, at least 1."""
    num_spans = -(-capacity // span)
    return max(1, num_spans if window is None else min(num_spans, -(-window // span) + 1))
