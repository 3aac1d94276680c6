from pathlib import Path

from tools.house.folders import missing_from_map, modules_by_folder
from tools.house.source_tree import LONG_FILE, Size, measure


def test_modules_are_counted_in_their_own_folder(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("__init__.py", "b.py", "a.py", "inner/__init__.py", "inner/c.py")]
    assert modules_by_folder(files) == {tmp_path: ["a", "b"], tmp_path / "inner": ["c"]}


def test_a_map_names_every_module_and_package(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("__init__.py", "__main__.py", "a.py", "b.py", "inner/c.py")]
    files[0].write_text('"""Begins in `a.py`, ends in ab."""', encoding="utf-8")
    assert missing_from_map(tmp_path, files) == ["b", "inner"]
    files[0].write_text('"""a, then b, then inner/."""', encoding="utf-8")
    assert missing_from_map(tmp_path, files) == []


def test_a_folder_without_docstring_has_no_map(tmp_path: Path) -> None:
    assert missing_from_map(tmp_path, [tmp_path / "a.py"]) == ["a"]


def test_lines_are_counted_as_wc_counts_them(tmp_path: Path) -> None:
    short, long = tmp_path / "short.py", tmp_path / "long.py"
    short.write_text("a = 1\n\n# b\n", encoding="utf-8")
    long.write_text("a = 1\n" * (LONG_FILE + 1), encoding="utf-8")
    assert measure([short, long]) == Size(files=2, lines=LONG_FILE + 4, long_files=1)
