"""Step reports become delivered tokens: strictly by (choice, index), repeats dropped, gaps an error.

The token path makes no object per token, and one action for the whole report. Log-probabilities of a prompt
are relayed once, in order, before the first generated token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.core import finish, move, recover
from router.core.dispatch import release_credit
from router.core.model.actions import Relay, TellChoiceFinished, TellPromptLogprobs
from router.core.model.events import SequenceFailed, StepReported
from router.core.model.fleet import Worker
from router.core.model.session import Choice, Group, Session, TokenLogprobs
from router.core.model.state import RouterState
from scheduling.admission.learnt import Learnt
from scheduling.columns import PromptLogprobs, TokenColumns, take_rows
from scheduling.request import FailureReason, FinishReason, matched

FAILING = {FailureReason.HANDOFF: recover.fail_handoff, FailureReason.FENCED: recover.fail_fenced}
"""Failures of an attempt that are not taken for the request's doing."""


def on_step_reported(state: RouterState, event: StepReported) -> None:
    """Take in one report. Whatever an older attempt reports late finds no group and is ignored."""
    worker = state.fleet.workers.get(event.worker_key)
    if worker is not None:
        take_step(state, worker, event)
        take_changes(state, worker, event)


def take_step(state: RouterState, worker: Worker, event: StepReported) -> None:
    """Take in what a report says of its worker and of prompts, and all tokens."""
    state.fleet.take_report(worker, event, state.now)
    _take_prefilled(state, worker, event)
    complete = _take_prompt_logprobs(state, worker, event.prompt_logprobs) if event.prompt_logprobs else ()
    tokens = event.tokens
    if state.lacking_logprobs:
        tokens = _hold_early(state, worker, tokens)
    if tokens.handles:
        _take_tokens(state, worker, tokens)
    for group in complete:
        _take_early(state, group)


def _take_prefilled(state: RouterState, worker: Worker, event: StepReported) -> None:
    for handle, cached_tokens in zip(event.prefilled, event.cached_tokens, strict=True):
        group = worker.groups.get(handle)
        if group is None or worker.key != group.prefill_key:
            continue
        release_credit(state, group)
        if group.attempt == 1:
            # The tokens that a resumed request brought are prefilled after its prompt, and are no part of it.
            of_prompt = min(cached_tokens, len(group.session.request.prompt_token_ids))
            group.session.cached_tokens = max(group.session.cached_tokens, of_prompt)


def take_changes(state: RouterState, worker: Worker, event: StepReported) -> None:
    """Take in what became of groups, after all of their tokens."""
    for handle in event.prefilled if worker.copies else ():
        move.on_copied(state, worker, handle)
    for handle in event.parked:
        move.on_parked(state, worker, handle)
    if event.resumed:
        move.on_resumed(worker, event.resumed)
    if event.preempted:
        move.on_preempted(state, worker, event.preempted)
    for handle in event.released:
        recover.on_released(state, worker, handle)
    for failure in event.failures:
        _take_failure(state, worker, failure)


def _take_failure(state: RouterState, worker: Worker, failure: SequenceFailed) -> None:
    group = worker.groups.get(failure.handle)
    if group is None:
        move.on_copy_failed(state, worker, failure.handle)
    elif failure.reason is FailureReason.DRAINING:
        recover.start_elsewhere(state, group, worker.key)
    elif failure.reason is FailureReason.SUPERSEDED:
        recover.on_superseded(state, group, failure)
    elif failure.reason is FailureReason.OUTPUT:
        recover.fail_for_good(state, group, worker.key, failure.message)
    else:
        fail = FAILING.get(failure.reason, recover.fail_attempt)
        fail(state, group, worker.key, f"{failure.reason.name}: {failure.message}")


# Tokens of one step


