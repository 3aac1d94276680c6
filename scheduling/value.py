"""Frozen values like `dataclass(frozen=True, slots=True)`, created in half the time or less.

A frozen dataclass sets each field by a call. A value is created as an instance of a writable class with plain
slots, and changes its class once its fields are set. Use it for objects created for each event or step;
elsewhere use a dataclass, which everybody knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Turn a class of annotated fields into a value, which must not be subclassed.

    All fields are arguments but those with `init=False`, which `__post_init__` derives from the others.
    """
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
    """Return `__new__` with the fields as arguments."""
    scope: dict[str, object] = {"make": object.__new__, "open_class": open_class, "missing": MISSING}
    arguments, lines = [], ["self = make(open_class)"]
    for described in fields(open_class):  # type: ignore[arg-type] # made a dataclass just now
        name = described.name
        if not described.init:
            continue
        if described.default_factory is not MISSING:
            scope[f"make_{name}"] = described.default_factory
            arguments.append(f"{name}=missing")
            lines.append(f"self.{name} = make_{name}() if {name} is missing else {name}")
            continue
        if described.default is not MISSING:
            scope[f"default_{name}"] = described.default
        arguments.append(name if described.default is MISSING else f"{name}=default_{name}")
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
    described = fields(self)  # type: ignore[arg-type] # values are dataclasses
    names = [each.name for each in described if each.init]
    return type(self), tuple(getattr(self, name) for name in names)
