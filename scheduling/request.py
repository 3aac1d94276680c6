"""A validated request: every field is set and inside its range."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import field

from scheduling.value import value


@value
class SamplingParams:
    """How the next token is drawn; field meanings and ranges as in `generation.proto`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    n: int = 1
    logprobs: int | None = None
    """Alternatives per token; None when no log-probabilities are wanted."""
    prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens that may be drawn; empty when all may."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that must not be completed, each of at least one token."""
    grammar: str = ""
    """The grammar of the output, as `model_output.grammar.grammar` writes it; empty if any text will do."""


@value
class StopRules:
    """When a choice ends."""

    max_tokens: int
    min_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special_tokens: bool = True
    reasoning_opens: tuple[str, ...] = ()
    """The marks that open reasoning at the beginning of the text; empty if the prompt has opened it."""
    reasoning_closes: tuple[str, ...] = ()
    """The marks that close it, behind which alone stop strings count; empty if there is no reasoning."""


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


@value
class Matched:
    """Which of the caller's stop rules ended a choice: one of the two is set."""

    stop_string: str | None = None
    stop_token_id: int | None = None


class SloClass(enum.IntEnum):
    """Values as in the protocol; a lower value is served first."""

    INTERACTIVE = 1
    STANDARD = 2
    BATCH = 3


MAX_SLO_MS = 86_400_000
"""The largest time in an SLO: a day."""


@value
class Slo:
    """The latencies that the caller asks for; None where nothing was stated."""

    ttft_ms: int | None = None
    tpot_ms: int | None = None
    deadline_ms: int | None = None
    slo_class: SloClass = SloClass.STANDARD
    allow_at_risk: bool = False
    itl_ms: int | None = None
    """Limits each gap between tokens, while tpot_ms limits their mean."""
    pace_ms: int | None = field(init=False, repr=False, compare=False)
    """The limit that no step of its decode worker should exceed; None if nothing was stated."""
    is_stated: bool = field(init=False, repr=False, compare=False)
    """Some latency is limited."""

    def __post_init__(self) -> None:
        paces = [pace_ms for pace_ms in (self.tpot_ms, self.itl_ms) if pace_ms is not None]
        object.__setattr__(self, "pace_ms", min(paces, default=None))
        object.__setattr__(self, "is_stated", self.ttft_ms is not None or bool(paces))


@value
class Program:
    """The program that a request is a call of: several calls, one after another, with one deadline."""

    id: str
    deadline_ms: int
    """The time left for the whole program at the router's receipt of this call; 0 if it is over."""


class FinishReason(enum.IntEnum):
    """Why a choice ended. The numbers are those of the contract's enum."""

    NONE = 0
    EOS = 1
    STOP = 2
    LENGTH = 3
    CANCELLED = 4
    DEADLINE = 5
    FAILED = 6


def matched(reason: FinishReason, token_id: int, stop_place: int | None, stop: StopRules) -> Matched | None:
    """Return which stop rule ended a choice with its last token; None if none did.

    `stop_place` is the index of the stop string, if one did.
    """
    if reason is not FinishReason.STOP:
        return None
    if stop_place is None:
        return Matched(stop_token_id=token_id)
    return Matched(stop_string=stop.stop_strings[stop_place])


class Path(enum.IntEnum):
    """The path of a request when it was first dispatched; values as in the protocol."""

    UNSPECIFIED = 0
    """It was not dispatched."""
    AGGREGATED = 1
    """The decode worker computed the prompt."""
    DISAGGREGATED = 2
    """A prefill worker computed the prompt and handed its KV over."""


class FailureReason(enum.IntEnum):
    """Why a worker gave up a sequence; values as in the protocol."""

    REFUSED = 1
    NO_BLOCKS = 2
    HANDOFF = 3
    INTERNAL = 4
    DRAINING = 5
    SUPERSEDED = 6
    OUTPUT = 7
    FENCED = 8


class ReceiveKind(enum.IntEnum):
    """The kind of a handoff to receive; values as in the protocol, which says more."""

    PROMPT = 1
    AHEAD = 2
    """Full blocks of a sequence that runs elsewhere, for the prefix cache."""
    STOPPED = 3
    """A sequence stopped elsewhere: KV of all its tokens but the newest."""


@value
class Fence:
    """Identifies one attempt of one request; see `Fence` in `attempt.proto`."""

    tenant: str
    request_id: str
    session: int
    attempt: int
    choice: int
    source_incarnation: str
    target_incarnation: str
    router_id: str = ""
    router_incarnation: str = ""
    run: int = 0


@value
class Part:
    """One choice of a running group, under a handle and a fence of its own."""

    handle: int
    fence: Fence
    """Its `choice` names the choice."""
    session_age_seconds: float = 0.0
    """How long ago the last call of its session came; 0 for session 0, which comes after no other."""


@value
class PrefixSource:
    """Another worker that may lend the leading blocks of a prompt."""

    address: str
    incarnation: str
    num_blocks: int
    """From the prompt's first block on."""


@value
class SequenceSpec:
    """A group of choices that share all tokens so far, as a worker receives it."""

    handle: int
    fence: Fence
    prompt_token_ids: Sequence[int]
    output_token_ids: tuple[int, ...]
    """Tokens already generated and delivered; only with a single choice."""
    choices: tuple[int, ...]
    sampling: SamplingParams
    stop: StopRules
    cache_salt: bytes = b""
    tpot_ms: int | None = None
    itl_ms: int | None = None
    """The promised gap between tokens; `tpot_ms` is for their mean, `itl_ms` for each. None without a
    promise."""
    adapter: str = ""
    """The digest of its LoRA adapter; empty for the base model."""
    prefix_source: PrefixSource | None = None
    """Where to fetch its beginning, if that pays; None: it is computed, or read from the worker's disk."""
    session_age_seconds: float = 0.0
    """How long ago the last call of its session came; 0 for session 0, which comes after no other."""