def _take_tokens(state: RouterState, worker: Worker, tokens: TokenColumns) -> None:
    relay = Relay()
    broken: dict[Group, str] = {}
    ended: dict[Group, None] = {}
    text_at = 0
    has_text = bool(tokens.text_lengths)
    row_logprobs = _logprobs_by_row(tokens) if tokens.logprob_rows else {}
    stop_places = dict(zip(tokens.stop_rows, tokens.stop_places, strict=True))
    for row, handle in enumerate(tokens.handles):
        start, text_at = text_at, text_at + (tokens.text_lengths[row] if has_text else 0)
        group = worker.groups.get(handle)
        if group is None or group in broken:
            continue
        choice = choice_of(group, tokens.choices[row])
        index, token_id = tokens.indexes[row], tokens.token_ids[row]
        fault = fault_of(choice, index, token_id)
        if choice is None or fault:
            broken[group] = fault
            continue
        is_decoder = worker.key == group.decode_key
        if is_decoder and not group.decode_reported:
            mark_decoding(group, state.now)
        if index < len(choice.token_ids):
            continue
        text = tokens.text_utf8[start:text_at].decode() if text_at > start else ""
        reason = tokens.finish_reasons[row]
        _deliver(state, relay, choice, group.session, token_id, text, reason, row_logprobs.get(row))
        if reason:
            _match(relay, choice, group.session, stop_places.get(row))
            ended[group] = None
        decoder = worker if is_decoder else state.fleet.workers.get(group.decode_key or "")
        if decoder is not None:
            decoder.remaining_tokens -= 1
    if relay.listeners:
        state.counters.relayed_tokens += len(relay.listeners)
        state.actions.append(relay)
    for group in ended:
        if not group.open_choices:
            finish.end_group(state, group)
    for group, fault in broken.items():
        recover.fail_attempt(state, group, worker.key, f"protocol error: {fault}")


def choice_of(group: Group, index: int) -> Choice | None:
    """Return the choice of this index, if it belongs to the group."""
    choices = group.session.choices
    if index < len(choices) and choices[index].group is group:
        return choices[index]
    return None


def fault_of(choice: Choice | None, index: int, token_id: int) -> str:
    """Return what is wrong with a row; empty when it is the next token or repeats a delivered one."""
    if choice is None:
        return "a row of a choice that is not of its group"
    known = len(choice.token_ids)
    if index < known:
        if choice.token_ids[index] != token_id:
            return f"choice {choice.index} repeats index {index} with another token"
    elif index > known:
        return f"choice {choice.index} goes on at index {index}, expected {known}"
    elif choice.finish:
        return f"choice {choice.index} goes on at index {index} after its end"
    return ""


def _deliver(
    state: RouterState,
    relay: Relay,
    choice: Choice,
    session: Session,
    token_id: int,
    text: str,
    reason: int,
    logprobs: TokenLogprobs | None,
) -> None:
    index = len(choice.token_ids)
    if len(choice.texts) < index:
        choice.pad()
    choice.token_ids.append(token_id)
    choice.texts.append(text)
    choice.logprobs.append(logprobs)
    gap_s = _gap(session, choice, state.now, state.learnt)
    if reason:
        choice.finish = FinishReason(reason)
    for listener in session.listeners:
        relay.listeners.append(listener)
        relay.choices.append(choice.index)
        relay.indexes.append(index)
        relay.token_ids.append(token_id)
        relay.texts.append(text)
        relay.finish_reasons.append(reason)
        relay.logprobs.append(logprobs)
        relay.gaps_s.append(gap_s)


def _match(relay: Relay, choice: Choice, session: Session, stop_place: int | None) -> None:
    """Set the stop rule that the choice's last token matched, if any."""
    choice.matched = matched(choice.finish, choice.token_ids[-1], stop_place, session.request.stop)
    if choice.matched is not None:
        relay.matches.extend((listener, choice.index, choice.matched) for listener in session.listeners)


def mark_decoding(group: Group, now: float) -> None:
    group.decode_reported = True
    timeline = group.session.timeline
    if timeline.decode_at is None:
        timeline.decode_at = now


