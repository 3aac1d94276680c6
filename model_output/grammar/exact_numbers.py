"""Numbers in schemas, which the grammar's compiler reads as binary floating-point numbers.

It would round a number with more digits than those hold, and the output would be another number than asked
for. So such a number is refused where it means something.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NoReturn

from model_output.grammar.bounds import NAMED, VALUES
from model_output.grammar.refusal import GrammarRefused

_MOST = 2**53 - 1
"""The largest whole number whose neighbours binary64 holds, and the largest mantissa that is read exactly."""
_MOST_EXPONENT = 22
"""The largest power of ten that binary64 holds; the compiler multiplies or divides by one."""
_SCHEMA_FOLLOWS = re.compile(r"%json\s*")
_WITHOUT_EFFECT = frozenset({"default", "examples"})
"""Keywords whose values mean nothing, unless a reference takes one for a schema."""
_INTO_VALUES = re.compile("default|examples|%")
"""In each reference to such a value; a character may stand there as `%` with its number."""
_SHOWN_CHARACTERS = 40


class Rounded(float):
    """A number of a JSON text that a float does not hold exactly."""

    __slots__ = ("text",)
    text: str


def schema_of(text: str) -> Any:
    """Return the schema of a JSON text, whose `Rounded` numbers have their texts. Raises `ValueError`."""
    try:
        return json.loads(text, parse_float=_float_of, parse_constant=_refuse)
    except ValueError as error:
        if "integer string conversion" in str(error):  # Python's own words speak of its settings
            raise ValueError("a whole number has thousands of digits") from None
        raise


def check_schemas_in(grammar: str) -> None:
    """Check the schemas that stand in a Lark grammar, each after `%json`. Raises `GrammarRefused`."""
    read = json.JSONDecoder(parse_float=_float_of, parse_constant=_refuse)
    for match in _SCHEMA_FOLLOWS.finditer(grammar):
        try:
            schema, _ = read.raw_decode(grammar, match.end())
        except ValueError:
            continue  # a text in quotes, or no JSON, which the compiler says
        check_numbers(schema)


def check_numbers(schema: object) -> None:
    """Raise `GrammarRefused` for a number that its grammar would not keep to the last digit."""
    for keyword, number in _numbers(schema):
        if not _is_held(number):
            text = number.text if isinstance(number, Rounded) else str(number)
            excerpt = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
            raise GrammarRefused(
                f"{keyword!r} has {excerpt}, which is not kept to the last digit; a text of digits would be"
            )


def _is_held(number: float) -> bool:
    if abs(number) > _MOST or isinstance(number, Rounded):
        return False
    if isinstance(number, int):
        return True
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    mantissa = int("".join(map(str, digits)))
    return isinstance(exponent, int) and mantissa <= _MOST and abs(exponent) <= _MOST_EXPONENT


def _float_of(text: str) -> float:
    number = float(text) or 0.0  # rather than -0.0
    if math.isinf(number) or Decimal(text) != Decimal(repr(number)):
        number = Rounded(number)
        number.text = text
    return number


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _numbers(schema: object) -> Iterator[tuple[str, int | float]]:
    """Yield each number that means something, with its keyword."""
    without_effect = frozenset[str]() if _refers_to_values(schema) else _WITHOUT_EFFECT
    waiting: list[tuple[str, object]] = [("", schema)]
    while waiting:
        keyword, value = waiting.pop()
        if keyword in VALUES:
            yield from ((keyword, number) for number in _numbers_in(value))
        elif isinstance(value, dict):
            for key, below in value.items():
                if keyword in NAMED:  # its keys are no keywords
                    waiting.append(("", below))
                elif key not in without_effect:
                    waiting.append((key, below))
                else:  # read all the same, so it has to be a number
                    yield from ((key, number) for number in _numbers_in(below) if not _is_finite(number))
        elif isinstance(value, list):
            waiting += [("", below) for below in value]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield keyword, value


def _is_finite(number: float) -> bool:
    """Return whether a float holds a number at least roughly; a whole number may have any size."""
    return abs(number) <= sys.float_info.max


def _refers_to_values(schema: object) -> bool:
    """Return whether a reference may lead into a value that means nothing elsewhere."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str) and _INTO_VALUES.search(reference):
                return True
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return False


def _numbers_in(value: object) -> Iterator[int | float]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield value
