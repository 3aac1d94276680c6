"""Rewrites the stored recordings after a class or a field has changed its name.

    python -m tests.golden.convert                               only list what differs from the code
    python -m tests.golden.convert --class TellQueued=Queued     a class or an enum has another name
    python -m tests.golden.convert --field Slo.ttft_ms=first_ms  a field has another name
    python -m tests.golden.convert --drop Slo.tpot_ms            a field is gone
    python -m tests.golden.convert --add Slo.pace_ms=null        a field is new; its value in all rows
    python -m tests.golden.convert --value Verdict.at_risk=late  an enum's member has another value

The recordings hold what live routers were told, and what they decided on it, as rows of fields. A change of
names changes no decision: change the code, convert, and `test_replayed.py` must pass again. All flags may be
given several times and together; they use the old names, but for `--add`, whose names are those of the code.
A value is JSON, or a plain word. Fields that only stand in another order need no flag; nor do members of an
enum that are new, or that keep their values. Nothing is written unless all then fits the code: else the
differences that are left are listed, and the exit code is 1.

New names change `recordings/schema.json` alone, which Git merges. All else changes every recording: if two
such changes meet in a merge, take one side's `recordings` and convert again for the other's.

The simulator's tables have names of their own and need no rewriting.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.golden import stored
from tests.golden.schema import Kind, Schema, differences

Named = dict[tuple[str, str], Any]
"""By the name of a class and that of its field, or by the name of an enum and a value of it."""


@dataclass(slots=True)
class Changes:
    """Changes to make, by old names; `added` by new ones."""

    classes: dict[str, str] = field(default_factory=dict)
    fields: Named = field(default_factory=dict)
    dropped: set[tuple[str, str]] = field(default_factory=set)
    added: Named = field(default_factory=dict)
    values: Named = field(default_factory=dict)


class Converter:
    """Rewrites rows of an old schema to rows of today's."""

    def __init__(self, old: Schema, current: Schema, changes: Changes) -> None:
        self._old = old
        self._current = current
        self._changes = changes

    def schema(self) -> Schema:
        """Return the old schema with all changes made, to be compared with today's."""
        types = {self._class(name): self._fields(name) for name in self._old.types}
        for owner, part in self._changes.added:
            self._add_classes(self._current.types.get(owner, {}).get(part, "new"), types)
        enums = {self._class(name): self._members(name) for name in self._old.enums}
        return Schema(types, enums)

    def _members(self, name: str) -> list[Any]:
        """Return the values of an enum; the code's, if all of them are among those."""
        values = sorted((self._value(name, value) for value in self._old.enums[name]), key=str)
        current = self._current.enums.get(self._class(name), [])
        return current if set(values) <= set(current) else values

    def renamed(self) -> dict[str, str]:
        """Return today's names of the classes that have others in the rows."""
        names = {in_rows: self._class(name) for in_rows, name in self._old.renamed.items()}
        names |= {
            old: new for old, new in self._changes.classes.items() if old not in self._old.renamed.values()
        }
        return {in_rows: name for in_rows, name in names.items() if in_rows != name}

    def recording(self, old: stored.Recording) -> stored.Recording:
        """Return a recording in rows of today's types."""
        lines = [
            [now, self.tagged(event), [self.tagged(action) for action in actions]]
            for now, event, actions in old.lines
        ]
        return stored.Recording(self.tagged(old.config), lines)

    def _convert(self, kind: Kind, value: Any) -> Any:
        if isinstance(kind, list):
            return self._generic(kind, value)
        if kind in self._old.types:
            return self._row(kind, value)
        return self._value(kind, value) if kind in self._old.enums else value

    def tagged(self, value: stored.Row) -> stored.Row:
        """Return the new form of [class, row]."""
        name, row = value
        return [self._class(name), self._row(name, row)]

    def _generic(self, kind: list[Any], value: Any) -> Any:
        what, *parts = kind
        if what == "optional":
            return None if value is None else self._convert(parts[0], value)
        if what == "union":
            return self.tagged(value)
        if what == "list":
            return [self._convert(parts[0], element) for element in value]
        if what == "map":
            return {key: self._convert(parts[0], cell) for key, cell in value.items()}
        return [self._convert(part, cell) for part, cell in zip(parts, value, strict=True)]

    def _row(self, name: str, row: stored.Row) -> stored.Row:
        cells = {}
        for (part, kind), cell in zip(self._old.types[name].items(), row, strict=True):
            if (name, part) not in self._changes.dropped:
                cells[self._changes.fields.get((name, part), part)] = self._convert(kind, cell)
        new_name = self._class(name)
        cells |= {part: value for (owner, part), value in self._changes.added.items() if owner == new_name}
        order = self._current.types.get(new_name, cells)
        return [cells[part] for part in order] if order.keys() == cells.keys() else list(cells.values())

    def _fields(self, name: str) -> dict[str, Kind]:
        """Return the fields with their new names; those that were added come last."""
        fields = {
            self._changes.fields.get((name, part), part): self._kind(kind)
            for part, kind in self._old.types[name].items()
            if (name, part) not in self._changes.dropped
        }
        new_name = self._class(name)
        added = [part for owner, part in self._changes.added if owner == new_name]
        return fields | {part: self._current.types.get(new_name, {}).get(part, "new") for part in added}

    def _kind(self, kind: Kind) -> Kind:
        if isinstance(kind, list):
            return [kind[0], *(self._kind(part) for part in kind[1:])]
        return self._class(kind)

    def _add_classes(self, kind: Kind, types: dict[str, dict[str, Kind]]) -> None:
        """Enter today's classes that an added field is the first to hold."""
        if isinstance(kind, list):
            for part in kind[1:]:
                self._add_classes(part, types)
        elif kind in self._current.types and kind not in types:
            types[kind] = self._current.types[kind]
            for part in types[kind].values():
                self._add_classes(part, types)

    def _value(self, enum: str, value: Any) -> Any:
        return self._changes.values.get((enum, stored.to_text(value)), value)

    def _class(self, name: str) -> str:
        return self._changes.classes.get(name, name)


