"""The adapters of a folder: found, found again when they have changed, and refused with a reason."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import AdapterRefused
from engine.model.adapters.checkpoint import AdapterFiles, read_adapter
from tests.adapters import write_adapter
from tests.model_zoo import build
from tests.patience import PATIENCE_S
from worker.adapters import catalog as catalog_module
from worker.adapters.catalog import AdapterCatalog
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
