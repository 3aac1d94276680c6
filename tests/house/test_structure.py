"""The structure explains itself: no circles, no crowded folders, and a map in each (`make house`)."""

from tools.house.circles import circles, folder_graph, import_graph
from tools.house.folders import MAX_MODULES, missing_from_map, modules_by_folder
from tools.house.source_tree import ROOT, product


def test_no_imports_run_in_a_circle() -> None:
    assert not list(circles(import_graph(product())))


def test_no_folders_import_each_other() -> None:
    assert not list(circles(folder_graph(product())))


def test_no_folder_has_more_than_twelve_modules() -> None:
    folders = modules_by_folder(product())
    assert not {str(folder.relative_to(ROOT)) for folder in folders if len(folders[folder]) > MAX_MODULES}


def test_every_package_docstring_names_what_is_in_the_folder() -> None:
    files = product()
    missing = {folder: missing_from_map(folder, files) for folder in {path.parent for path in files}}
    assert not {str(folder.relative_to(ROOT)): names for folder, names in missing.items() if names}
