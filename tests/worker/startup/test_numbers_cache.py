"""Numbers that weights were rounded to are kept, and stand in for them at the next start, or are not used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.model.model import Model, load_model
from engine.model.quantised.quantisation import Quantisation
from tests.engine.model.quantised.int8_models import CPU, logits_of
from tests.model_zoo import build
from worker.startup.numbers_cache import FOLDER, MOST_FILES, numbers_in

NAMES = ("llama", "llama_tied", "qwen2", "phi3", "gemma2", "mixtral", "gpt2", "opt")


def load(
    directory: Path,
    cache: Path,
    quantisation: Quantisation = Quantisation.INT4,
    dtype: torch.dtype = torch.float32,
    **settings: object,
) -> Model:
    return load_model(
        directory, dtype, CPU, quantisation=quantisation, kept_of=numbers_in(cache), **settings  # type: ignore[arg-type]  # settings of a test
    )  # fmt: skip


def files_in(cache: Path) -> list[Path]:
    folder = cache / FOLDER
    return sorted(folder.iterdir()) if folder.exists() else []


def only_file(cache: Path) -> Path:
    (path,) = files_in(cache)
    return path


def change(path: Path, edit: Callable[[dict[str, Tensor]], None]) -> None:
    """Change what a file keeps, but not what it belongs to."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    edit(tensors)
    save_file(tensors, path, metadata)


def double_scales(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if name.endswith("scale"):
            tensor.mul_(2)


def remove_zeros(tensors: dict[str, Tensor]) -> None:
    for name in list(tensors):
        if name.endswith("zero"):
            del tensors[name]


@pytest.mark.parametrize("fused", [False, True], ids=["stock", "fused"])
@pytest.mark.parametrize("name", NAMES)
def test_the_next_start_has_the_same_logits(tmp_path: Path, name: str, fused: bool) -> None:
    model, cache = build(name, tmp_path / name), tmp_path / "cache"
    first = logits_of(load(model, cache, fused=fused))
    inode = only_file(cache).stat().st_ino
    again = load(model, cache, fused=fused)
    assert torch.equal(logits_of(again), first)
    assert only_file(cache).stat().st_ino == inode, "it is not written again"
    plain = load_model(model, torch.float32, CPU, quantisation=Quantisation.INT4, fused=fused)
    assert torch.equal(logits_of(plain), first)


def test_what_is_kept_stands_in_for_the_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, cache = build("llama", tmp_path / "llama"), tmp_path / "cache"
    first = logits_of(load(model, cache))
    change(only_file(cache), double_scales)
    capfd.readouterr()
    assert not torch.allclose(logits_of(load(model, cache)), first)
    assert "UNEXPECTED" not in "".join(capfd.readouterr())


def test_the_end_of_the_model_may_have_8_bits_of_its_own(tmp_path: Path) -> None:
    """One file serves both."""
    model, cache = build("llama_tied", tmp_path / "llama"), tmp_path / "cache"
    first = load(model, cache)
    with_ends = load(model, cache, Quantisation.INT4_LOGITS8)
    plain = load_model(model, torch.float32, CPU, quantisation=Quantisation.INT4_LOGITS8)
    assert torch.equal(logits_of(with_ends), logits_of(plain))
    assert not torch.equal(logits_of(with_ends), logits_of(first))
    only_file(cache)


def test_another_model_and_another_dtype_have_files_of_their_own(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    load(build("llama", tmp_path / "llama"), cache)
    load(build("qwen2", tmp_path / "qwen2"), cache)
    load(tmp_path / "llama", cache, dtype=torch.bfloat16)
    assert len(files_in(cache)) == 3
    load(tmp_path / "llama", cache, Quantisation.INT8)
    load_model(
        tmp_path / "llama", torch.float32, CPU, quantisation=Quantisation.NONE, kept_of=numbers_in(cache)
    )
    load(tmp_path / "llama", cache, random_seed=1)
    assert len(files_in(cache)) == 3


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lie(path: Path) -> None:
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")


def of_another(path: Path) -> None:
    save_file(dict(load_file(path)), path, {"key": "another"})


def without_zeros(path: Path) -> None:
    change(path, remove_zeros)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [cut, empty, lie, of_another, without_zeros])
def test_a_file_that_cannot_be_used_is_written_anew(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    model, cache = build("llama", tmp_path / "llama"), tmp_path / "cache"
    first = logits_of(load(model, cache))
    whole = only_file(cache).read_bytes()
    spoil(only_file(cache))
    assert torch.equal(logits_of(load(model, cache)), first)
    assert only_file(cache).read_bytes() == whole


@pytest.mark.parametrize("spoil", ["full", "folder", "no folder"])
def test_a_start_that_cannot_keep_anything_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    model, cache = build("llama", tmp_path / "llama"), tmp_path / "cache"
    first = logits_of(load(model, cache))
    path = only_file(cache)
    if spoil == "full":
        path.unlink()
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    elif spoil == "folder":
        a_folder(path)
    else:
        cache = tmp_path / "file"
        cache.write_bytes(b"")
    assert torch.equal(logits_of(load(model, cache)), first)
    assert spoil != "full" or not files_in(cache)


def test_only_the_files_used_last_are_left(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    names = NAMES[: MOST_FILES + 1]
    for age, name in enumerate(names):
        load(build(name, tmp_path / name), cache)
        newest = max(files_in(cache), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (age + 1, age + 1))
    assert len(files_in(cache)) == MOST_FILES
    abandoned = cache / FOLDER / "numbers.1.part"
    abandoned.write_bytes(b"half")
    os.utime(abandoned, (1, 1))
    load(build(NAMES[-1], tmp_path / NAMES[-1]), cache)
    assert not abandoned.exists()
