"""Measure a snapshot of a folder beside bare git: `git add -A` with a private index, and `git write-tree`.

    python bench/snapshots.py [FILES]

Both run in turns in one process, so that the ratio does not depend on the load of the machine. The commit and the ref
of a snapshot are included.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sessiontree.config import FileSettings
from sessiontree.files.folder_snapshot import FolderSnapshots
from sessiontree.files.snapshot_store import SnapshotStore

TIMES = 9
FOLDERS = 100


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


def measure_ms(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        os.environ["SESSIONTREE_HOME"] = str(root / "home")
        folder = root / "project"
        for number in range(count):
            path = folder / f"{number % FOLDERS}" / f"{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{number}\n")
        own, bare = OwnSnapshots(folder), BareGit(folder, root / "bare")
        print(f"first: {measure_ms(own.run):.0f} ms, git {measure_ms(bare.run):.0f} ms")
        own.run()
        for name, changes in (("no change", 0), ("one changed file", 1), ("100 changed files", 100)):
            times: list[tuple[float, float]] = []
            for attempt in range(TIMES):
                for number in range(changes):
                    (folder / f"{number % 2}" / f"{number // 2 * FOLDERS + number % 2}").write_text(f"{attempt}\n")
                times.append((measure_ms(own.run), measure_ms(bare.run)))
            ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"{name}: {ours:.1f} ms, git {theirs:.1f} ms, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
