"""Tries random schemas with random outputs, and prints those that do not validate.

    python -m tests.model_output.text.many_schemas --schemas 1000 --outputs 5 --seed 1

Exits with 1 if an output that ended by itself does not validate.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from model_output.grammar.grammar import CompiledGrammar, Grammars, grammar_of
from model_output.grammar.refusal import GrammarRefused
from model_output.text.detokenizer import Detokenizer
from tests.model_output.text.schemas import schema, validate

DEMO_MODEL = Path(__file__).parents[3] / "demo_model"
VOCAB, EOS, LONGEST = 2048, 2, 400


@dataclass
class Tally:
    """Counts of schemas and outputs by their fate."""

    valid: int = 0
    refused: int = 0
    cut_off: int = 0
    given_up: int = 0
    """Outputs whose grammar became too complex: they fail, which is not wrong."""
    wrong: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counts = (
            f"{self.valid} valid, {self.cut_off} cut off, {self.given_up} given up, {len(self.wrong)} wrong"
        )
        return f"{self.refused} schemas refused; outputs: {counts}"


class Trial:
    """Draws outputs of the demo model's tokens, each as likely as the others that may follow."""

    def __init__(self) -> None:
        self._grammars = Grammars(DEMO_MODEL / "tokenizer.json", VOCAB, [EOS])
        self._detokenizer = Detokenizer.from_file(DEMO_MODEL / "tokenizer.json")

    def run(self, num_schemas: int, num_outputs: int, seed: int) -> Tally:
        tally = Tally()
        for place in range(num_schemas):
            rng = random.Random(f"{seed} {place}")
            text = json.dumps(schema(rng))
            try:
                compiled = self._grammars.compiled(grammar_of("json_schema", text))
            except GrammarRefused as refused:
                tally.refused += 1
                tally.reasons[str(refused).splitlines()[0][:60]] += 1
                continue
            for _ in range(num_outputs):
                self._draw(rng, compiled, text, tally)
        return tally

    def _draw(self, rng: random.Random, compiled: CompiledGrammar, text: str, tally: Tally) -> None:
        follower, output = compiled.begin(), list[int]()
        while len(output) < LONGEST:
            allowed = follower.allowed_after(output)
            if allowed is None:
                tally.given_up += 1
                tally.reasons[follower.error.splitlines()[0][:60]] += 1
                return
            bits = np.unpackbits(np.frombuffer(allowed, dtype=np.uint8), bitorder="little")
            tokens = np.flatnonzero(bits).tolist()
            if EOS in tokens and (len(tokens) == 1 or rng.random() < 0.3):
                self._check(output, text, tally)
                return
            output.append(rng.choice([token for token in tokens if token != EOS]))
        tally.cut_off += 1

    def _check(self, output: list[int], schema_text: str, tally: Tally) -> None:
        stream = self._detokenizer.stream()
        text = "".join(map(stream.push, output)) + stream.flush()
        try:
            validate(text, schema_text)
        except Exception as error:  # noqa: BLE001 -- whatever is wrong is listed
            tally.wrong.append(
                f"{schema_text}\n    {text}\n    {type(error).__name__}: {str(error).splitlines()[0]}"
            )
        else:
            tally.valid += 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--outputs", type=int, default=5, help="for each schema")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tally = Trial().run(args.schemas, args.outputs, args.seed)
    for reason, times in tally.reasons.most_common():
        print(f"{times:6} {reason}")  # noqa: T201 -- the result
    print(*tally.wrong, f"seed {args.seed}: {tally}", sep="\n")  # noqa: T201
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
