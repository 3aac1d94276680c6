"""How a decode's KV range is shared out among programs (Flash-Decoding, Dao et al. 2023).

How many programs a sequence gets is fixed at the launch, from sizes that are the same at each replay of a
CUDA graph. What each of them reads is worked out in the kernel: a sequence is cut evenly into as many splits
as it has programs, or into fewer where those would be too short; the programs left over end at once.
"""

MAX_SPLITS = 64  # the combining kernel holds one row per split in registers
MIN_SPLIT_LEN = 256  # below this, combining costs more than another program saves


def choose_num_splits(capacity: int, window: int | None, num_rows: int, num_sms: int) -> int:
    """Enough programs for two per SM, as far as the positions to read are worth splitting.

    capacity: positions that the block table can hold. num_rows: programs without splitting, num_seqs ×
    num_kv_heads.
    """
    span = capacity if window is None else min(window, capacity)
    worth_splitting = max(1, span // MIN_SPLIT_LEN)
    return max(1, min(2 * num_sms // max(num_rows, 1), worth_splitting, MAX_SPLITS))
