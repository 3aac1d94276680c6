"""Grammars of outputs: which tokens may follow. Workers compile them, and routers to refuse them early.

In reading order: `grammar` (the compiler), `bounds` (what it adds to schemas), `exact_numbers` (those that it
refuses), `ebnf` (a notation that it reads), `refusal` (its error, without the compiler), `kept` (what was
compiled).
"""
