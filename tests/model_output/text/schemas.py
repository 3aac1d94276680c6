"""Random schemas over the keywords of JSON Schema's own test suite, and a validator that follows the RFCs.

Python's calendar has no year 0, which RFC 3339 has, and its floats no number of 400 digits.
"""

from __future__ import annotations

import ipaddress
import json
import random
import re
from collections.abc import Iterator
from decimal import Decimal, localcontext
from typing import Any

import regex  # type: ignore[import-untyped] # it has no stubs
from jsonschema import Draft202012Validator, FormatChecker, ValidationError, validators

NAMES = ("a", "b", "name", "x-y", "é", 'q"t', "")
SCALARS = (
    None,
    True,
    False,
    0,
    1,
    -3,
    2.5,
    1e3,
    "",
    "a",
    'say "no"',
    "back\\slash",
    "naïve",
    "\n",
    "\u2028",
    "😀",
)
PATTERNS = (
    "^[a-c]{2}$", "x+y?", "^(no|yes)-[0-9]{1,3}$", r"^\d+$", r"\w", r"^\S*$", "^.$", "^.{0,3}$", "a|b$", "^$",
    r"^\p{L}+$", r"^[^a]{1,2}$", r"[\"\\]", r"^\u00e9", "é+", r"^(a|ab)(c|bcd)$", "(?i)ab", r"^\x41\n?$",
)  # fmt: skip
FORMATS = (
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
    "idn-email", "idn-hostname", "uri-reference", "iri", "uri-template", "json-pointer", "regex",
)  # fmt: skip


def schema(rng: random.Random, depth: int = 3) -> Any:
    """A schema of one or a few keywords, whose own schemas are at most so deep."""
    if rng.random() < 0.06:
        return rng.choice([True, True, {}, False])
    makers = _LEAVES if depth == 0 or rng.random() < 0.35 else _LEAVES + 3 * _NESTED
    made = rng.choice(makers)(rng, depth - 1)
    if rng.random() < 0.15:
        made = {**rng.choice(_LEAVES)(rng, 0), **made}
    if rng.random() < 0.1:
        made |= rng.choice(
            [{"title": "t"}, {"default": 1}, {"$comment": "c"}, {"deprecated": True}, {"unheard": 1}]
        )
    return made


def _pair(rng: random.Random, low: str, high: str, most: int, step: float = 1) -> dict[str, Any]:
    first, second = sorted([rng.randint(0, most), rng.randint(0, most)])
    both = {low: first * step, high: second * step}
    return {key: both[key] for key in both if rng.random() < 0.7}


def _types(rng: random.Random, _: int) -> dict[str, Any]:
    names = ["null", "boolean", "integer", "number", "string", "array", "object"]
    return {"type": rng.choice(names) if rng.random() < 0.7 else rng.sample(names, 2)}


def _values(rng: random.Random, _: int) -> dict[str, Any]:
    nested = [*SCALARS, [1, "a"], {"a": None}, [], {}]
    if rng.random() < 0.4:
        return {"const": rng.choice(nested)}
    return {"enum": [rng.choice(nested) for _ in range(rng.randint(1, 4))]}


def _strings(rng: random.Random, _: int) -> dict[str, Any]:
    made = rng.choice([{"type": "string"}, {"type": "string"}, {}])
    made |= _pair(rng, "minLength", "maxLength", 6)
    if rng.random() < 0.4:
        made |= {"pattern": rng.choice(PATTERNS)}
    return made


