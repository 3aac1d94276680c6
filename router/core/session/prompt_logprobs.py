"""Relays log-probabilities of prompts: each once, in order, before the first generated token."""

from __future__ import annotations

from collections.abc import Sequence

from router.core.actions import TellPromptLogprobs
from router.core.capacity.fleet import Worker
from router.core.session import recover
from router.core.session.session import Group, Session
from router.core.state import RouterState
from scheduling.columns import PromptLogprobs, TokenColumns, take_rows


def take(state: RouterState, worker: Worker, pieces: Sequence[PromptLogprobs]) -> list[Group]:
    """Relay log-probabilities that are new: attempts repeat old ones. Return groups with complete prompts."""
    complete = []
    for piece in pieces:
        group = worker.groups.get(piece.handle)
        if group is None or not group.session.lacks_prompt_logprobs:
            continue
        session = group.session
        expected = session.next_prompt_index
        if piece.first_index > expected or piece.next_index > len(session.prompt_token_ids):
            fault = f"log-probabilities of prompt tokens {piece.first_index} to {piece.next_index - 1}"
            sentence = f"protocol error: {fault}, expected from {expected} on"
            recover.fail_attempt(state, group, worker.key, sentence)
            continue
        if piece.next_index > expected:
            new = piece.from_index(expected)
            session.prompt_logprobs.append(new)
            for listener in session.listeners:
                state.actions.append(TellPromptLogprobs(listener, new))
        if not session.lacks_prompt_logprobs:
            state.lacking_logprobs.discard(session.sid)
            complete.append(group)
    return complete


def hold_early(state: RouterState, worker: Worker, tokens: TokenColumns) -> TokenColumns:
    """Keep rows that came before the log-probabilities of their prompts, and return the others.

    A decode worker's report may arrive before the prefill worker's. The worker that computed the prompt
    has to report log-probabilities first.
    """
    held: dict[Group, list[int]] = {}
    passed = []
    for row, handle in enumerate(tokens.handles):
        group = worker.groups.get(handle)
        if group is not None and group.session.lacks_prompt_logprobs:
            held.setdefault(group, []).append(row)
        else:
            passed.append(row)
    if not held:
        return tokens
    for group, rows in held.items():
        if worker.key == group.prefill_key:
            sentence = "protocol error: a token comes before the log-probabilities of its prompt"
            recover.fail_attempt(state, group, worker.key, sentence)
        else:
            group.early_tokens.append(take_rows(tokens, rows, [group.handle] * len(rows)))
    return take_rows(tokens, passed, [tokens.handles[row] for row in passed])


def replay(state: RouterState, session: Session, listener: int, num_received: int) -> None:
    """Send a call that attaches all log-probabilities that it has not received."""
    for piece in session.prompt_logprobs:
        if piece.next_index > 1 + num_received:
            state.actions.append(TellPromptLogprobs(listener, piece.from_index(1 + num_received)))
