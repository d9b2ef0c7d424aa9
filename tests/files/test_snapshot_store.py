"""The store of snapshots of one folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from sessiontree.files.snapshot_store import SnapshotStore, list_stores


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
