"""The store of snapshots of one folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from sessiontree.files.snapshot_store import SnapshotStore, list_stores
from tests.files.conftest import Workspace


def test_several_threads_can_create_the_store_of_a_folder_at_once(folder: Path) -> None:
    errors: list[BaseException] = []
    barrier = threading.Barrier(8)

    def open_store() -> None:
        barrier.wait()
        try:
            SnapshotStore.open(str(folder))
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=open_store) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    (store,) = list_stores()
    assert store.folder == os.path.realpath(folder)


def test_many_pairs_of_trees_are_compared_like_each_pair_alone(workspace: Workspace) -> None:
    trees: list[str] = []
    for text in ("1", "2", "3"):
        for name in ("plain", "with space", "line\nbreak", ":100644 colon", "d/\udcff"):
            workspace.write(name, text)
        workspace.write(f"only {text}", "x")
        trees.append(workspace.take().tree)
    pairs = [(old, new) for old in trees for new in trees]

    found = workspace.store.diff_trees(pairs)

    assert found == [workspace.store.diff(old, new) for old, new in pairs]
    assert [len(changes) for changes in found] == [0, 6, 7, 6, 0, 6, 7, 6, 0]
    assert workspace.store.diff_trees([]) == []


def test_trees_are_found_only_if_all_commits_exist(workspace: Workspace) -> None:
    workspace.write("a", "1")
    state = workspace.take()
    commit = workspace.commit(state, [], "person", None)

    assert workspace.store.find_trees([commit, commit]) == {commit: state.tree}
    assert workspace.store.find_trees([commit, "0" * 39 + "1"]) is None
    assert workspace.store.find_trees([state.tree]) is None
