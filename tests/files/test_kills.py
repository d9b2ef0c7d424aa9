"""Processes that are killed while they take snapshots: nothing is half done, and the next snapshot works."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from tests.files.conftest import Workspace
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
    for _ in range(times(6, torture=500)):
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
