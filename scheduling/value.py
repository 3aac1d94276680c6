"""Values: frozen like `dataclass(frozen=True, slots=True)`, and made in half the time or less.

A frozen dataclass sets each of its fields by a call. A value is filled while it still is of a class that can
be written, whose fields are plain slots, and becomes one of its own class at the end. For what is made for
each event or each step; elsewhere a dataclass says the same in words that everybody knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make a class of annotated fields one of values. All fields are arguments; a value has no subclasses."""
    open_class = dataclass(slots=True, unsafe_hash=True)(cls)
    body = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__new__": _maker(open_class),
        "__init__": object.__init__,
        "__setattr__": _refuse,
        "__delattr__": _refuse,
        "__reduce__": _reduce,
    }
    made: type[T] = type(cls.__name__, (open_class,), body)
    return made


def _maker(open_class: type[T]) -> Callable[..., T]:
    """`__new__` with the fields as arguments."""
    scope: dict[str, object] = {"make": object.__new__, "open_class": open_class, "missing": MISSING}
    arguments, lines = [], ["self = make(open_class)"]
    for one in fields(open_class):  # type: ignore[arg-type] # made a dataclass just now
        name = one.name
        assert one.init, f"{name} is an argument"
        if one.default_factory is not MISSING:
            scope[f"make_{name}"] = one.default_factory
            arguments.append(f"{name}=missing")
            lines.append(f"self.{name} = make_{name}() if {name} is missing else {name}")
            continue
        if one.default is not MISSING:
            scope[f"default_{name}"] = one.default
        arguments.append(name if one.default is MISSING else f"{name}=default_{name}")
        lines.append(f"self.{name} = {name}")
    lines.append("self.__class__ = cls")
    if hasattr(open_class, "__post_init__"):
        lines.append("self.__post_init__()")
    source = f"def __new__(cls, {', '.join(arguments)}):\n    " + "\n    ".join([*lines, "return self"])
    exec(source, scope)  # noqa: S102 -- names of fields are all that is filled in; so do dataclasses
    made: Callable[..., T] = scope["__new__"]  # type: ignore[assignment]
    return made


def _refuse(self: object, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot change field {name!r} of a {type(self).__name__}")


def _reduce(self: object) -> tuple[type, tuple[object, ...]]:
    names = [one.name for one in fields(self)]  # type: ignore[arg-type] # every value is one
    return type(self), tuple(getattr(self, name) for name in names)
