"""The public names, and what importing them costs."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import sessiontree


def test_the_public_names_are_exactly_those_in_all() -> None:
    public = {name for name in dir(sessiontree) if not name.startswith("_")}
    modules = {name for name in public if inspect.ismodule(getattr(sessiontree, name))}
    tools = {"annotations", "TYPE_CHECKING", "Any"}

    assert sorted(sessiontree.__all__) == sorted({*(public - modules - tools), "__version__"})
    assert len(set(sessiontree.__all__)) == len(sessiontree.__all__)


def test_every_public_name_can_be_had() -> None:
    for name in sessiontree.__all__:
        assert getattr(sessiontree, name) is not None


def test_no_module_hides_a_public_name() -> None:
    for path in Path(sessiontree.__file__).parent.iterdir():
        assert path.stem == "_version" or path.stem not in sessiontree.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        sessiontree.nonsense  # noqa: B018


def loaded(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_importing_the_library_pulls_in_nothing_heavy() -> None:
    heavy = {"asyncio", "click", "rich", "pydantic", "sqlite3", "dataclasses"}

    assert not heavy & (loaded("import sessiontree") - loaded("pass"))
    assert not {"asyncio", "click", "rich", "pydantic"} & loaded("from sessiontree import create, open, memory")


def test_importing_the_library_does_nothing(tmp_path) -> None:
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
