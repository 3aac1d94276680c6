"""The limits of an engine, and why a sequence cannot run within them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from scheduling.request import SequenceSpec, leaves_a_token


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits of the model and the pool."""

    vocab_size: int
    max_context: int
    """Most tokens of prompt and output together."""
    max_num_seqs: int
    """Most choices in the batch."""
    token_budget: int
    """Most tokens of one step, as far as the running choices leave some for prefill."""
    eos_token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_context", "max_num_seqs", "token_budget"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")


Refuse = Callable[[SequenceSpec], str | None]
"""Returns why an executor cannot run a sequence at all, or None."""


def refusal(
    spec: SequenceSpec,
    limits: EngineLimits,
    *,
    has_text: bool,
    adapters: Container[str] = (),
) -> str | None:
    """Return why a model cannot run a sequence at all, or None; with `has_text` it has a tokenizer.

    `adapters` are the digests of those that the model has or can load.

    A sequence that slips through would fail the step, and with it its neighbours.
    """
    sentences = chain(
        _check_context(spec, limits),
        _check_choices(spec, limits),
        _check_token_ids(spec, limits),
        _check_text(spec, has_text=has_text),
        _check_bans(spec, limits),
        _check_adapter(spec, adapters),
    )
    return next(sentences, None)


def _check_context(spec: SequenceSpec, limits: EngineLimits) -> Iterator[str]:
    num_prompt, num_output = len(spec.prompt_token_ids), len(spec.output_token_ids)
    if num_prompt == 0:
        yield "prompt_token_ids is empty; at least one token is needed"
    if num_prompt + num_output >= limits.max_context:
        yield (
            f"prompt_token_ids and output_token_ids have {num_prompt + num_output} tokens; "
            f"at most {limits.max_context - 1} leave room for one more"
        )
    if num_output >= spec.stop.max_tokens:
        yield f"max_tokens is {spec.stop.max_tokens}, and output_token_ids already has {num_output} tokens"


def _check_choices(spec: SequenceSpec, limits: EngineLimits) -> Iterator[str]:
    num_choices = len(spec.choices)
    if not 1 <= num_choices <= limits.max_num_seqs:
        yield f"choices has {num_choices} entries; accepted are 1 to {limits.max_num_seqs}"
    if len(set(spec.choices)) != num_choices:
        yield f"choices is {spec.choices}; each choice may appear once"
    if spec.output_token_ids and num_choices != 1:
        yield f"output_token_ids is given for {num_choices} choices; it belongs to a single one"


def _check_token_ids(spec: SequenceSpec, limits: EngineLimits) -> Iterator[str]:
    bias_ids = [token_id for token_id, _ in spec.sampling.logit_bias]
    fields: tuple[tuple[str, Sequence[int]], ...] = (
        ("prompt_token_ids", spec.prompt_token_ids),
        ("output_token_ids", spec.output_token_ids),
        ("stop_token_ids", spec.stop.stop_token_ids),
        ("logit_bias", bias_ids),
        ("allowed_token_ids", spec.sampling.allowed_token_ids),
        ("bad_words", [token_id for word in spec.sampling.bad_words for token_id in word]),
    )
    for name, token_ids in fields:
        for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token_id < limits.vocab_size:
                yield f"{name} holds token {token_id}; accepted are 0 to {limits.vocab_size - 1}"


def _check_text(spec: SequenceSpec, *, has_text: bool) -> Iterator[str]:
    if spec.stop.stop_strings and not has_text:
        yield "stop_strings needs a tokenizer, and this model has none; use stop_token_ids"
    if "" in spec.stop.stop_strings:
        yield "stop_strings holds an empty string; each must have at least one character"


def _check_bans(spec: SequenceSpec, limits: EngineLimits) -> Iterator[str]:
    if () in spec.sampling.bad_words:
        yield "bad_words holds an empty sequence; each must have at least one token"
    elif not leaves_a_token(spec.sampling, spec.stop, limits.eos_token_ids, limits.vocab_size):
        yield "allowed_token_ids, bad_words and min_tokens leave no token to draw; one must be left"


def _check_adapter(spec: SequenceSpec, adapters: Container[str]) -> Iterator[str]:
    if spec.adapter and spec.adapter not in adapters:
        accepted = "those of its --lora or --lora-dir"
        yield f"adapter is {spec.adapter}, which this worker does not have; accepted are {accepted}"
