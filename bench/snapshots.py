"""Measure a snapshot of a folder beside bare git: `git add -A` with a private index, and `git write-tree`.

    python bench/snapshots.py ['{"files": 10000}']

Both run in turns in one process, so that the ratio does not depend on the load of the machine. The commit and the ref
of a snapshot are included. Private folders are measured beside `git worktree add`, and a restore of many files beside
that of one. A turn of an agent runs with snapshots and without. Prints seconds as JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import sessiontree as st
from sessiontree.config import FileSettings
from sessiontree.files.folder_snapshot import FolderSnapshots
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.private_folder import METHODS, PrivateFolder, create_private_folder, remove_private_folder
from sessiontree.files.snapshot_store import SnapshotStore
from sessiontree.ops.move_files import FileMover

TIMES = 9
FOLDERS = 100
MANY = 100
"""Files that are changed or restored together."""


class BareGit:
    """The least that git needs for a tree of a folder."""

    def __init__(self, folder: Path, git_dir: Path) -> None:
        self._folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        subprocess.run(["git", "init", "--quiet", "--bare", str(git_dir)], env=clean, check=True)
        self._environment = {
            **clean,
            "GIT_DIR": str(git_dir),
            "GIT_WORK_TREE": str(folder),
            "GIT_INDEX_FILE": str(git_dir / "private-index"),
        }

    def run(self) -> None:
        for command in (["git", "add", "-A"], ["git", "write-tree"]):
            subprocess.run(command, cwd=self._folder, env=self._environment, check=True, capture_output=True)


class OwnSnapshots:
    """A snapshot with its commit and its ref, as an agent takes it."""

    def __init__(self, folder: Path) -> None:
        self._store = SnapshotStore.open(str(folder))
        self._snapshots = FolderSnapshots(self._store, FileSettings())
        self._last: tuple[str, str] | None = None

    def run(self) -> None:
        state = self._snapshots.take()
        parent, tree = self._last or (None, None)
        if state.tree != tree:
            parents = [] if parent is None else [parent]
            commit = self._store.commit(state.tree, parents, author="agent", entry="bench", session="bench")
            self._store.set_branch("bench", "main", commit, parent)
            self._last = commit, state.tree


def measure_ms(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def write_files(folder: Path, count: int) -> None:
    for number in range(count):
        path = folder / f"{number % FOLDERS}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n")


def change_files(folder: Path, count: int, text: str) -> None:
    """Change files in two folders."""
    for number in range(count):
        (folder / f"{number % 2}" / f"{number // 2 * FOLDERS + number % 2}").write_text(text)


def measure_snapshots(folder: Path, git_dir: Path) -> dict[str, float]:
    """Take snapshots after no change, one, and many, each beside bare git."""
    own, bare = OwnSnapshots(folder), BareGit(folder, git_dir)
    found = {"snapshot first": measure_ms(own.run), "git first": measure_ms(bare.run)}
    own.run()
    for name, changes in (("none", 0), ("one", 1), ("many", MANY)):
        times: list[tuple[float, float]] = []
        for attempt in range(TIMES):
            change_files(folder, changes, f"{name} {attempt}\n")
            times.append((measure_ms(own.run), measure_ms(bare.run)))
        ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
        found |= {f"snapshot {name}": ours, f"git {name}": theirs}
    return found


def measure_private_folders(folder: Path, root: Path) -> dict[str, float]:
    """Create private folders and work trees of a repository in turns, always in fresh folders."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
        subprocess.run(["git", *identity, *arguments], cwd=folder, env=clean, check=True, capture_output=True)

    git("init", "--quiet")
    git("add", "-A")
    git("commit", "--quiet", "-m", "bench")
    store = SnapshotStore.open(str(folder))
    state = FolderSnapshots(store, FileSettings()).take()
    commit = store.commit(state.tree, [], author="person", entry=None, session="bench")
    methods = [method for method in METHODS if method != "overlay" or os.geteuid() == 0]
    times: dict[str, list[float]] = {"work tree": [], **{f"private {method}": [] for method in methods}}
    made: list[PrivateFolder] = []
    for attempt in range(3):
        add = partial(git, "worktree", "add", "--detach", str(root / f"tree{attempt}"))
        times["work tree"].append(measure_ms(add))
        for method in methods:
            start = time.perf_counter()
            try:
                made.append(
                    create_private_folder(
                        *(store, commit),
                        session="bench",
                        branch=f"{method}{attempt}",
                        settings=FileSettings(),
                        methods=[method],
                    )
                )
                times[f"private {method}"].append((time.perf_counter() - start) * 1000)
            except SnapshotError:  # no overlays or reflinks here
                continue
    for private in made:
        remove_private_folder(private, FileSettings())
    # The first overlay makes the checkout that the others share.
    return {name: min(several) for name, several in times.items() if several}


def measure_turns(folder: Path) -> dict[str, float]:
    """Measure what snapshots add to a turn with one tool call that changes no file."""

    def look() -> str:
        """Change nothing."""
        return "seen"

    def build_agent(snapshots: bool) -> tuple[st.Agent, st.ScriptedModel]:
        model = st.ScriptedModel()
        return st.Agent(st.memory(), model, [look], cwd=str(folder), snapshots=snapshots), model

    agents = {snapshots: build_agent(snapshots) for snapshots in (True, False)}
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(TIMES):
        for snapshots, (agent, model) in agents.items():
            model.add([st.ToolCall("1", "look", {})], "done")
            times[snapshots].append(measure_ms(partial(agent.run_sync, "Look")))
    differences = [ours - bare for ours, bare in zip(times[True], times[False], strict=True)]
    return {"turn checks": max(statistics.median(differences), 0)}


def measure_restores(folder: Path) -> dict[str, float]:
    """Restore one file and many files."""
    found: dict[str, float] = {}
    for name, count in (("restore one", 1), ("restore many", MANY)):
        times: list[float] = []
        for attempt in range(3):
            session = st.memory()
            change_files(folder, count, f"before {name} {attempt}\n")

            def edit(text: str = f"after {name} {attempt}\n", count: int = count) -> str:
                """Change files."""
                change_files(folder, count, text)
                return "done"

            model = st.ScriptedModel([[st.ToolCall("1", "edit", {})], "done"])
            st.Agent(session, model, [edit], cwd=str(folder), snapshots=True).run_sync("Change files")
            mover = FileMover.find(session.head, FileSettings(), str(folder))
            start = time.perf_counter()
            done = mover.restore(mover.plan(None))
            times.append((time.perf_counter() - start) * 1000)
            assert len(done.written) == count
        found[name] = statistics.median(times)
    return found


def main() -> None:
    given = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    with tempfile.TemporaryDirectory(dir=given.get("scratch")) as temporary:
        root = Path(temporary)
        os.environ["SESSIONTREE_HOME"] = str(root / "home")
        # A repository of its own: the rules of the one around it ignore the scratch folder and thus every file.
        subprocess.run(["git", "init", "--quiet", str(root)], check=True)
        folder = root / "project"
        write_files(folder, given.get("files", 10_000))
        found = measure_snapshots(folder, root / "bare")
        found |= measure_turns(folder) | measure_restores(folder) | measure_private_folders(folder, root)
        print(json.dumps({name: value / 1000 for name, value in found.items()}))


if __name__ == "__main__":
    main()
