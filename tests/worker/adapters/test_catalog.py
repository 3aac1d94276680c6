"""The adapters of a folder: found, found again when they have changed, and refused with a reason."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.errors import AdapterRefused
from engine.model.adapters.checkpoint import AdapterFiles, read_adapter
from model_output.text import model_files
from tests.adapters import write_adapter
from tests.model_zoo import build
from tests.patience import PATIENCE_S
from worker.adapters import catalog as catalog_module
from worker.adapters.catalog import MAX_REFUSAL, AdapterCatalog
from worker.adapters.load_times import LoadTimes


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    base = build("llama", folder / "base")
    for seed, name in enumerate(("red", "blue")):
        write_adapter(base, folder / name, seed=seed)
    return folder


@pytest.fixture
def folder(tmp_path: Path, sources: Path) -> Path:
    made = tmp_path / "adapters"
    shutil.copytree(sources / "red", made / "red")
    return made


@pytest.fixture
def catalog(folder: Path) -> Iterator[AdapterCatalog]:
    made = AdapterCatalog(folder, LoadTimes())
    yield made
    made.stop()


def digests(catalog: AdapterCatalog) -> dict[str, str]:
    return {name: found.digest for name, found in catalog.all().items()}


def test_adapters_are_found_when_they_come_and_gone_when_they_go(
    catalog: AdapterCatalog, folder: Path, sources: Path
) -> None:
    red, blue = (read_adapter(name, sources / name).digest for name in ("red", "blue"))
    catalog.look()
    assert digests(catalog) == {"red": red}
    shutil.copytree(sources / "blue", folder / "blue")
    catalog.look()
    assert digests(catalog) == {"red": red, "blue": blue}
    shutil.rmtree(folder / "red")
    catalog.look()
    assert digests(catalog) == {"blue": blue}
    assert (red in catalog, blue in catalog) == (False, True)


def test_changed_files_are_another_adapter(catalog: AdapterCatalog, folder: Path, sources: Path) -> None:
    catalog.look()
    (before,) = digests(catalog).values()
    shutil.rmtree(folder / "red")
    shutil.copytree(sources / "blue", folder / "red")
    catalog.look()
    (after,) = digests(catalog).values()
    assert after == read_adapter("red", sources / "blue").digest != before
    assert before not in catalog
    found = catalog.find(after)
    assert found is not None
    assert found.name == "red"


def test_files_that_have_not_changed_are_not_read_again(
    catalog: AdapterCatalog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.look()

    def read(name: str, path: Path) -> AdapterFiles:
        raise AssertionError(f"{name} in {path} is read again")

    monkeypatch.setattr(catalog_module, "read_adapter", read)
    catalog.look()
    assert list(catalog.all()) == ["red"]


def test_what_cannot_be_served_has_its_field_and_reason(
    catalog: AdapterCatalog, folder: Path, sources: Path
) -> None:
    shutil.copytree(sources / "blue", folder / "blue")
    (folder / "blue" / "adapter_model.safetensors").write_bytes(b"half")
    shutil.copytree(sources / "blue", folder / "a b")
    catalog.look()
    refusals = {name: found.refusal for name, found in catalog.all().items()}
    assert refusals["red"] == ""
    assert refusals["blue"].startswith("adapter_model.safetensors cannot be read (")
    assert refusals["a b"].startswith("name is 'a b'; accepted: 1 to 64 letters")
    shutil.copy(sources / "blue" / "adapter_model.safetensors", folder / "blue")
    catalog.look()
    assert catalog.all()["blue"].digest


def _config(content: str) -> Callable[[Path], object]:
    return lambda path: (path / "adapter_config.json").write_text(content)


def _weights(content: bytes) -> Callable[[Path], object]:
    return lambda path: (path / "adapter_model.safetensors").write_bytes(content)


def _header(fields: object) -> Callable[[Path], object]:
    header = json.dumps(fields).encode()
    return _weights(len(header).to_bytes(8, "little") + header)


def _field(**change: object) -> Callable[[Path], object]:
    def spoil(path: Path) -> None:
        file = path / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))

    return spoil


def _instead(file: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def spoil(path: Path) -> None:
        (path / file).unlink()
        make(path / file)

    return spoil


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path.relative_to(Path.cwd())))


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "a FIFO for the config": (
        _instead("adapter_config.json", os.mkfifo),
        "adapter_config.json is not a regular file",
    ),
    "a FIFO for weights": (
        _instead("adapter_model.safetensors", os.mkfifo),
        "adapter_model.safetensors is n",
    ),
    "a socket": (
        _instead("adapter_config.json", _socket),
        "adapter_config.json cannot be read (No such device",
    ),
    "a folder": (_instead("adapter_config.json", Path.mkdir), "adapter_config.json cannot be read (Is a dir"),
    "a device": (
        _instead("adapter_model.safetensors", lambda path: path.symlink_to("/dev/zero")),
        "adapter_model.safetensors is not a regular file",
    ),
    "a dangling link": (
        _instead("adapter_config.json", lambda path: path.symlink_to("nowhere")),
        "adapter_config.json is missing",
    ),
    "a loop of links": (
        _instead("adapter_config.json", lambda path: path.symlink_to(path.name)),
        "adapter_config.json cannot be read (Too many levels of symbolic links)",
    ),
    "an endless file": (
        lambda path: os.truncate(path / "adapter_model.safetensors", 1 << 40),
        "adapter_model.safetensors has 1099511627776 bytes; accepted: at most 1048576",
    ),
    "a long config": (
        lambda path: os.truncate(path / "adapter_config.json", 1 << 40),
        "adapter_config.json h",
    ),
    "no JSON": (_config("{"), "adapter_config.json is not JSON (Expecting property name"),
    "deep JSON": (_config("[" * 100_000), "adapter_config.json is not JSON ("),
    "no UTF-8": (
        lambda path: (path / "adapter_config.json").write_bytes(b"\xff{"),
        "adapter_config.json is n",
    ),
    "a number of 5 000 digits": (_config('{"r": ' + "9" * 5000 + "}"), "adapter_config.json is not JSON ("),
    "an alpha beyond floats": (_field(lora_alpha=10**400), "lora_alpha is 1000"),
    "a field of 1 MB": (_field(peft_type="x" * 1_000_000), "peft_type is 'xxx"),
    "a list for tensors": (_header([1]), "adapter_model.safetensors cannot be read ("),
    "text for a tensor": (_header({"a": "b"}), "adapter_model.safetensors cannot be read ("),
    "a deep header": (
        _weights((50_000).to_bytes(8, "little") + b'{"a":' + b"[" * 49_995),
        "adapter_model.safetensors cannot be read (",
    ),
    "a shape beyond memory": (
        _header({"a": {"dtype": "F32", "shape": [0, 1 << 70], "data_offsets": [0, 0]}}),
        "adapter_model.safetensors cannot be read (",
    ),
    "layers of any names": (
        _header(
            {
                f"base_model.model.\x1b[31m{'x' * 50_000}.lora_{kind}.weight": {
                    "dtype": "F32",
                    "shape": [4, 0] if kind == "A" else [0, 4],
                    "data_offsets": [0, 0],
                }
                for kind in "AB"
            }
        ),
        "target_modules has ",
    ),
    "half of the weights": (_weights(b"half"), "adapter_model.safetensors cannot be read ("),
}


@pytest.mark.parametrize("what", SPOILT)
def test_one_bad_adapter_is_refused_alone(
    what: str, folder: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, reason = SPOILT[what]
    for name in ("bad", "white"):
        shutil.copytree(sources / "blue", folder / name)
    monkeypatch.chdir(folder)
    spoil(folder / "bad")
    catalog = AdapterCatalog(folder, LoadTimes(), max_bytes=1 << 20)
    catalog.start(lambda _: None, lambda: None)
    catalog.wait_until_known(PATIENCE_S)
    catalog.stop()
    assert {name for name, found in catalog.all().items() if found.digest} == {"red", "white"}
    refusal = catalog.all()["bad"].refusal
    assert refusal.startswith(reason)
    assert refusal.isprintable()
    assert len(refusal) < 2 * MAX_REFUSAL + 100


def test_names_of_any_bytes_are_refused_in_words_that_can_be_sent(
    catalog: AdapterCatalog, folder: Path, sources: Path
) -> None:
    for raw in (b"\xff\xfe", b"\x1b[31mred", "naïve".encode()):
        shutil.copytree(sources / "blue", folder / os.fsdecode(raw))
    (folder / "away").symlink_to("nowhere")
    (folder / "circle").symlink_to("circle")
    catalog.look()
    refused = {name: found.refusal for name, found in catalog.all().items() if found.refusal}
    assert set(refused) == {"\\udcff\\udcfe", "\\x1b[31mred", "naïve", "away", "circle"}
    for name, refusal in refused.items():
        assert name.isprintable()
        (name + refusal).encode()
    assert digests(catalog)["red"]


def test_whatever_else_goes_wrong_with_one_adapter_is_its_own_affair(
    catalog: AdapterCatalog, folder: Path, sources: Path
) -> None:
    shutil.copytree(sources / "blue", folder / "blue")

    def check(files: AdapterFiles) -> None:
        if files.name == "blue":
            raise RuntimeError("out of luck")

    catalog.start(check, lambda: None)
    catalog.wait_until_known(PATIENCE_S)
    assert catalog.all()["red"].digest
    assert catalog.all()["blue"].refusal.startswith("the adapter cannot be read (RuntimeError)")


def test_an_adapter_is_served_once_it_may_be_read(
    catalog: AdapterCatalog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.stat

    def denied(path: Path, **options: bool) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:  # root may read everything
        patch.setattr(Path, "stat", denied)
        patch.setattr(model_files, "_open_at_once", lambda path, flags: denied(Path(path)))
        catalog.look()
    assert Path.stat is real
    refusal = catalog.all()["red"].refusal
    assert refusal == "adapter_config.json cannot be read (Permission denied); accepted: a file"
    catalog.look()
    assert catalog.all()["red"].digest


def test_what_the_model_refuses_is_refused(catalog: AdapterCatalog, folder: Path) -> None:
    def check(files: AdapterFiles) -> None:
        raise AdapterRefused(files.name, files.path, "r", "is 4", "1 to 2")

    changes: list[int] = []
    catalog.start(check, lambda: changes.append(1))
    catalog.wait_until_known(PATIENCE_S)
    assert catalog.all()["red"].refusal == "r is 4; accepted: 1 to 2"
    assert changes


def test_folders_without_an_adapter_and_hidden_ones_are_passed(
    catalog: AdapterCatalog, folder: Path, sources: Path
) -> None:
    (folder / "notes").mkdir()
    (folder / "file").touch()
    shutil.copytree(sources / "blue", folder / ".blue")
    catalog.look()
    assert list(catalog.all()) == ["red"]


def test_more_adapters_than_a_fleet_is_told_of_are_left_out(
    catalog: AdapterCatalog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "MAX_ADAPTERS", 2)
    for name in ("blue", "white"):
        (folder / name).symlink_to(folder / "red")
    catalog.look()
    assert list(catalog.all()) == ["blue", "red"]


def test_a_folder_that_is_away_takes_nothing_with_it(catalog: AdapterCatalog, folder: Path) -> None:
    catalog.look()
    folder.rename(folder.with_name("away"))
    with pytest.raises(FileNotFoundError):
        catalog.look()
    assert list(catalog.all()) == ["red"]
