"""Use sessions under an audit hook, and print the unexpected events as JSON.

`watched.py WORK FILE [PLANT…]`: run by its path, which keeps the current folder out of Python's import path.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OWN = tuple(
    os.path.realpath(path) + os.sep
    for path in (sys.prefix, sys.base_prefix, ROOT / "src", ROOT / "tests", ROOT / ".venv")
)
"""The folders of Python, of installed packages and of this project."""
FORBIDDEN = (
    *("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pty.", "ctypes.", "webbrowser."),
    *("urllib.", "http.", "ftplib.", "smtplib.", "shutil.", "os.remove", "os.rename", "os.rmdir", "os.putenv"),
)


def is_own(path: object) -> bool:
    if not isinstance(path, str | bytes):
        return isinstance(path, int)
    name = os.fsdecode(path)
    return name.startswith("<frozen") or os.path.realpath(name).startswith(OWN)


def open_session(file: str) -> None:
    import sessiontree as st

    st.open(file).close()


def read_session(file: str) -> None:
    import sessiontree as st

    with st.open(file) as session:
        session.context()
        assert len(session.tree) == 3
        assert session.problems is not None
        assert [entry.body for entry in session.tree]
        session.head.explain()


def list_sessions(file: str) -> None:
    from sessiontree.library import catalog

    assert len(list(catalog.list_locations())) == 2


def search_sessions(file: str) -> None:
    import sessiontree as st

    assert st.open("mine").name == "mine"
    assert st.recent() is not None


def run_command(file: str) -> None:
    from click.testing import CliRunner

    from sessiontree.cli.app import app

    for words in (["tree", file], ["context", file, "--json"], ["show", file], ["ls", "--all"], ["search", "hello"]):
        CliRunner().invoke(app, words)


WORK: dict[str, Callable[[str], None]] = {
    "open": open_session,
    "ask": read_session,
    "list": list_sessions,
    "find": search_sessions,
    "command": run_command,
}


def main() -> None:
    work, file, *plants = sys.argv[1:]
    if plants:
        sys.path.insert(0, str(ROOT))
        from tests.reliability.planted import PLANTS

        for plant in plants:
            PLANTS[plant]()
    home = os.path.realpath(os.environ["SESSIONTREE_HOME"])
    sessions, index = os.path.join(home, "sessions") + os.sep, os.path.join(home, "index.db")
    settings = os.path.join(home, "config.toml")
    happened: list[tuple[str, str]] = []
    watching = True

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal watching
        if not watching:
            return
        watching = False  # ignore the events of this function
        try:
            if event == "open":
                path, mode = args[0], args[1]
                reads = isinstance(mode, str) or not args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
                session = isinstance(path, str) and (
                    os.path.realpath(path).startswith(sessions) or os.path.realpath(path) == os.path.realpath(file)
                )
                cache = isinstance(path, str) and os.path.realpath(path).startswith(index)
                configuration = isinstance(path, str) and os.path.realpath(path) == settings
                if not is_own(path) and not cache and not ((session or configuration) and reads):
                    happened.append((event, str(path)))
            elif event in ("exec", "compile"):
                where = args[0].co_filename if event == "exec" else args[1]
                if not is_own(where) and not str(where).startswith("<"):
                    happened.append((event, str(where)))
            elif event == "import":
                if args[1] is not None and not is_own(args[1]):
                    happened.append((event, str(args[1])))
            elif event.startswith(FORBIDDEN):
                happened.append((event, str(args)))
        finally:
            watching = True

    sys.addaudithook(hook)
    WORK[work](file)
    watching = False
    print(json.dumps(happened))


if __name__ == "__main__":
    main()
