"""Reads what a GGUF file says of itself, without its tensors (ggml's docs/gguf.md describes the format).

    "GGUF", version uint32, number of tensors uint64, number of keys uint64
    each key: name, type of the value uint32, value
    each tensor: name, number of dimensions uint32, their sizes uint64 (the innermost first), type uint32,
        offset uint64
    padding to a multiple of `general.alignment`; offsets count from here, and are multiples of it too

Numbers are little-endian. A string is its length, uint64, and its UTF-8. An array is the type of its
elements, uint32, their number, uint64, and the elements.

Files come from elsewhere: every length and count is compared with what is left of the file before anything is
made of that size, and with a limit that no model comes near.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from gguf_model.errors import GgufUnusable, shown
from gguf_model.tensor_types import ACCEPTED, OTHERS, TYPES, TensorType

VERSIONS = (2, 3)
MAX_KEYS = 4096
MAX_TENSORS = 65_536
MAX_HEADER_BYTES = 256 << 20
MAX_ELEMENTS = 1 << 21
"""Elements of an array: vocabularies have at most 2**18 tokens, with twice as many merges."""
MAX_STRING_BYTES = 4 << 20
MAX_NAME_BYTES = 1024
MAX_DIMENSIONS = 4
ALIGNMENT, MAX_ALIGNMENT = 32, 1 << 16
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor of a file: its type, its shape with the innermost dimension last, and where it begins."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int
    """Bytes from the beginning of the file."""

    @property
    def num_bytes(self) -> int:
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return rows * self.type.row_bytes(self.shape[-1])


@dataclass(frozen=True, slots=True)
class Header:
    """The keys of a file with their values, and its tensors by name."""

    path: Path
    values: Mapping[str, Any]
    tensors: Mapping[str, TensorPlace]


def read_header(path: Path) -> Header:
    """Return the header of a file whose tensors lie within it. Raises `GgufUnusable`."""
    try:
        # A pipe is opened without waiting for its other end.
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise GgufUnusable(path, "is not a regular file", "a GGUF file")
            return _Reader(path, file, status.st_size).header()
    except OSError as error:
        raise GgufUnusable(path, f"cannot be read ({error.strerror})", "a GGUF file") from error


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


class _Reader:
    """Reads a file from its beginning on; `_place` says what is read, for messages."""

    def __init__(self, path: Path, file: IO[bytes], size: int) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._position = 0
        self._place = "its beginning"

    def header(self) -> Header:
        num_tensors, num_keys = self._counts()
        values: dict[str, Any] = {}
        for number in range(num_keys):
            self._place = f"key {number + 1} of {num_keys}"
            key = self._string(MAX_NAME_BYTES)
            if key in values:
                raise self._refusal(f"has the key {shown(key)} twice", "keys that differ")
            self._place = f"the key {shown(key)}"
            values[key] = self._value(self._number("I"))
        alignment = self._alignment(values)
        described = [self._tensor(number, num_tensors) for number in range(num_tensors)]
        begin = -(-self._position // alignment) * alignment
        return Header(self._path, values, self._placed(described, begin, alignment))

    def _counts(self) -> tuple[int, int]:
        magic = self._bytes(4)
        if magic != b"GGUF":
            raise self._refusal(f"begins with {shown(magic)}", "a GGUF file, which begins with b'GGUF'")
        version = self._number("I")
        if version not in VERSIONS:
            fault = "is big-endian" if version >> 16 else f"has version {version} of the format"
            raise self._refusal(fault, f"little-endian files of version {' or '.join(map(str, VERSIONS))}")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        for count, what, most in ((num_tensors, "tensors", MAX_TENSORS), (num_keys, "keys", MAX_KEYS)):
            if count > most:
                raise self._refusal(f"claims {count} {what}", f"at most {most}")
        return num_tensors, num_keys

    def _alignment(self, values: Mapping[str, Any]) -> int:
        alignment = values.get("general.alignment", ALIGNMENT)
        is_number = isinstance(alignment, int) and not isinstance(alignment, bool)
        if not is_number or not 8 <= alignment <= MAX_ALIGNMENT or alignment % 8:
            accepted = f"a multiple of 8, of at most {MAX_ALIGNMENT}"
            raise self._refusal(f"has the general.alignment {shown(alignment)}", accepted)
        return int(alignment)

    def _tensor(self, number: int, count: int) -> tuple[str, TensorType, tuple[int, ...], int]:
        self._place = f"the description of tensor {number + 1} of {count}"
        name = self._string(MAX_NAME_BYTES)
        self._place = f"the description of the tensor {shown(name)}"
        dimensions = self._number("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._refusal_of(name, f"{dimensions} dimensions", f"1 to {MAX_DIMENSIONS}")
        shape = tuple(reversed(self._numbers("Q", dimensions)))
        code = self._number("I")
        if code not in TYPES:
            raise self._refusal_of(name, f"the type {OTHERS.get(code, code)}", ACCEPTED)
        kind, offset = TYPES[code], self._number("Q")
        if not all(0 < size <= 8 * self._size for size in shape):
            raise self._refusal_of(name, f"the shape {shape}", "a shape whose numbers the file can hold")
        if shape[-1] % kind.block:
            fault = f"rows of {shape[-1]} numbers of the type {kind.name}"
            raise self._refusal_of(name, fault, f"a multiple of {kind.block}")
        return name, kind, shape, offset

    def _placed(
        self, described: list[tuple[str, TensorType, tuple[int, ...], int]], begin: int, alignment: int
    ) -> dict[str, TensorPlace]:
        """Return the tensors by name, if each lies within the file and none over another."""
        tensors: dict[str, TensorPlace] = {}
        for name, kind, shape, offset in described:
            if name in tensors:
                raise self._refusal(f"has the tensor {shown(name)} twice", "tensors that differ by name")
            if offset % alignment:
                raise self._refusal_of(name, f"the offset {offset}", f"a multiple of {alignment}")
            place = TensorPlace(name, kind, shape, begin + offset)
            end = place.offset + place.num_bytes
            if end > self._size:
                fault = f"its end at byte {end} of a file of {self._size}"
                raise self._refusal_of(name, fault, "tensors within the file, which may be truncated")
            tensors[name] = place
        in_order = sorted(tensors.values(), key=lambda each: each.offset)
        for first, second in pairwise(in_order):
            if first.offset + first.num_bytes > second.offset:
                fault = f"bytes of the tensor {shown(first.name)}"
                raise self._refusal_of(second.name, fault, "tensors that do not overlap")
        return tensors

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string(MAX_STRING_BYTES)
        if kind != _ARRAY:
            return self._number(self._format(kind))
        kind, count = self._number("I"), self._number("Q")
        if count > MAX_ELEMENTS:
            raise self._refusal(f"has {count} elements in {self._place}", f"at most {MAX_ELEMENTS}")
        if kind != _STRING:
            return list(self._numbers(self._format(kind), count))
        self._check_left(count * 8)
        return [self._string(MAX_STRING_BYTES) for _ in range(count)]

    def _format(self, kind: int) -> str:
        if kind not in _NUMBERS:
            accepted = "numbers, strings, and arrays of them (0 to 12)"
            raise self._refusal(f"has the value type {kind} in {self._place}", accepted)
        return _NUMBERS[kind]

    def _string(self, most: int) -> str:
        length = self._number("Q")
        if length > most:
            raise self._refusal(f"has a string of {length} bytes in {self._place}", f"at most {most}")
        content = self._bytes(length)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise self._refusal(f"has a string in {self._place} that is no UTF-8", "text") from error

    def _number(self, code: str) -> Any:
        return self._numbers(code, 1)[0]

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        return struct.unpack(f"<{count}{code}", self._bytes(count * struct.calcsize(f"<{code}")))

    def _bytes(self, count: int) -> bytes:
        self._check_left(count)
        content = self._file.read(count)
        if len(content) != count:
            raise self._refusal(f"ended while it was read, in {self._place}", "a file that does not change")
        self._position += count
        return content

    def _check_left(self, count: int) -> None:
        if self._position + count > self._size:
            fault = f"ends in {self._place}: {count} bytes are due at byte {self._position} of {self._size}"
            raise self._refusal(fault, "a whole file")
        if self._position + count > MAX_HEADER_BYTES:
            fault = f"has a header of more than {MAX_HEADER_BYTES} bytes, in {self._place}"
            raise self._refusal(fault, "a shorter one")

    def _refusal_of(self, tensor: str, fault: str, accepted: str) -> GgufUnusable:
        return self._refusal(f"has the tensor {shown(tensor)} with {fault}", accepted)

    def _refusal(self, fault: str, accepted: str) -> GgufUnusable:
        return GgufUnusable(self._path, fault, accepted)
