"""Imports point down the list, never up. The order here is the architecture."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sessiontree

LAYERS = [  # bottom first
    "_version", "errors", "home", "self_process", "regular_file", "core", "format", "comparison", "export", "config",
    "store", "session", "library", "hooks", "model", "ops", "agent", "commands", "extensions", "swarm", "server", "tui",
    "cli", "__main__",
]  # fmt: skip
PURE = {"core", "format", "comparison", "export"}
IMPURE_MODULES = {
    "asyncio", "fcntl", "glob", "io", "os", "pathlib", "random", "secrets", "shutil", "socket", "sqlite3",
    "subprocess", "sys", "tempfile", "threading", "time", "uuid", "uuid_utils",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval"}
DOORS = {
    "dbos": "swarm/durable", "psycopg": "store/postgres/driver.py", "pydantic_ai": "model/adapter",
    "sqlalchemy": "swarm/durable",
}  # fmt: skip
"""What changes often, and the one place that knows it."""
ROOT = Path(sessiontree.__file__).parent


def sources() -> list[tuple[str, Path]]:
    files = [(path.relative_to(ROOT).with_suffix("").parts[0], path) for path in sorted(ROOT.rglob("*.py"))]
    return [(layer, path) for layer, path in files if layer != "__init__"]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "sessiontree" and len(parts) > 1 else None


@pytest.mark.parametrize(("layer", "path"), sources(), ids=lambda value: getattr(value, "stem", None))
def test_imports_point_down(layer: str, path: Path) -> None:
    for name in imports(path):
        imported = layer_of(name)
        if imported is not None:
            assert LAYERS.index(imported) <= LAYERS.index(layer), f"{path} imports {name}"


@pytest.mark.parametrize(
    ("layer", "path"), [item for item in sources() if item[0] in PURE], ids=lambda value: getattr(value, "stem", None)
)
def test_pure_layers_touch_no_files_clock_or_randomness(layer: str, path: Path) -> None:
    for name in imports(path):
        assert name.split(".")[0] not in IMPURE_MODULES, f"{path} imports {name}"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in IMPURE_CALLS, f"{path}:{node.lineno} calls {node.func.id}"
        assert not isinstance(node, ast.Await | ast.AsyncFunctionDef), f"{path}:{node.lineno} awaits"


@pytest.mark.parametrize(("package", "door"), DOORS.items())
def test_what_changes_often_is_imported_in_one_place(package: str, door: str) -> None:
    paths = [path for _, path in sources() if package in {name.split(".")[0] for name in imports(path)}]

    assert paths
    assert [path for path in paths if not str(path.relative_to(ROOT)).startswith(door)] == []


def test_every_module_says_what_it_holds() -> None:
    for _, path in sources():
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


def test_the_layer_rule_would_notice_an_import_that_points_up(tmp_path: Path) -> None:
    path = tmp_path / "tree.py"
    path.write_text("from sessiontree.session import Session\n")

    with pytest.raises(AssertionError):
        test_imports_point_down("core", path)


Edge = tuple[str, str, str, bool]
"""Importing module, imported module, the line, and whether it runs when the module is imported."""


def read_edges() -> list[Edge]:
    names = {name_of(path): path for _, path in sources()}
    edges: list[Edge] = []
    for name, path in names.items():
        lines = path.read_text().split("\n")
        tree = ast.parse("\n".join(lines))
        late = {id(node) for block in ast.walk(tree) if is_late(block) for node in ast.walk(block)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [target if target in names else str(node.module) for target in targets]
            else:
                continue
            line = " ".join(lines[node.lineno - 1 : node.end_lineno])
            edges += [(name, target, line, id(node) not in late) for target in targets if target in names]
    return edges


def name_of(path: Path) -> str:
    return "sessiontree." + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def is_late(node: ast.AST) -> bool:
    """Whether imports in this block run later than the module, or only in a type checker."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def find_reachable(edges: list[Edge]) -> dict[str, set[str]]:
    direct: dict[str, set[str]] = {}
    for source, target, _, _ in edges:
        direct.setdefault(source, set()).add(target)
    reachable: dict[str, set[str]] = {}
    for start in direct:
        found: set[str] = set()
        todo = list(direct[start])
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += direct.get(name, ())
        reachable[start] = found
    return reachable


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    edges = [edge for edge in read_edges() if edge[3]]
    reachable = find_reachable(edges)

    assert [name for name, found in reachable.items() if name in found] == []


def test_a_late_import_that_closes_a_cycle_says_why() -> None:
    reachable = find_reachable([edge for edge in read_edges() if "# cycle:" not in edge[2]])

    assert [name for name, found in reachable.items() if name in found] == []
