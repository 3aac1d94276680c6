"""Grammars are compiled beside the steps: sequences that need none go on meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from engine.core.commands import Cancel, Command, Decode, HandBack
from model_output.grammar.grammar import CompiledGrammar, Grammars, grammar_of
from model_output.grammar.refusal import GrammarRefused
from scheduling.request import SamplingParams, StopRules
from tests.engine.fake_runner import greedy
from tests.engine.loop_driver import VOCAB, Driver, spec
from tests.model_output.text.tokenizers_zoo import one_byte_tokens
from tests.patience import PATIENCE_S
from worker.engine.engine_thread import GrammarThread

FORMAT = SamplingParams(temperature=0.0, grammar=grammar_of("regex", "[A-C]{5}"))


class SlowGrammars(Grammars):
    """Compiles nothing until it may."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, VOCAB, [VOCAB - 1])
        self.may_compile = threading.Event()

    def compiled(self, grammar: str) -> CompiledGrammar:
        assert self.may_compile.wait(PATIENCE_S)
        return super().compiled(grammar)


class Scene:
    """A step loop behind a thread whose grammars take their time."""

    def __init__(self, folder: Path) -> None:
        one_byte_tokens(VOCAB).save(str(folder / "tokenizer.json"))
        self.grammars = SlowGrammars(folder / "tokenizer.json")
        self.inbox: SimpleQueue[Command] = SimpleQueue()
        self.thread = GrammarThread(self.grammars, self.inbox.put)
        self.driver = Driver(eos=(VOCAB - 1,))

    def drained(self) -> list[Command]:
        return [self.inbox.get() for _ in range(self.inbox.qsize())]

    def let_compile(self) -> None:
        self.grammars.may_compile.set()
        self.driver.finish(self.inbox.get(timeout=PATIENCE_S))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_neighbours_take_all_their_steps_while_a_grammar_is_compiled(scene: Scene) -> None:
    scene.thread.submit(Decode(spec(1, [1, 2, 3], sampling=FORMAT)))
    scene.thread.submit(Decode(spec(2, [4, 5, 6], stop=StopRules(40, ignore_eos=True))))
    scene.driver.finish(*scene.drained())
    assert scene.driver.tokens(2) == greedy([4, 5, 6], 40, VOCAB)
    assert scene.driver.reports[-1].load.waiting == 1
    scene.let_compile()
    assert len(scene.driver.tokens(1)) == 6
    scene.driver.assert_at_rest()


@pytest.mark.parametrize("end", [Cancel(1), HandBack()])
def test_a_sequence_may_end_before_its_grammar_is_ready(scene: Scene, end: Command) -> None:
    scene.thread.submit(Decode(spec(1, [1, 2, 3], sampling=FORMAT)))
    scene.thread.submit(end)
    scene.driver.finish(*scene.drained())
    assert scene.driver.freed() == [1]
    scene.let_compile()
    scene.driver.assert_at_rest()


def test_a_grammar_that_nothing_can_follow_refuses_its_sequence_alone(scene: Scene) -> None:
    unknown = SamplingParams(temperature=0.0, grammar=grammar_of("grammar", "start: missing"))
    scene.thread.submit(Decode(spec(1, [1, 2, 3], sampling=unknown)))
    scene.driver.finish(*scene.drained())
    scene.let_compile()
    (why,) = scene.driver.failures().values()
    assert why.startswith("REFUSED: grammar cannot be followed: ")


def test_a_compiler_that_fails_ends_its_sequence_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> CompiledGrammar:
        raise MemoryError

    monkeypatch.setattr(scene.grammars, "compiled", fail)
    scene.thread.submit(Decode(spec(1, [1, 2, 3], sampling=FORMAT)))
    scene.thread.submit(Decode(spec(2, [4, 5, 6])))
    submitted = [scene.inbox.get(timeout=PATIENCE_S) for _ in range(3)]
    scene.driver.finish(*submitted)
    (why,) = scene.driver.failures().values()
    assert why == "REFUSED: grammar cannot be followed: the compiler failed with MemoryError"
    assert scene.driver.tokens(2)


def test_python_runs_on_while_a_grammar_is_compiled(tmp_path: Path) -> None:
    one_byte_tokens(VOCAB).save(str(tmp_path / "tokenizer.json"))
    grammars = Grammars(tmp_path / "tokenizer.json", VOCAB, [VOCAB - 1])
    large = grammar_of("regex", "|".join(f"text{place}" for place in range(100_000)))
    compiling = threading.Thread(target=grammars.compiled, args=(large,))
    compiling.start()
    num_turns = 0
    while compiling.is_alive():
        num_turns += 1
    assert num_turns > 1000
    with pytest.raises(GrammarRefused):
        grammars.compiled("start: missing")
