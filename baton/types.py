"""What a caller says and hears: request parts, the events of a stream, and the answers of the other calls.

A request part's field left at None takes the fleet's default, which `proto/baton/v1/generation.proto` names
beside each field together with the range accepted. Times are milliseconds where the name ends in `_ms`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class SloClass(enum.StrEnum):
    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


class FinishReason(enum.StrEnum):
    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    FAILED = "failed"


class Path(enum.StrEnum):
    """Who computed a request's prompt when it was first dispatched."""

    AGGREGATED = "aggregated"
    """The decode worker itself."""
    DISAGGREGATED = "disaggregated"
    """A prefill worker, which handed its KV over."""


class Verdict(enum.StrEnum):
    ACCEPTED = "accepted"
    AT_RISK = "at risk"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """`role` is what the model's chat template accepts, usually system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat with variables and options for the model's chat template.

    template_arguments      variables of the template, such as enable_thinking; any JSON value
    add_generation_prompt   begin the assistant's answer; by default unless the last message is continued
    continue_final_message  the answer continues the last message
    """

    messages: Sequence[ChatMessage]
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


Prompt = str | Sequence[ChatMessage] | Chat | Sequence[int]
"""Text, the messages of a chat, a chat with arguments for its template, or token ids."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. `temperature` 0 is greedy. `logprobs` n asks for n alternatives of each
    token, `prompt_logprobs` for those of the prompt's own tokens. If there are `allowed_token_ids`, only
    these are drawn. `bad_words` are never completed.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """When a choice ends, and which of its tokens become text.

    `include_stop` keeps the stop string or token that ended the choice. `skip_special_tokens` False shows
    special tokens, such as end-of-sequence.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    strings: Sequence[str] = ()
    token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special_tokens: bool | None = None


@dataclass(frozen=True, slots=True)
class Slo:
    """What to be promised; without `ttft_ms`, `tpot_ms` and `itl_ms` a request is never refused for latency.

    tpot_ms  the mean gap between tokens after the first
    itl_ms   each of these gaps; what came of it is `Delivery.max_gap_ms`
    """

    ttft_ms: int | None = None
    tpot_ms: int | None = None
    itl_ms: int | None = None
    deadline_ms: int | None = None
    slo_class: SloClass = SloClass.STANDARD
    allow_at_risk: bool = False


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long this client waits; None is for ever. Unlike `Slo.deadline_ms` it ends in an error.

    connect_s      routers may be out of reach for so long, at the start or after a break
    first_token_s  from the call to the first token
    total_s        from the call to its end
    """

    connect_s: float = 10.0
    first_token_s: float | None = None
    total_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("connect_s", "first_token_s", "total_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}: it must be over 0 seconds")


@dataclass(frozen=True, slots=True)
class Promise:
    """Predictions are the 90 % quantiles the admission was decided on; the SLO is None where none was set."""

    predicted_ttft_ms: float
    predicted_tpot_ms: float
    ttft_ms: int | None
    tpot_ms: int | None
    at_risk: bool
    itl_ms: int | None = None
    predicted_itl_ms: float = 0.0
    """The longest gap between tokens, nineteen times of twenty."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of one token; `top` is (token id, log-probability), most likely first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The first event."""

    request_id: str
    promise: Promise
    seed: int
    prompt_tokens: int
    fingerprint: str = ""
    """Digest of the fleet's weights, dtype and KV layout."""


@dataclass(frozen=True, slots=True)
class Queued:
    """Comes now and then while the request waits."""

    position: int
    work_ahead_tokens: int
    predicted_ttft_ms: float


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of consecutive prompt tokens; `first_index` is 1 in the first of these events."""

    first_index: int
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Consecutive tokens of one choice, and what they add to its text."""

    choice: int
    first_index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """One of the last two is set if a stop rule of the request ended the choice."""

    choice: int
    reason: FinishReason
    output_tokens: int
    stop_string: str | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """The latencies that were delivered, on the router's clock; `tpot_ms` is None with fewer than two tokens.

    A limit that was not promised counts as kept; `ttft_kept` is False without any token.
    """

    ttft_ms: float
    tpot_ms: float | None
    max_gap_ms: float
    e2e_ms: float
    ttft_kept: bool
    tpot_kept: bool
    itl_kept: bool = True


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Where the time went; the parts add up to `Delivery.e2e_ms`."""

    queue_ms: float
    prefill_ms: float
    handoff_ms: float
    decode_ms: float
    relay_ms: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event. `error` is empty unless a choice ended with `FinishReason.FAILED`; `path` is None where
    nothing was dispatched.
    """

    usage: Usage
    promise: Promise
    delivery: Delivery
    split: TimeSplit
    error: str = ""
    path: Path | None = None


Event = Accepted | Queued | PromptLogprobs | Tokens | ChoiceFinished | Finished


@dataclass(frozen=True, slots=True)
class Choice:
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()
    stop_string: str | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole generation. `resumes` counts the breaks it lived through.

    `prompt_logprobs`, if asked for, has one element for each token of the prompt but the first.
    """

    request_id: str
    seed: int
    choices: tuple[Choice, ...]
    finished: Finished
    resumes: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def text(self) -> str:
        """The first choice's."""
        return self.choices[0].text


@dataclass(frozen=True, slots=True)
class Attainable:
    """The tightest SLO that would have been accepted, and what was predicted."""

    ttft_ms: int
    tpot_ms: int
    predicted_ttft_ms: float
    predicted_tpot_ms: float
    itl_ms: int = 0
    predicted_itl_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Quote:
    """The promise a request would get now; the last two only when refused."""

    verdict: Verdict
    promise: Promise
    prompt_tokens: int
    retry_after_s: float | None = None
    attainable: Attainable | None = None


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    architecture: str
    max_context_tokens: int
    vocab_size: int
    has_chat_template: bool
    fingerprint: str = ""
    """The same as in `Accepted`; empty until the router has seen a worker."""
