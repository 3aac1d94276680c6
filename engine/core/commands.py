"""Commands to the worker core, drained from the step loop's inbox between two steps."""

from __future__ import annotations

from dataclasses import dataclass

from model_output.grammar.grammar import CompiledGrammar
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.request import ReceiveKind, SequenceSpec


@dataclass(frozen=True, slots=True)
class Prefill:
    """Compute the prompt, sample the first tokens, then hold the blocks until `Release`."""

    spec: SequenceSpec


@dataclass(frozen=True, slots=True)
class Decode:
    """Compute the prompt here, then decode."""

    spec: SequenceSpec


@dataclass(frozen=True, slots=True)
class Receive:
    """Once memory has room, pin the cached prefix, allocate the rest of the prompt and report `Received`."""

    spec: SequenceSpec
    kind: ReceiveKind = ReceiveKind.PROMPT


@dataclass(frozen=True, slots=True)
class GrammarReady:
    """The grammar that a sequence's output has to follow, which waits for it; None if `refusal` says why not.

    It is compiled elsewhere, since that may take as long as many steps.
    """

    handle: int
    grammar: CompiledGrammar | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class AdapterLoaded:
    """A load that the core asked for is over; the adapter is in its slot, unless `refusal` says why not."""

    digest: str
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class KVArrived:
    """No copy into this sequence's blocks runs any more.

    The first `num_verified_blocks` blocks (held ones included) hold what they should; the rest of the prompt
    is recomputed. `first_tokens` are the source's samples, one row per choice; they are not sampled again.
    They were drawn `first_token_age_s` before this command, from when on the next tokens' due times count.
    Only `ReceiveKind.PROMPT` has any.
    """

    handle: int
    num_verified_blocks: int
    first_tokens: TokenColumns
    first_token_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KVFailed:
    """No copy runs any more and none will succeed: free the sequence and report `FailureReason.HANDOFF`."""

    handle: int
    message: str


@dataclass(frozen=True, slots=True)
class BlocksRead:
    """No read into this sequence's blocks runs any more.

    The first `num_blocks` of those that `Reading` named hold what they should; the rest is computed. If the
    read from another worker `failed`, sequences that have waited for it do not try again one by one.
    """

    handle: int
    num_blocks: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class BeginLoan:
    """Hold blocks of the prefix cache, with those in other tiers behind them, until `Release`.

    They are reported filled, all at once. `Failure` says that there are none.
    """

    handle: int
    hashes: tuple[bytes, ...]
    """Consecutive blocks of a prompt; what is held begins with the first."""
    limit_s: float
    """Blocks that take longer to read are not read."""


@dataclass(frozen=True, slots=True)
class Release:
    """The blocks of a prefilled sequence or a loan were acknowledged, or its handoff is over: free them."""

    handle: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget the sequence in whatever phase it is; unknown handles are ignored.

    A receiving sequence keeps its blocks until `KVArrived` or `KVFailed`, and one that is read until
    `BlocksRead`: a copy may still write to them.
    """

    handle: int


@dataclass(frozen=True, slots=True)
class PreCopy:
    """Hold the first blocks of a running choice as a sequence `part` of their own, and report them filled."""

    handle: int
    choice: int
    num_blocks: int
    """All full."""
    part: int


@dataclass(frozen=True, slots=True)
class StopAndCopy:
    """Stop a sequence, hold each choice's blocks as a sequence of its own, and report it parked.

    A part whose choice holds no blocks fails with `FailureReason.DRAINING`.
    """

    handle: int
    parts: tuple[tuple[int, int], ...]
    """(choice, handle of its part)."""


@dataclass(frozen=True, slots=True)
class HandBack:
    """Give up what no work has gone into yet, with `FailureReason.DRAINING`."""


@dataclass(frozen=True, slots=True)
class SetCost:
    """Plan steps by these costs from now on."""

    cost: CostModel


SequenceCommand = (
    Prefill
    | Decode
    | Receive
    | GrammarReady
    | AdapterLoaded
    | KVArrived
    | KVFailed
    | BlocksRead
    | BeginLoan
    | Release
    | Cancel
    | HandBack
    | PreCopy
    | StopAndCopy
)
Command = SequenceCommand | SetCost
