"""Processes that are killed while they take snapshots or restore files: nothing is half done."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from sessiontree.files.restore import find_interrupted, recover
from tests.files.conftest import Workspace, read_folder
from tests.reliability.harness import times

CHILD = """
import sys
from pathlib import Path
from tests.files.conftest import Workspace

workspace = Workspace(Path(sys.argv[1]))
print("ready", flush=True)
number = 0
while True:
    number += 1
    workspace.call(lambda: [workspace.write(f"{name}", f"{number} {name}" * 50) for name in range(number % 7 + 1)])
    print(workspace.log.records[-1].commit, flush=True)
"""


def test_snapshots_survive_kills_at_any_moment(folder: Path) -> None:
    chosen = random.Random(1)
    for _ in range(times(4, torture=250)):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(chosen.random() * 0.3)
        child.kill()
        commits = child.stdout.read().split()
        child.wait()

        workspace = Workspace(folder)
        tree = workspace.take().tree
        on_disk = {str(path.relative_to(folder)).encode() for path in folder.rglob("*") if path.is_file()}
        assert set(workspace.store.list_files(tree)) == on_disk
        complete = [commit for commit in commits if len(commit) == 40]
        assert not complete or workspace.store.has_commits(complete)
        refs = workspace.store.list_refs()
        if refs:
            workspace.store.git.run("fsck", "--no-dangling", "--no-progress", *refs)


RESTORING_CHILD = """
import shutil, sys
from pathlib import Path
from tests.files.conftest import Workspace

workspace, number = Workspace(Path(sys.argv[1])), sys.argv[2]

def edit(text):
    shutil.rmtree(workspace.folder / "only", ignore_errors=True)
    for name in range(20):
        workspace.write(f"{name % 3}/{name}", f"{number} {text} " * (name * 40))
    workspace.write(f"only/in/{text}", number + text)

first = workspace.call(lambda: edit("first"))
second = workspace.call(lambda: edit("second"))
print("ready", flush=True)
while True:
    workspace.go(first)
    workspace.go(second)
"""


def test_restores_survive_kills_at_any_moment(folder: Path) -> None:
    chosen, interrupted = random.Random(2), 0
    for number in range(times(4, torture=250)):
        command = [sys.executable, "-c", RESTORING_CHILD, str(folder), str(number)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(chosen.random() * 0.3)
        child.kill()
        child.communicate()

        workspace = Workspace(folder)
        found = find_interrupted(workspace.store)
        interrupted += len(found)
        for restore in found:
            recover(workspace.snapshots, restore, chosen.choice(["finish", "revert"]))
        files = {name: content for name, (content, _) in read_folder(folder).items()}  # type: ignore[misc]
        (text,) = {"first", "second"} & {name.removeprefix("only/in/") for name in files}
        expected = {f"{name % 3}/{name}": f"{number} {text} ".encode() * (name * 40) for name in range(20)}
        assert files == expected | {f"only/in/{text}": f"{number}{text}".encode()}
        tree = workspace.take().tree
        assert set(workspace.store.list_files(tree)) == {name.encode() for name in files}
        workspace.store.git.run("fsck", "--no-dangling", "--no-progress", *workspace.store.list_refs())
    if number > 50:
        assert interrupted > 0
