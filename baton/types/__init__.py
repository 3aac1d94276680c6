"""The types of the SDK: parts of requests, the events of a stream, and the results of other calls.

A field of a request that is None takes the fleet's default. `proto/baton/v1/generation.proto` names the
default and the accepted range beside each field. Names that end in `_ms` are milliseconds.

Beside them are `chat` (messages and tools of a prompt), `deltas` (what a text says, as routers read it) and
`snapshots` (a fleet's state).

May import nothing else of the project.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.types.deltas import Delta


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
    """The kind of worker that computed a request's prompt when it was first dispatched."""

    AGGREGATED = "aggregated"
    """The decode worker itself."""
    DISAGGREGATED = "disaggregated"
    """A prefill worker, which handed over its KV."""


class Verdict(enum.StrEnum):
    ACCEPTED = "accepted"
    AT_RISK = "at risk"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is sampled.

    `temperature` 0 is greedy. `logprobs` n requests n alternatives of each token, `prompt_logprobs` those of
    the prompt's own tokens. If `allowed_token_ids` is set, only these tokens are sampled. `bad_words` never
    appear in the output.
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


SAMPLING_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""The fields of `Sampling` for which a model may have defaults of its own."""


@dataclass(frozen=True, slots=True)
class Stop:
    """When a choice ends, and which of its tokens become text.

    `include_stop` keeps the stop string or token that ended the choice in its text. With
    `skip_special_tokens` False, the text contains special tokens, such as end-of-sequence.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    strings: Sequence[str] = ()
    token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special_tokens: bool | None = None


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The text is JSON that validates against this schema, a JSON value or its text."""

    schema: Mapping[str, Any] | bool | str


@dataclass(frozen=True, slots=True)
class JsonObject:
    """The text is a JSON object."""


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole text matches this regular expression, in Rust's syntax."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """The text is what this grammar derives: `start` in llguidance's dialect of Lark, or `root` in EBNF."""

    lark: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """The text is one of these."""

    texts: Sequence[str]


OutputFormat = JsonSchema | JsonObject | Regex | Grammar | OneOf


@dataclass(frozen=True, slots=True)
class Slo:
    """The latency to promise. Without `ttft_ms`, `tpot_ms` and `itl_ms` a request is never refused for
    latency.

    tpot_ms  the mean gap between tokens after the first
    itl_ms   each of these gaps; `Delivery.max_gap_ms` is the longest one
    """

    ttft_ms: int | None = None
    tpot_ms: int | None = None
    itl_ms: int | None = None
    deadline_ms: int | None = None
    slo_class: SloClass = SloClass.STANDARD
    allow_at_risk: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """The program that a request is a call of: several calls, one after another, with one deadline.

    `deadline_ms` is the time left for this call and all later ones when it is sent; 0 if it is over.
    """

    id: str
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long this client waits; None means forever. Unlike `Slo.deadline_ms`, a timeout raises an error.

    connect_s      how long routers may be unreachable, at the start or after a break
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
    """The promised SLO, None where none was requested, and the predicted 90 % quantiles."""

    predicted_ttft_ms: float
    predicted_tpot_ms: float
    ttft_ms: int | None
    tpot_ms: int | None
    at_risk: bool
    itl_ms: int | None = None
    predicted_itl_ms: float = 0.0
    """The 95 % quantile of the longest gap between tokens."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of one token; `top` has (token id, log-probability), most likely first."""

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
    """A digest of the fleet's weights, dtype and KV layout."""
    tool_format: str = ""
    """How the text writes tool calls; empty if it writes none."""
    reasoning_format: str = ""
    """How the text writes reasoning; empty if it writes none."""
    reasoning_open: bool = False
    """The prompt ends inside reasoning, so the text begins there."""
    has_deltas: bool = False
    """The router reads the texts: deltas say what they say. If false, they are nothing but content."""


@dataclass(frozen=True, slots=True)
class Queued:
    """The place in the queue; sent now and then while the request waits."""

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
    deltas: tuple[Delta, ...] = ()
    """Content, reasoning and calls that the tokens add, with `Accepted.has_deltas`."""


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """The end of a choice. `stop_string` or `stop_token_id` is set if a stop rule of the request ended it."""

    choice: int
    reason: FinishReason
    output_tokens: int
    stop_string: str | None = None
    stop_token_id: int | None = None
    deltas: tuple[Delta, ...] = ()
    """The rest of the choice's deltas."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """The latencies delivered, on the router's clock. `tpot_ms` is None with fewer than two tokens.

    A limit that was not promised counts as kept. `ttft_kept` is False if there was no token.
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
    """The time spent in each phase; the phases add up to `Delivery.e2e_ms`."""

    queue_ms: float
    prefill_ms: float
    handoff_ms: float
    decode_ms: float
    relay_ms: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event. `error` is empty unless a choice ended with `FinishReason.FAILED`.

    `path` is None if nothing was dispatched.
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
    deltas: tuple[Delta, ...] = ()
    """Content, reasoning and calls of the choice, with `Completion.has_deltas`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole generation. `resumes` counts the breaks that it survived.

    `prompt_logprobs`, if requested, has one element for each token of the prompt but the first. The last
    four fields are those of `Accepted`.
    """

    request_id: str
    seed: int
    choices: tuple[Choice, ...]
    finished: Finished
    resumes: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    tool_format: str = ""
    reasoning_format: str = ""
    reasoning_open: bool = False
    has_deltas: bool = False

    @property
    def text(self) -> str:
        """The text of the first choice."""
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
    """The promise that a request would get now. The last two fields are set if it would be refused."""

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
    model_type: str = ""
    tool_format: str = ""
    """How the model writes tool calls; empty if that is not known."""
    reasoning_format: str = ""
    """How the model writes reasoning; empty if that is not known."""
    adapters: tuple[str, ...] = ()
    """The names of the LoRA adapters that workers have."""
    default_sampling: Sampling = field(default_factory=Sampling)
    """The sampling of requests that do not state it; a field that is None has the protocol's default."""
    more_names: tuple[str, ...] = ()
    """Further names that requests may give the model."""
