"""Use a session under a umask and print every created path with its initial mode.

`python -m tests.reliability.modes UMASK FOLDER [PLANT…]`. Temporary files are gone at the end, so each path is checked
right after the call that created it: an audit hook records the call, and the next event checks the path.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import sessiontree as st
from tests.reliability.planted import PLANTS

DATA = Path(__file__).parents[1] / "conformance" / "data"


def use_session(folder: Path) -> None:
    old = DATA / "pi-v1" / "large-session.jsonl"
    file = folder / "deep" / "er" / "s.jsonl"
    with st.create(name="x", file=file) as session:
        session.append(st.user("one"))
        session.fork(file=folder / "forks" / "f.jsonl").close()
    with file.open("ab") as end:
        end.write(b'{"torn')
    with st.open(file) as session:
        session.append(st.user("two"))
    file.write_bytes(b"".join(old.read_bytes().splitlines(keepends=True)[:5]))
    with st.open(file) as session:
        session.migrate()
        session.append(st.user("three"))
    st.create(name="y").close()
    st.open("y").close()


def main() -> None:
    umask, folder, *plants = sys.argv[1:]
    os.environ["SESSIONTREE_HOME"] = os.path.join(folder, "home")
    for plant in plants:
        PLANTS[plant]()
    os.umask(int(umask, 8))
    made: dict[str, int] = {}
    to_look_at: list[str] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        while to_look_at:
            path = to_look_at.pop()
            try:
                made.setdefault(path, stat.S_IMODE(os.lstat(path).st_mode))
            except FileNotFoundError:
                continue
        if event in ("open", "os.mkdir", "os.link", "os.rename") and isinstance(args[0], str):
            path = args[1] if event in ("os.link", "os.rename") else args[0]
            if path.startswith(folder):
                to_look_at.append(path)

    sys.addaudithook(hook)
    use_session(Path(folder))
    print(json.dumps(list(made.items())))


if __name__ == "__main__":
    main()