def _gap(session: Session, choice: Choice, now: float, learnt: Learnt) -> float | None:
    """Return the seconds since the choice's token before; None for its first one here."""
    last, choice.last_at = choice.last_at, now
    if last is not None:
        gap_s = now - last
        session.max_gap_s = max(session.max_gap_s, gap_s)
        return gap_s
    choice.first_at = now
    if session.timeline.first_token_at is None:
        session.timeline.first_token_at = now
        _learn_ttft(learnt, session, now)
    return None


def _learn_ttft(learnt: Learnt, session: Session, now: float) -> None:
    if session.predicted is not None and session.attempts == 1:
        observed_s = now - session.timeline.received_at
        is_trial = session.decision is not None and session.decision.is_trial
        if is_trial and now <= session.ttft_due_at:
            learnt.fixed.forget()
        learnt.learn_ttft(session.predicted, observed_s, now)


def _logprobs_by_row(tokens: TokenColumns) -> dict[int, TokenLogprobs]:
    found, at = {}, 0
    for place, row in enumerate(tokens.logprob_rows):
        end = at + tokens.top_counts[place]
        found[row] = TokenLogprobs(
            tokens.logprobs[place], tuple(tokens.top_token_ids[at:end]), tuple(tokens.top_logprobs[at:end])
        )
        at = end
    return found


def _take_early(state: RouterState, group: Group) -> None:
    """Relay a group's early rows from the decode worker, in order, now that its prompt is complete."""
    early, group.early_tokens = group.early_tokens, []
    for tokens in early:
        decoder = state.fleet.workers.get(group.decode_key or "")
        if decoder is not None and decoder.groups.get(group.handle) is group:
            _take_tokens(state, decoder, tokens)


# Calls that attach


def replay(state: RouterState, session: Session, listener: int, received: Mapping[int, int]) -> None:
    """Send a call that attaches all tokens that it has not received."""
    relay = Relay(replayed=True)
    for choice in session.choices:
        choice.pad()
        first, count = received.get(choice.index, 0), len(choice.token_ids)
        relay.listeners.extend([listener] * (count - first))
        relay.choices.extend([choice.index] * (count - first))
        relay.indexes.extend(range(first, count))
        relay.token_ids.extend(choice.token_ids[first:])
        relay.texts.extend(choice.texts[first:])
        relay.logprobs.extend(choice.logprobs[first:])
        relay.finish_reasons.extend([0] * (count - first))
        relay.gaps_s.extend([None] * (count - first))
    if relay.listeners:
        state.actions.append(relay)
    tell_ended_choices(state, session, listener)


def tell_ended_choices(state: RouterState, session: Session, listener: int) -> None:
    """Tell a call which choices are over."""
    for choice in session.choices:
        if choice.finish:
            count = len(choice.token_ids)
            told = TellChoiceFinished(listener, choice.index, choice.finish, count, choice.matched)
            state.actions.append(told)


# Log-probabilities of prompts


def _take_prompt_logprobs(
    state: RouterState, worker: Worker, pieces: Sequence[PromptLogprobs]
) -> list[Group]:
    """Relay log-probabilities that are new: attempts repeat old ones. Return groups with complete prompts."""
    complete = []
    for piece in pieces:
        group = worker.groups.get(piece.handle)
        if group is None or not group.session.lacks_prompt_logprobs:
            continue
        session = group.session
        expected = session.next_prompt_index
        if piece.first_index > expected or piece.next_index > len(session.request.prompt_token_ids):
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


def _hold_early(state: RouterState, worker: Worker, tokens: TokenColumns) -> TokenColumns:
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


def replay_prompt_logprobs(state: RouterState, session: Session, listener: int, num_received: int) -> None:
    """Send a call that attaches all log-probabilities that it has not received."""
    for piece in session.prompt_logprobs:
        if piece.next_index > 1 + num_received:
            state.actions.append(TellPromptLogprobs(listener, piece.from_index(1 + num_received)))
