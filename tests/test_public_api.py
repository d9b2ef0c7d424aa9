"""The public names, and what importing them costs."""

import ast
import builtins
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import sessiontree


def test_the_public_names_are_exactly_those_in_all() -> None:
    public = {name for name in dir(sessiontree) if not name.startswith("_")}
    modules = {name for name in public if inspect.ismodule(getattr(sessiontree, name))}
    tools = {"annotations", "Any", *sessiontree._NOT_STARRED}

    assert sorted(sessiontree.__all__) == sorted({*(public - modules - tools), "events", "__version__"})
    assert len(set(sessiontree.__all__)) == len(sessiontree.__all__)


def test_the_stub_has_the_same_names_as_the_table() -> None:
    stub = ast.parse(Path(sessiontree.__file__).with_suffix(".pyi").read_text())
    imported = {
        (node.module, alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module != "sessiontree._version"
        for alias in node.names
        if alias.asname == alias.name
    }

    assert imported == {(module, name) for name, module in sessiontree._MODULE_OF.items()}
    exported = next(node.value for node in stub.body if isinstance(node, ast.Assign))
    assert sorted(ast.literal_eval(exported)) == sorted(sessiontree.__all__)


def test_a_star_import_replaces_no_built_in() -> None:
    assert not set(sessiontree.__all__) & set(dir(builtins))
    assert callable(sessiontree.open)


def test_every_public_name_can_be_imported() -> None:
    for name in (*sessiontree.__all__, *sessiontree._NOT_STARRED):
        assert getattr(sessiontree, name) is not None


def test_the_events_can_be_named_before_anything_else_is_used() -> None:
    script = "import sessiontree as st; print(st.events.BeforeToolCall.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "BeforeToolCall\n"


def test_a_star_import_works_without_extras_and_a_missing_extra_is_named() -> None:
    script = (
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {EXTRA_PACKAGES}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "from sessiontree import *\n"
        "import sessiontree\n"
        "for name in sorted(sessiontree._NOT_STARRED - {'open'}):\n"
        "    try:\n"
        "        getattr(sessiontree, name)\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )

    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert len(shown.splitlines()) == len(sessiontree._NOT_STARRED) - 1
    assert "create_app needs `pip install 'sessiontree[web]'` (No module named 'fastapi')" in shown


EXTRA_PACKAGES = {
    "fastapi", "jinja2", "markdown_it", "nh3", "opentelemetry", "psycopg", "pydantic", "pydantic_ai",
    "pygments", "rich", "starlette", "textual", "uvicorn", "watchfiles", "xllamacpp",
}  # fmt: skip


def test_no_module_hides_a_public_name() -> None:
    for path in Path(sessiontree.__file__).parent.iterdir():
        assert path.stem == "_version" or path.stem not in sessiontree.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        sessiontree.nonsense  # noqa: B018


def list_imports(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_importing_the_library_imports_no_heavy_dependency() -> None:
    heavy = {"asyncio", "click", "rich", "pydantic", "sqlite3", "dataclasses"}

    assert not heavy & (list_imports("import sessiontree") - list_imports("pass"))
    assert not {"asyncio", "click", "rich", "pydantic"} & list_imports("from sessiontree import create, open, memory")


def test_importing_the_library_has_no_side_effects(tmp_path) -> None:
    script = (
        "import sys\nseen = []\n"
        "def watch(name, args):\n"
        "    writes = name == 'open' and args[1] not in ('r', 'rb', None)\n"
        "    if writes or name in ('socket.connect', 'subprocess.Popen', 'os.mkdir', 'os.putenv'):\n"
        "        seen.append((name, args))\n"
        "sys.addaudithook(watch)\n"
        "import sessiontree\nfor name in sessiontree.__all__: getattr(sessiontree, name)\nprint(seen)"
    )

    result = subprocess.run(
        [sys.executable, "-B", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True
    )

    assert result.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == [tmp_path / "home"] or not list(tmp_path.iterdir())
