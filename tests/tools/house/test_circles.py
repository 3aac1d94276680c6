from tools.house.circles import circles, folder_graph, import_graph
from tools.house.source_tree import module_name, modules


def _graph(**imports: str) -> dict[str, frozenset[str]]:
    return {name: frozenset(targets.split()) for name, targets in imports.items()}


def test_a_chain_is_no_circle() -> None:
    assert circles(_graph(a="b c", b="c", c="")) == []


def test_modules_that_import_each_other_are_a_circle() -> None:
    assert circles(_graph(a="b", b="c", c="a d", d="", e="a")) == [("a", "b", "c")]


def test_circles_that_share_a_module_are_one() -> None:
    assert circles(_graph(a="b c", b="a", c="a")) == [("a", "b", "c")]


def test_separate_circles_come_largest_first() -> None:
    graph = _graph(a="b", b="a c", c="d", d="e", e="c")
    assert circles(graph) == [("c", "d", "e"), ("a", "b")]


def test_an_import_of_a_name_leads_to_its_module() -> None:
    graph = import_graph(modules("tools"))
    assert graph["tools.house.circles"] == {"tools.house.source_tree"}
    assert "tools.house.folders" in graph["tools.house.__main__"]


def test_each_module_of_the_graph_is_a_file() -> None:
    assert import_graph(modules("tools")).keys() == {module_name(path) for path in modules("tools")}


def test_a_folder_within_a_folder_is_another_one() -> None:
    graph = folder_graph(modules("router"))
    assert "router.core.model" in graph["router.core"]
    assert "router.core" not in graph["router.core.model"]


def test_a_program_stands_above_its_folder() -> None:
    graph = folder_graph(modules("router"))
    assert {"router", "router.api", "router.core"} <= graph["router.__main__"]
    assert "router.api" not in graph["router"]
