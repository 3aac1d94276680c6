"""How many KV blocks a request can grow to: one arithmetic for the router's leases and the worker's own."""

from __future__ import annotations


def blocks_needed(prompt_tokens: int, max_tokens: int, n: int, block_size: int) -> int:
    """Blocks that `n` choices of one prompt hold at most, each after `max_tokens` output tokens.

    Full blocks of the prompt are shared by the choices. The last token of a choice ends it before its KV is
    written, so a choice stores `prompt_tokens + max_tokens - 1` tokens. For a resumed request pass the
    original prompt and `max_tokens`: tokens that moved from output to computed context do not change the sum.
    """
    if prompt_tokens < 1 or max_tokens < 1 or n < 1 or block_size < 1:
        raise ValueError(
            "prompt_tokens, max_tokens, n and block_size must be at least 1, "
            f"not {prompt_tokens}, {max_tokens}, {n} and {block_size}"
        )
    shared = prompt_tokens // block_size
    per_choice = -(-(prompt_tokens + max_tokens - 1) // block_size)
    return shared + n * (per_choice - shared)
