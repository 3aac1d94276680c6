"""Sequences that end before their time: cancelled, refused, or failed by a step that breaks."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from engine.core.commands import Cancel, Decode
from engine.core.memory.block_tables import BlockTables
from model_output.grammar.grammar import Grammars, grammar_of
from scheduling.policies.chunked import CHUNKED
from scheduling.policies.policy import Policy
from scheduling.request import SamplingParams, StopRules
from tests.engine.fake_runner import greedy
from tests.engine.loop_driver import RESERVING, VOCAB, Driver, spec
from tests.model_output.text.tokenizers_zoo import one_byte_tokens

pytestmark = pytest.mark.usefixtures("both_ways")


def test_a_cancelled_sequence_leaves_within_one_step() -> None:
    driver = Driver(token_budget=16, max_num_seqs=3)
    driver.turn(
        Decode(spec(1, [1, 2], 50)),
        Decode(spec(2, list(range(40)), 50, choices=(0, 1))),
        Decode(spec(3, [3, 4], 50)),
        Decode(spec(4, [4, 4], 5)),
    )
    driver.turn(Cancel(1), Cancel(2), Cancel(3), Cancel(99))
    assert driver.freed() == [1, 2, 3]
    driver.finish()
    assert driver.tokens(4) == greedy([4, 4], 5, VOCAB)
    assert not driver.failures()
    driver.assert_at_rest()


@pytest.mark.parametrize("policy", [CHUNKED, RESERVING], ids=["expected", "maximum"])
def test_what_does_not_fit_now_waits_and_what_never_can_is_refused(policy: Policy) -> None:
    driver = Driver(num_blocks=8, policy=policy, overlaps=False)
    driver.turn(Decode(spec(1, list(range(9)), 12)))
    driver.turn(Decode(spec(2, list(range(40, 61)), 6)), Decode(spec(3, [1], 200)), Decode(spec(4, [2], 3)))
    assert driver.failures() == {3: "NO_BLOCKS: up to 50 blocks are needed, and the pool has 8"}
    driver.turn()
    # Its block was there, but who came first goes first.
    assert driver.reports[-1].load.running == 1
    assert driver.reports[-1].load.waiting == 2
    driver.finish()
    assert driver.tokens(1) == greedy(list(range(9)), 12, VOCAB)
    assert driver.tokens(2) == greedy(list(range(40, 61)), 6, VOCAB)
    assert driver.tokens(4) == greedy([2], 3, VOCAB)
    assert driver.freed()[:2] == [3, 1]
    assert sorted(driver.freed()) == [1, 2, 3, 4]
    driver.assert_at_rest()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (spec(2, []), "prompt_token_ids is empty"),
        (spec(2, [VOCAB]), f"prompt_token_ids holds token {VOCAB}; accepted are 0 to {VOCAB - 1}"),
        (spec(2, [1] * 256), "at most 255 leave room"),
        (spec(2, [1], 3, outputs=[1, 2, 3]), "max_tokens is 3"),
        (spec(2, [1], outputs=[1], choices=(0, 1)), "it belongs to a single one"),
        (spec(2, [1], choices=()), "choices has 0 entries"),
        (spec(2, [1], choices=tuple(range(17))), "accepted are 1 to 16"),
        (spec(2, [1], choices=(1, 1)), "each choice may appear once"),
        (spec(2, [1], stop=StopRules(4, stop_token_ids=(-1,))), "stop_token_ids holds token -1"),
        (spec(2, [1], sampling=SamplingParams(logit_bias=((VOCAB, 1.0),))), "logit_bias holds token"),
        (spec(2, [1], stop=StopRules(4, stop_strings=("a",))), "stop_strings needs a tokenizer"),
    ],
)
def test_what_would_break_the_step_is_refused(wrong: object, sentence: str) -> None:
    driver = Driver()
    driver.turn(Decode(spec(1, [1, 2], 5)))
    driver.turn(Decode(wrong))  # type: ignore[arg-type] # parametrize erases the type
    assert driver.failures()[2].startswith("REFUSED: ")
    assert sentence in driver.failures()[2]
    driver.finish()
    assert driver.tokens(1) == greedy([1, 2], 5, VOCAB)


def test_a_step_that_raises_fails_its_sequences_and_the_loop_goes_on() -> None:
    driver = Driver(token_budget=8)
    driver.turn(Decode(spec(1, [1, 2], 50)))
    driver.runner.error = RuntimeError("device lost")
    driver.turn(Decode(spec(2, list(range(20)), 50)), Decode(spec(3, [4], 5)))
    # The third did not fit the step's budget, so the step was not its own.
    message = "INTERNAL: the step failed: RuntimeError: device lost"
    assert driver.failures() == {1: message, 2: message}
    assert "device lost" in driver.reports[-1].step_error
    assert "Traceback" in driver.reports[-1].step_error
    driver.finish()
    assert driver.tokens(3) == greedy([4], 5, VOCAB)
    assert sorted(driver.freed()) == [1, 2, 3]
    driver.assert_at_rest()


def test_a_step_without_blocks_fails_its_prompts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(token_budget=8)
    with monkeypatch.context() as patched:
        patched.setattr(BlockTables, "cover", Mock(side_effect=AssertionError("no block is left")))
        driver.turn(Decode(spec(1, [1, 2], 5)))
    assert driver.failures() == {1: "INTERNAL: the step failed: AssertionError: no block is left"}
    driver.turn(Decode(spec(2, [4], 5)))
    driver.finish()
    assert driver.tokens(2) == greedy([4], 5, VOCAB)
    driver.assert_at_rest()


def test_broken_logits_fail_one_sequence_and_stay_out_of_the_cache() -> None:
    driver = Driver()
    clean = greedy([1, 2], 10, VOCAB)
    driver.runner.poison = next(token for token in range(VOCAB) if token not in clean)
    bad = [*range(60, 72), driver.runner.poison]
    driver.finish(Decode(spec(1, [1, 2], 10)), Decode(spec(2, bad, 10)), Decode(spec(3, [1, 2], 10)))
    assert list(driver.failures()) == [2]
    assert "INTERNAL: the model's logits are not finite" in driver.failures()[2]
    assert driver.tokens(1) == driver.tokens(3) == clean
    assert driver.tokens(2) == []
    driver.runner.poison = None
    driver.finish(Decode(spec(4, bad, 3)))
    assert driver.reports[-3].prefilled[0].cached_tokens == 0
    assert driver.tokens(4) == greedy(bad, 3, VOCAB)
    driver.assert_at_rest()


def test_a_format_that_becomes_too_complex_fails_its_request_alone(tmp_path: Path) -> None:
    one_byte_tokens(VOCAB).save(str(tmp_path / "tokenizer.json"))
    driver = Driver(grammars=Grammars(tmp_path / "tokenizer.json", VOCAB, [VOCAB - 1]))
    grammar = grammar_of("regex", "((((a{1,30}){1,30}){1,30}){1,3})")
    driver.finish(
        Decode(spec(1, [1, 2, 3], 200, sampling=SamplingParams(temperature=0.0, grammar=grammar))),
        Decode(spec(2, [4, 5, 6], 20)),
    )
    (why,) = driver.failures().values()
    assert why.startswith("OUTPUT: its output cannot go on by its format: ")
    assert 0 < len(driver.tokens(1)) < 200
    assert driver.tokens(2) == greedy([4, 5, 6], 20, VOCAB)
    driver.assert_at_rest()
