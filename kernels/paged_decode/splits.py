"""How a decode's KV range is shared out among programs (Flash-Decoding, Dao et al. 2023).

Splits begin at multiples of `split_len` counted from position 0, never from a sequence's own end: what a
sequence's splits are depends on `split_len` and its length, not on the other sequences of the batch.
"""

from dataclasses import dataclass

MAX_SPLITS = 64  # the combining kernel holds one row per split in registers
MIN_SPLIT_LEN = 256  # below this, combining costs more than another program saves


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """`num_splits` programs per sequence and KV head, each for `split_len` absolute positions."""

    num_splits: int
    split_len: int


def plan_splits(capacity: int, window: int | None, num_splits: int, tile: int) -> SplitPlan:
    """Cut `capacity` positions (what the block table can hold) into at most `num_splits` splits.

    Under a sliding window only the splits that the window touches get a program, and a window of w positions
    touches at most ceil((w - 1) / split_len) + 1 of them.
    """
    if num_splits == 1 or capacity <= tile:
        return SplitPlan(1, _round_up(max(capacity, 1), tile))
    if window is None or window >= capacity:
        split_len = _round_up(_cdiv(capacity, num_splits), tile)
        return SplitPlan(_cdiv(capacity, split_len), split_len)
    split_len = _round_up(max(_cdiv(window - 1, num_splits - 1), 1), tile)
    return SplitPlan(_cdiv(window - 1, split_len) + 1, split_len)


def choose_num_splits(capacity: int, window: int | None, num_rows: int, num_sms: int) -> int:
    """Enough programs for two per SM, as far as the positions to read are worth splitting.

    num_rows: programs without splitting, num_seqs × num_kv_heads.
    """
    span = capacity if window is None else min(window, capacity)
    worth_splitting = max(1, span // MIN_SPLIT_LEN)
    return max(1, min(2 * num_sms // max(num_rows, 1), worth_splitting, MAX_SPLITS))


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(a: int, multiple: int) -> int:
    return _cdiv(a, multiple) * multiple
