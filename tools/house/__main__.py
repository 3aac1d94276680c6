"""Print the measures of the structure."""

from __future__ import annotations

import argparse

from tools.house.circles import circles, folder_graph, import_graph
from tools.house.folders import MAX_MODULES, missing_from_map, modules_by_folder
from tools.house.request_path import CORE, WITH_DECISIONS, CallRecorder, trace_request
from tools.house.source_tree import LONG_FILE, ROOT, measure, modules, product


def main() -> None:
    """Print each measure under its own heading."""
    argparse.ArgumentParser(prog="python -m tools.house", description=__doc__).parse_args()
    _print_folders()
    _print_circles()
    _print_lines()
    _print_path()


def _print_folders() -> None:
    files = product()
    print(f"Modules of each folder (more than {MAX_MODULES}: *), and what its docstring does not name")
    for folder, names in sorted(modules_by_folder(files).items()):
        mark = "*" if len(names) > MAX_MODULES else " "
        unnamed = ", ".join(missing_from_map(folder, files))
        print(f"  {len(names):4} {mark} {folder.relative_to(ROOT)!s:24}  {unnamed}".rstrip())


def _print_circles() -> None:
    for graph, what, nodes in (
        (import_graph(product()), "Circles of imports", "modules"),
        (folder_graph(product()), "Knots of folders that import each other", "folders"),
    ):
        components = circles(graph)
        print(f"\n{what}: {len(components)}, with {sum(map(len, components))} {nodes}")
        for circle in components:
            print(f"  {len(circle):4}   {', '.join(circle)}")


def _print_lines() -> None:
    print(f"\nPython, without generated stubs        lines  files  over {LONG_FILE} lines")
    for name, files in (("product", product()), ("tests", modules("tests"))):
        size = measure(files)
        print(f"  {name:34} {size.lines:7} {size.files:6} {size.long_files:6}")


def _print_path() -> None:
    recorders = CallRecorder(CORE), CallRecorder(WITH_DECISIONS)
    events = trace_request(*recorders)
    print("\nPath of a request from its arrival to its first token, on an idle fleet")
    print(f"  events: {', '.join(events)}")
    print("  in the files of                     files  functions  crossings  distinct")
    for recorder in recorders:
        name = ", ".join(sorted(recorder.folders))
        crossings = recorder.crossings
        counts = f"{len(recorder.functions):10} {crossings.total():10} {len(crossings):9}"
        print(f"  {name:34} {len(recorder.files):6} {counts}")


if __name__ == "__main__":
    main()
