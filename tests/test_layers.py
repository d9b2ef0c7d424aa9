"""Imports point down the list, never up. The order here is the architecture."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import sessiontree
from sessiontree.core.late_imports import TARGETS

LAYERS = [  # bottom first
    "_version", "errors", "home", "regular_file", "core", "format", "branch_comparison", "export", "convert", "interop",
    "config", "store", "config_editing", "session", "library", "hooks", "model", "files", "ops", "agent",
    "slash_commands", "extensions", "swarm", "adapters", "compat", "mcp_server", "server", "tui", "acp", "cli",
    "__main__",
]  # fmt: skip
PURE = {"core", "format", "branch_comparison", "export", "convert", "interop"}
IMPURE_MODULES = {
    "asyncio", "fcntl", "glob", "io", "os", "pathlib", "random", "secrets", "shutil", "socket", "sqlite3",
    "subprocess", "sys", "tempfile", "threading", "time", "uuid", "uuid_utils",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval"}
DOORS = {
    "mcp": ("agent/mcp_client", "mcp_server"),
    "mcp_types": ("agent/mcp_client", "mcp_server"), "psycopg": "store/postgres/driver.py",
    "claude_agent_sdk": "adapters/claude.py",
    "langchain_core": "adapters/langgraph", "langgraph": "adapters/langgraph",
    "acp": "acp",
    "pydantic_ai": ("model/adapter", "convert/pydantic_ai", "adapters/pydantic_ai.py"),
    "agents": "adapters/openai_agents.py",
}  # fmt: skip
"""Unstable dependencies, and the only place that imports them. `convert` has the rule for messages of pydantic_ai."""
METHODS_OF_UPPER_LAYERS = {"session/branch.py"}
"""Modules whose methods `core.late_imports` loads from above. Only type checkers see the types of these methods."""
ROOT = Path(sessiontree.__file__).parent


def list_sources() -> list[tuple[str, Path]]:
    files = [(path.relative_to(ROOT).with_suffix("").parts[0], path) for path in sorted(ROOT.rglob("*.py"))]
    return [(layer, path) for layer, path in files if layer != "__init__"]


@cache
def parse(path: Path) -> ast.Module:
    """Parse a source once: many tests look at all of them."""
    return ast.parse(path.read_text())


@cache
def read_imports(path: Path, *, with_types: bool = True) -> tuple[str, ...]:
    return tuple(find_imports(path, with_types=with_types))


def find_imports(path: Path, *, with_types: bool) -> Iterator[str]:
    tree = parse(path)
    types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in types and not with_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def find_layer(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "sessiontree" and len(parts) > 1 else None


@pytest.mark.parametrize(("layer", "path"), list_sources(), ids=lambda value: getattr(value, "stem", None))
def test_imports_point_down(layer: str, path: Path) -> None:
    names = read_imports(path, with_types=str(path).removeprefix(f"{ROOT}/") not in METHODS_OF_UPPER_LAYERS)
    for name in names:
        imported = find_layer(name)
        if imported is not None:
            assert LAYERS.index(imported) <= LAYERS.index(layer), f"{path} imports {name}"


@pytest.mark.parametrize(
    ("layer", "path"),
    [item for item in list_sources() if item[0] in PURE],
    ids=lambda value: getattr(value, "stem", None),
)
def test_pure_layers_touch_no_files_clock_or_randomness(layer: str, path: Path) -> None:
    for name in read_imports(path):
        assert name.split(".")[0] not in IMPURE_MODULES, f"{path} imports {name}"
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in IMPURE_CALLS, f"{path}:{node.lineno} calls {node.func.id}"
        assert not isinstance(node, ast.Await | ast.AsyncFunctionDef), f"{path}:{node.lineno} awaits"


@pytest.mark.parametrize(("package", "door"), DOORS.items())
def test_an_unstable_dependency_is_imported_in_one_place_only(package: str, door: str | tuple[str, ...]) -> None:
    paths = [path for _, path in list_sources() if package in {name.split(".")[0] for name in read_imports(path)}]

    assert paths
    assert [path for path in paths if not str(path.relative_to(ROOT)).startswith(door)] == []


@pytest.mark.parametrize("target", TARGETS.values())
def test_a_call_to_an_upper_layer_has_a_target(target: str) -> None:
    module, _, function = target.partition(":")

    assert LAYERS.index(module.split(".")[1]) > LAYERS.index("core")
    assert callable(getattr(import_module(module), function))


def test_every_module_has_a_docstring() -> None:
    for _, path in list_sources():
        assert ast.get_docstring(parse(path)), f"{path} has no docstring"


def test_the_layer_rule_notices_an_import_that_points_up(tmp_path: Path) -> None:
    path = tmp_path / "tree.py"
    path.write_text("from sessiontree.session import Session\n")

    with pytest.raises(AssertionError):
        test_imports_point_down("core", path)


Edge = tuple[str, str, str, bool]
"""Importing module, imported module, the line, and whether it runs when the module is imported."""


def read_edges() -> list[Edge]:
    names = {find_module_name(path): path for _, path in list_sources()}
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


def find_module_name(path: Path) -> str:
    return "sessiontree." + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def is_late(node: ast.AST) -> bool:
    """Return whether imports in this block run later than the module, or only in a type checker."""
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


def test_a_late_import_that_closes_a_cycle_has_a_comment_with_the_reason() -> None:
    reachable = find_reachable([edge for edge in read_edges() if "# cycle:" not in edge[2]])

    assert [name for name, found in reachable.items() if name in found] == []