def main(typed: Sequence[str] | None = None) -> int:
    """Return 1 if something is left that does not fit the code."""
    args = _parser().parse_args(typed)
    changes, folder, current = changes_of(args), args.folder, stored.current_schema()
    converter = Converter(stored.read_schema(folder), current, changes)
    schema = converter.schema()
    if left := differences(schema, current, in_order=False):
        sys.stdout.write("".join(f"{line}\n" for line in left))
        return 1
    renamed = converter.renamed()
    if changes.dropped or changes.added or changes.values or differences(schema, current):
        for path in stored.paths(folder):
            stored.write(path, converter.recording(stored.read(path)))
        renamed = {}
    stored.write_schema(replace(current, renamed=renamed), folder)
    return 0


def changes_of(args: argparse.Namespace) -> Changes:
    return Changes(
        classes=dict(_parts(text, "=") for text in args.classes),
        fields={_parts(place, "."): new for place, new in (_parts(text, "=") for text in args.fields)},
        dropped={_parts(place, ".") for place in args.drop},
        added={_parts(place, "."): _json(new) for place, new in (_parts(text, "=") for text in args.add)},
        values={_value(place): _json(new) for place, new in (_parts(text, "=") for text in args.values)},
    )


def _value(place: str) -> tuple[str, str]:
    enum, value = _parts(place, ".")
    return enum, stored.to_text(_json(value))


def _parts(text: str, separator: str) -> tuple[str, str]:
    first, found, second = text.partition(separator)
    if not (first and found and second):
        raise SystemExit(f"{text!r} is not two names with {separator!r} between")
    return first, second


def _json(text: str) -> Any:
    """Read JSON; any other text stands for itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, default=stored.FOLDER, help="of other recordings than ours")
    for flag, name, shape in (
        ("--class", "classes", "OLD=NEW"),
        ("--field", "fields", "TYPE.OLD=NEW"),
        ("--drop", "drop", "TYPE.FIELD"),
        ("--add", "add", "TYPE.FIELD=JSON"),
        ("--value", "values", "ENUM.OLD=NEW"),
    ):
        parser.add_argument(flag, dest=name, action="append", default=[], metavar=shape)
    return parser


if __name__ == "__main__":
    sys.exit(main())
