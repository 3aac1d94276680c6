"""Nothing that comes over a wire, or from a file that others may write, is ever unpickled or evaluated."""

import ast

import pytest

from tests.house.walls import MAY_IMPORT
from tools.house.source_tree import imports, module_name, modules

# Each turns bytes into running code, or into objects of any class.
FORBIDDEN = {"cPickle", "cloudpickle", "copyreg", "dill", "joblib", "marshal", "pickle", "shelve"}
# What pickles under the hood. A pool of processes does, over pipes that only parent and child hold.
UNDER_THE_HOOD = {"multiprocessing", "concurrent"}
POOLS = {
    "router.intake.helpers.helper": "texts, token ids and grammars, to and from the router's own processes",
}
THREADS_ONLY = {
    f"concurrent.futures.{name}"
    for name in ("Executor", "FIRST_EXCEPTION", "Future", "ThreadPoolExecutor", "wait")
}
MAKES_CODE = {"scheduling.value": "methods of our own classes, from the names of their fields"}
CALLS = {"eval", "exec", "compile", "__import__"}
# Methods that unpickle unless told otherwise.
LOADERS = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("yaml", "load"), ("pd", "read_pickle")}
SERVED = sorted(set(MAY_IMPORT) - {"benchmarks", "reporting", "tools", "workloads", "sim"})


@pytest.mark.parametrize("package", SERVED)
def test_nothing_that_pickles_is_imported(package: str) -> None:
    offences = [found for found in imports(package) if found.package in FORBIDDEN]
    assert not offences, "\n".join(map(str, offences))


@pytest.mark.parametrize("package", SERVED)
def test_pools_of_processes_are_only_where_nothing_foreign_is_pickled(package: str) -> None:
    offences = [
        found
        for found in imports(package)
        if found.package in UNDER_THE_HOOD
        and found.target not in THREADS_ONLY
        and module_name(found.path) not in POOLS
    ]
    assert not offences, "\n".join(map(str, offences))


@pytest.mark.parametrize("package", SERVED)
def test_nothing_is_evaluated_or_loaded_as_objects(package: str) -> None:
    offences = [
        f"{path}:{node.lineno}"
        for path in modules(package)
        if module_name(path) not in MAKES_CODE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _called(node.func) in CALLS | LOADERS
    ]
    assert not offences, "\n".join(offences)


def _called(function: ast.expr) -> str | tuple[str, str]:
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.value.id, function.attr
    return ""
