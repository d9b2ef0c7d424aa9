"""A disk that is full at every step of a snapshot and of a restore: a typed error, and nothing is half done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability.harness import times
from tests.reliability.test_full_disks import mount

CHILD = """
import json, os, subprocess, sys
from pathlib import Path

disk, where, step, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=True)
home, folder = disk / "home", disk / "project"
if where == "home":
    folder = disk.parent / "project"
else:
    home = disk.parent / "home"
home.mkdir()
folder.mkdir()
os.environ["SESSIONTREE_HOME"] = str(home)

from sessiontree.errors import SessionTreeError
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.restore import find_interrupted, recover
from tests.files.conftest import Workspace, read_folder


def fill(free):
    "Leave this many pages free."
    status = os.statvfs(disk)
    with open(disk / "filler", "wb") as file:
        file.write(bytes(max(0, status.f_bavail - free) * status.f_frsize))


def is_whole(workspace):
    on_disk = {os.fsencode(path) for path in read_folder(folder)}
    assert set(workspace.store.list_files(workspace.take().tree)) == on_disk
    refs = workspace.store.list_refs()
    workspace.store.git.run("fsck", "--no-dangling", "--no-progress", *refs)


def edit(number):
    for name in range(4):
        workspace.write(f"d{name % 2}/{name}", f"{number} {name} " * 700)
    if number % 2:
        workspace.write("only odd", "x" * 9000)
    elif (folder / "only odd").exists():
        (folder / "only odd").unlink()


workspace = Workspace(folder)
edit(0)
first = workspace.call(lambda: edit(1))
counts = {"failed": 0, "worked": 0, "interrupted": 0}
for number, free in enumerate(range(0, limit, step), 2):
    # A snapshot
    if where == "home":
        for name in range(3):
            workspace.write(f"mine/{number % 2}/{name}", f"{number} {name} " * 900)
        fill(free)
        try:
            workspace.take()
            counts["worked"] += 1
        except SnapshotError:
            counts["failed"] += 1
        (disk / "filler").unlink()
        is_whole(workspace)

    # A restore
    place = workspace.call(lambda: edit(number + 1))
    before = read_folder(folder)
    plan = workspace.plan(first)
    fill(free)
    try:
        workspace.restore(plan)
        counts["worked"] += 1
        is_restored = True
    except SnapshotError:
        is_restored = False
    (disk / "filler").unlink()
    found = find_interrupted(workspace.store)
    after = read_folder(folder)
    if found:
        counts["interrupted"] += 1
        choice = "finish" if number % 2 else "revert"
        done = recover(workspace.snapshots, found[0], choice, write_record=workspace.write_record)
        assert done.conflicts == ()
        after = read_folder(folder)
        is_restored = choice == "finish"
    elif not is_restored:
        counts["failed"] += 1
    if not is_restored:
        assert after == before, "a restore that failed changed files"
        workspace.restore(workspace.plan(first))
    assert read_folder(folder)["d0/0"][0].startswith(b"1 0 ")
    assert not [name for name in read_folder(folder) if "sessiontree-restore" in name]
    is_whole(workspace)
    workspace.session.move(workspace.session.tree[first])
print(json.dumps(counts))
"""


@mount
@pytest.mark.parametrize("where", ["home", "project"])
def test_a_full_disk_leaves_nothing_half_done(tmp_path: Path, where: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    step, limit = times(7, torture=1), times(28, torture=60)
    command = ["unshare", "-m", sys.executable, "-c", CHILD, str(disk), where, str(step), str(limit)]

    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=times(120, torture=1200))

    assert ran.returncode == 0, ran.stderr
    counts = json.loads(ran.stdout)
    assert counts["failed"] > 0
    assert counts["worked"] > 0