def _formats(rng: random.Random, _: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string", "format": rng.choice(FORMATS)}
    return made | (_pair(rng, "minLength", "maxLength", 40) if rng.random() < 0.2 else {})


def _numbers(rng: random.Random, _: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": rng.choice(["integer", "number"])}
    step = rng.choice([1, 0.5, 7, 100, -1, 1e-3])
    low, high = rng.choice(
        [("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum"), ("minimum", "exclusiveMaximum")]
    )
    bounds = _pair(rng, *((low, high) if step > 0 else (high, low)), 30, step)
    if rng.random() < 0.3:
        made |= {"multipleOf": rng.choice([1, 2, 3, 5, 10, 0.5, 0.25, 0.1])}
    return made | bounds


def _objects(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(0, 3))
    made: dict[str, Any] = {"properties": {name: schema(rng, depth) for name in names}}
    made |= rng.choice([{"type": "object"}, {"type": "object"}, {"type": "object"}, {}])
    if rng.random() < 0.6:
        made["required"] = rng.sample(names, rng.randint(0, len(names))) + rng.choice([[], [], ["other"]])
    if rng.random() < 0.6:
        made["additionalProperties"] = rng.choice([False, True, schema(rng, 0)])
    if rng.random() < 0.2:
        made["patternProperties"] = {rng.choice(["^a", "b$", "^x-", "[0-9]"]): schema(rng, depth)}
    if rng.random() < 0.2:
        made |= _pair(rng, "minProperties", "maxProperties", 3)
    return made


def _arrays(rng: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = rng.choice([{"type": "array"}, {"type": "array"}, {}])
    made |= _pair(rng, "minItems", "maxItems", 3)
    if rng.random() < 0.7:
        made["items"] = schema(rng, depth)
    if rng.random() < 0.3:
        made["prefixItems"] = [schema(rng, depth) for _ in range(rng.randint(1, 3))]
    return made


def _combined(rng: random.Random, depth: int) -> dict[str, Any]:
    key = rng.choice(["anyOf", "anyOf", "allOf", "oneOf"])
    made: dict[str, Any] = {key: [schema(rng, depth) for _ in range(rng.randint(1, 3))]}
    return made | (rng.choice(_LEAVES)(rng, 0) if rng.random() < 0.3 else {})


def _referring(rng: random.Random, depth: int) -> dict[str, Any]:
    if depth < 2:  # references are found from the top
        return _objects(rng, depth)
    word = rng.choice(["$defs", "definitions"])
    inner = schema(rng, depth)
    if rng.random() < 0.3:  # it refers to itself, and ends in null
        again = {"$ref": f"#/{word}/d"}
        inner = {"anyOf": [{"type": "null"}, {"type": "array", "items": again, "maxItems": 1}]}
    to_it = {"$ref": f"#/{word}/d"}
    used = to_it if rng.random() < 0.5 else {"type": "array", "items": to_it, "maxItems": 2}
    return {word: {"d": inner}} | used


def _rare(rng: random.Random, depth: int) -> dict[str, Any]:
    inner = schema(rng, max(0, depth))
    return rng.choice([
        {"not": inner}, {"if": inner, "then": True}, {"type": "array", "uniqueItems": True},
        {"contains": inner},
        {"type": "object", "propertyNames": inner}, {"dependentRequired": {"a": ["b"]}},
        {"dependentSchemas": {"a": inner}}, {"unevaluatedProperties": False}, {"unevaluatedItems": False},
        {"type": "array", "contains": inner, "minContains": 2}, {"$dynamicRef": "#d"},
        {"$ref": "http://127.0.0.1:1/schema"}, {"$anchor": "here", "type": "null"},
    ])  # fmt: skip


_LEAVES = [_types, _values, _strings, _formats, _numbers]
_NESTED = [_objects, _objects, _arrays, _combined, _referring, _rare]


# Validation


def validate(text: str, schema_text: str) -> None:
    """Raise `jsonschema.ValidationError` or ValueError if a text is not JSON that validates."""
    with localcontext() as context:
        context.prec = 2 * MAX_EXPONENT
        rules = json.loads(schema_text, parse_float=_number)
        _Validator(rules, format_checker=CHECKER).validate(json.loads(text, parse_float=_number))


MAX_EXPONENT = 3000


def _number(text: str) -> Decimal | int:
    """Return a number as it is, but for larger exponents; 1.0 is an integer."""
    mantissa, _, exponent = text.lower().partition("e")
    within = max(-MAX_EXPONENT, min(MAX_EXPONENT, int(exponent or 0)))
    number = Decimal(f"{mantissa}e{within}")
    return int(number) if number == number.to_integral_value() else number


def _pattern(_: object, pattern: str, instance: object, __: object) -> Iterator[ValidationError]:
    """Apply a pattern as ECMAScript does, which knows classes of Unicode, and digits and words of ASCII."""
    ascii_only = pattern.replace(r"\d", "[0-9]").replace(r"\w", "[0-9A-Za-z_]")
    if isinstance(instance, str) and not regex.search(re.sub(r"\$$", r"\\Z", ascii_only), instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


_Validator = validators.extend(Draft202012Validator, {"pattern": _pattern})


CHECKER = FormatChecker(formats=())


def _check(name: str, pattern: str) -> None:
    CHECKER.checks(name)(
        lambda value: not isinstance(value, str) or re.fullmatch(pattern, value, re.ASCII) is not None
    )


def is_date(text: object) -> bool:
    if not isinstance(text, str):
        return True
    found = re.fullmatch(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", text)
    if found is None:
        return False
    year, month, day = map(int, found.groups())
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = (31, 28 + is_leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return 1 <= month <= 12 and 1 <= day <= days[month - 1]


def is_time(text: object) -> bool:
    if not isinstance(text, str):
        return True
    found = re.fullmatch(
        r"([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?([zZ]|([+-])([0-9]{2}):([0-9]{2}))", text
    )
    if found is None:
        return False
    hour, minute, second = map(int, found.group(1, 2, 3))
    ahead_h, ahead_m = (int(part or 0) for part in found.group(7, 8))
    if hour > 23 or minute > 59 or ahead_h > 23 or ahead_m > 59:
        return False
    sign = -1 if found.group(6) == "+" else 1
    utc_minute = (hour * 60 + minute + sign * (ahead_h * 60 + ahead_m)) % (24 * 60)
    return second <= 59 or (second == 60 and utc_minute == 24 * 60 - 1)


def is_date_time(text: object) -> bool:
    if not isinstance(text, str):
        return True
    return len(text) > 11 and text[10] in "tT" and is_date(text[:10]) and is_time(text[11:])


def _is_address(version: type[ipaddress.IPv4Address | ipaddress.IPv6Address], text: object) -> bool:
    if not isinstance(text, str):
        return True
    try:
        version(text)
    except ValueError:
        return False
    return "%" not in text


CHECKER.checks("date")(is_date)
CHECKER.checks("time")(is_time)
CHECKER.checks("date-time")(is_date_time)
CHECKER.checks("ipv4")(lambda text: _is_address(ipaddress.IPv4Address, text))
CHECKER.checks("ipv6")(lambda text: _is_address(ipaddress.IPv6Address, text))
_check("uuid", r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_check("hostname", rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_ATOM, _QUOTED = "[!#-'*+/-9=?A-Z^-~-]+", r"([]!#-[^-~ \t]|(\\[\t -~]))*"
_check("email", rf'({_ATOM}(\.{_ATOM})*|"{_QUOTED}")@([A-Za-z0-9.-]+|\[[!-Z^-~]*\])')
_check("duration", r"P(?!$)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)")
_check("uri", r"[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")
