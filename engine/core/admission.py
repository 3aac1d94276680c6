"""Makes groups of the sequences that commands bring, and says why others cannot run."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from engine.core.memory.block_tables import BlockTables
from engine.core.report import Failure
from engine.core.sequence import Goal, SequenceGroup
from output_text.output import output_rules
from scheduling.request import FailureReason, ReceiveKind, SequenceSpec, leaves_a_token


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


class Admission:
    """Makes the groups of what commands bring, each with a key of its own.

    The pool has `num_blocks`. `refuse` returns why the executor cannot run a sequence at all, or None.
    """

    def __init__(
        self,
        tables: BlockTables,
        num_blocks: int,
        limits: EngineLimits,
        keys: Iterator[int],
        refuse: Refuse,
    ) -> None:
        self._tables = tables
        self._num_blocks = num_blocks
        self._limits = limits
        self._keys = keys
        self._refuse = refuse

    def enter(
        self, spec: SequenceSpec, goal: Goal, receives: ReceiveKind | None, now_s: float
    ) -> SequenceGroup | Failure:
        """Return the group that waits for its turn, or why it can never have one."""
        sentence = self._refuse(spec)
        if sentence is not None:
            return Failure(spec.handle, FailureReason.REFUSED, sentence)
        limits, num_prompt = self._limits, len(spec.prompt_token_ids)
        rules = output_rules(spec.stop, limits.eos_token_ids, num_prompt, limits.max_context)
        hashes = self._tables.names.of_full_blocks(spec, spec.output_token_ids)
        group = SequenceGroup(next(self._keys), spec, goal, rules, hashes, now_s)
        group.receives = receives is not None
        group.lacks_newest = receives is ReceiveKind.STOPPED
        if receives is not None:
            group.num_prompt_rows = 0  # reported where the prompt was computed
        num_most = self._tables.most_blocks(group, group.num_rows)
        if num_most > self._num_blocks:
            sentence = f"up to {num_most} blocks are needed, and the pool has {self._num_blocks}"
            return Failure(spec.handle, FailureReason.NO_BLOCKS, sentence)
        return group


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
