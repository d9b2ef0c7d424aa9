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
