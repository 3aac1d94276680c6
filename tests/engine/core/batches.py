"""Batches of sequences that have had their first token."""

from __future__ import annotations

from dataclasses import replace

from engine.core.batch import Batch
from engine.core.due_times import after_first_token
from engine.core.sequence import Choice, Goal, SequenceGroup
from model_output.text.output import OutputStream, output_rules
from scheduling.request import StopRules
from tests.engine.loop_driver import spec
from tests.engine.row_table import NoRows

BLOCK = 8


def sequence(handle: int, prompt: int, output: int, tpot_ms: int | None = None) -> Choice:
    """A choice that has had its first token at 0 s."""
    one = replace(spec(handle, [1] * prompt, stop=StopRules(output)), tpot_ms=tpot_ms)
    rules = output_rules(one.stop, (), prompt, 1000)
    group = SequenceGroup(handle, one, Goal.DECODE, rules, [], 0.0)
    choice = Choice(group, 0, OutputStream(rules, None))
    choice.output_token_ids.append(1)
    choice.due = after_first_token(tpot_ms, None, 0.0)
    return choice


def batch_of(choices: list[Choice], num_micro_batches: int = 1) -> Batch:
    batch = Batch(8, BLOCK, NoRows(), num_micro_batches)
    for choice in choices:
        batch.join(choice)
    return batch
