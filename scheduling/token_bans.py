"""Check that the tokens a request bans always leave one to draw."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.request import SamplingParams, StopRules


def leaves_a_token(
    sampling: SamplingParams, stop: StopRules, eos_token_ids: Iterable[int], vocab_size: int
) -> bool:
    """Return True if some token may be drawn at every place of the output, whatever was drawn before.

    All token ids must belong to the vocabulary. Such a token is not the last one of any bad word, nor one of
    the tokens that would end the choice while `min_tokens` bans them.
    """
    barred = {sequence[-1] for sequence in sampling.bad_words}
    if stop.min_tokens:
        barred |= {*stop.stop_token_ids, *(() if stop.ignore_eos else eos_token_ids)}
    if sampling.allowed_token_ids:
        return not barred.issuperset(sampling.allowed_token_ids)
    return len(barred) < vocab_size
