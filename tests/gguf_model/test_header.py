"""Hostile and broken GGUF files are refused in a sentence, before anything of the size they claim is made."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_model import header as limits
from gguf_model.errors import GgufUnusable
from gguf_model.header import read_header

HUGE = (1 << 64) - 1


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, elements: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + elements


def tensor(name: str, shape: Sequence[int] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    described = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    return text(name) + described


def file_of(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = bytes(64),
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    num_tensors, num_keys = counts or (len(tensors), len(keys))
    content = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + b"".join([*keys, *tensors])
    return content + bytes(-len(content) % 32) + data


def test_a_file_of_the_reference_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values = {"a.float": 1.5, "a.text": "ü", "a.truth": True}
    writer.add_float32("a.float", 1.5)
    writer.add_string("a.text", "ü")
    writer.add_bool("a.truth", True)
    writer.add_array("a.words", ["x", "yz"])
    writer.add_array("a.numbers", [3, -4])
    writer.add_tensor("t", np.arange(64, dtype=np.float32).reshape(2, 32))
    writer.add_tensor("u", gguf.quantize(np.ones((3, 32), np.float32), gguf.GGMLQuantizationType.Q8_0),
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_header(path)
    assert {name: found.values[name] for name in values} == values
    assert found.values["a.words"] == ["x", "yz"]
    assert found.values["a.numbers"] == [3, -4]
    (t, u), content = found.tensors.values(), path.read_bytes()
    assert (t.shape, t.type.name, u.shape, u.type.name) == ((2, 32), "F32", (3, 32), "Q8_0")
    own = np.frombuffer(content[t.offset : t.offset + t.num_bytes], np.float32)
    assert own.tolist() == list(range(64))
    assert u.num_bytes == 3 * 34


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "ends in its beginning: 4 bytes are due at byte 0 of 0"),
        (b"PK\x03\x04" + bytes(60), "begins with b'PK\\x03\\x04'; accepted: a GGUF file"),
        (file_of(version=1), "has version 1 of the format; accepted: little-endian files of version 2 or 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is big-endian"),
        (file_of(counts=(HUGE, 0)), f"claims {HUGE} tensors; accepted: at most {limits.MAX_TENSORS}"),
        (file_of(counts=(0, HUGE)), f"claims {HUGE} keys; accepted: at most {limits.MAX_KEYS}"),
        (file_of([key("a", 0, b"\1"), key("a", 0, b"\2")]), "has the key 'a' twice"),
        (file_of([key("a", 77, b"")]), "has the value type 77 in the key 'a'"),
        (file_of([key("a", 9, array(9, 1))]), "has the value type 9 in the key 'a'"),
        (file_of([key("a", 9, array(0, HUGE))]), f"has {HUGE} elements in the key 'a'"),
        (file_of([key("a", 9, array(8, 1 << 20))]), "ends in the key 'a': 8388608 bytes are due"),
        (file_of([key("a", 9, array(12, 1 << 20))]), "ends in the key 'a': 8388608 bytes are due"),
        (file_of([key("a", 8, struct.pack("<Q", HUGE))]), f"a string of {HUGE} bytes in the key 'a'"),
        (file_of([key("a", 8, struct.pack("<Q", 4000))]), "ends in the key 'a': 4000 bytes are due"),
        (file_of([key("a", 8, struct.pack("<Q", 1) + b"\xff")]), "in the key 'a' that is no UTF-8"),
        (file_of([struct.pack("<Q", 1 << 40)]), f"a string of {1 << 40} bytes in key 1 of 1"),
        (file_of([key("general.alignment", 4, struct.pack("<I", 0))]), "has the general.alignment 0"),
        (file_of([key("general.alignment", 4, struct.pack("<I", 12))]), "has the general.alignment 12"),
        (file_of([key("general.alignment", 4, struct.pack("<I", 1 << 31))]), "the general.alignment 2147"),
        (file_of([key("general.alignment", 8, text("x"))]), "has the general.alignment 'x'"),
        (file_of(tensors=[tensor("t"), tensor("t", offset=32)]), "has the tensor 't' twice"),
        (file_of(tensors=[tensor("t", ())]), "has the tensor 't' with 0 dimensions; accepted: 1 to 4"),
        (file_of(tensors=[tensor("t", (1,) * 5)]), "has the tensor 't' with 5 dimensions"),
        (file_of(tensors=[text("t") + struct.pack("<I", 1 << 31)]), "with 2147483648 dimensions"),
        (file_of(tensors=[tensor("t", (0,))]), "has the tensor 't' with the shape (0,)"),
        (file_of(tensors=[tensor("t", (HUGE, HUGE))]), f"with the shape ({HUGE}, {HUGE})"),
        (file_of(tensors=[tensor("t", kind=10)]), "with the type Q2_K; accepted: F32, F16, BF16, Q4_0"),
        (file_of(tensors=[tensor("t", kind=4000)]), "has the tensor 't' with the type 4000"),
        (file_of(tensors=[tensor("t", (33,), 8)]), "with rows of 33 numbers of the type Q8_0; accepted: a m"),
        (file_of(tensors=[tensor("t", offset=8)]), "with the offset 8; accepted: a multiple of 32"),
        (file_of(tensors=[tensor("t", offset=HUGE - 31)]), "has the tensor 't' with its end at byte"),
        (file_of(tensors=[tensor("t", (17,))]), "its end at byte 132 of a file of 128; accepted: tensors"),
        (file_of(tensors=[tensor("t", (9,)), tensor("u", offset=32)]), "'u' with bytes of the tensor 't'"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_in_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufUnusable) as refused:
        read_header(path)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith(f"{path} ")
    assert "; accepted: " in str(refused.value)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda _: None])
def test_what_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "a.gguf")
    with pytest.raises(GgufUnusable, match="accepted: a GGUF file"):
        read_header(tmp_path / "a.gguf")


WHOLE = file_of(
    [key("general.architecture", 8, text("llama")), key("a", 9, array(8, 2, text("x") + text("yz")))],
    [tensor("t"), tensor("u", (2, 2), offset=32)],
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=9)), max_size=4
    ),
    end=st.integers(0, len(WHOLE)),
)
def test_any_bytes_are_read_or_refused_in_little_memory(
    tmp_path: Path, changes: list[tuple[int, bytes]], end: int
) -> None:
    content = bytearray(WHOLE)
    for place, replaced in changes:
        content[place : place + len(replaced)] = replaced
    path = tmp_path / "a.gguf"
    path.write_bytes(content[:end])
    tracemalloc.start()
    try:
        for found in read_header(path).tensors.values():
            assert found.offset + found.num_bytes <= end
    except GgufUnusable:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 20
