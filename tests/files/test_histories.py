"""Random histories of agent edits, personal edits, moves and undos: nothing of a person is lost or changed.

A second process works in the same folder: its agent changes files between the calls of the first one, and it takes
snapshots while the first one does.

A model of the folder knows who wrote each path last. After a move with files, every path that only the agent touched is
as it was at the place, and every path that a person touched since is untouched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from sessiontree.home import get_home
from tests.files.conftest import Workspace, read_folder
from tests.reliability.harness import times

NAMES = strategies.sampled_from(["a", "d/a", "d/e/b", "d", "\udcff"])
CONTENTS = strategies.sampled_from(["", "1", "2", "long " * 20, "line\r\n"])
KINDS = strategies.sampled_from(["write", "write", "write", "delete", "mode", "link", "rename"])
EDITS = strategies.lists(strategies.tuples(KINDS, NAMES, CONTENTS, NAMES), min_size=1, max_size=4)
Edit = tuple[str, str, str, str]
State = dict[str, object]


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()


def make_room(folder: Path, name: str) -> Path:
    """Return a path that can be written: nothing is in the way of it or of its folders."""
    path = folder / name
    for parent in reversed(path.relative_to(folder).parents):
        full = folder / parent
        if full.is_symlink() or (full.exists() and not full.is_dir()):
            full.unlink()
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def edit(folder: Path, changes: list[Edit]) -> None:
    for kind, name, content, other in changes:
        path = folder / name
        exists = path.is_symlink() or path.is_file()
        if kind == "write":
            make_room(folder, name).write_bytes(content.encode())
        elif kind == "delete" and exists:
            path.unlink()
        elif kind == "mode" and path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode ^ 0o111)
        elif kind == "link":
            make_room(folder, name).symlink_to(content.strip() or "nowhere")
        elif kind == "rename" and exists and not os.path.lexists(folder / other):
            data = path.read_bytes() if path.is_file() else b"x"
            path.unlink()
            make_room(folder, other).write_bytes(data)


def find_changed(before: State, after: State) -> set[str]:
    return {path for path in {*before, *after} if before.get(path) != after.get(path)}


SECOND_PROCESS = """
import json, os, sys
from pathlib import Path
from tests.files.conftest import Workspace
from tests.files.test_histories import edit

workspace = None
for line in sys.stdin:
    home, folder, changes = json.loads(line)
    os.environ["SESSIONTREE_HOME"] = home
    if workspace is None or workspace.folder != Path(folder) or not os.path.isdir(workspace.store.path):
        workspace = Workspace(Path(folder))
    if changes:
        workspace.call(lambda: edit(Path(folder), changes))
    else:
        for _ in range(3):
            workspace.take()
    print("done", flush=True)
"""


class SecondProcess:
    """An agent of another session in another process, which works in the same folder."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", SECOND_PROCESS]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._is_busy = False

    def start(self, folder: Path, changes: list[Edit]) -> None:
        self.wait()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([get_home(), str(folder), changes]) + "\n")
        self._process.stdin.flush()
        self._is_busy = True

    def wait(self) -> None:
        assert self._process.stdout is not None
        if self._is_busy:
            assert self._process.stdout.readline() == "done\n", "the second process failed"
        self._is_busy = False


@cache
def get_second_process() -> SecondProcess:
    return SecondProcess()


class Histories(RuleBasedStateMachine):
    places = Bundle("places")

    @initialize(target=places, changes=EDITS)
    def start(self, changes: list[Edit]) -> str:
        shutil.rmtree(os.path.join(get_home(), "files"), ignore_errors=True)
        self.folder = Path(tempfile.mkdtemp())
        edit(self.folder, changes)
        self.workspace = Workspace(self.folder)
        self.steps: dict[str, list[tuple[State, State]]] = {"": []}
        """For each place, the states before and after each call on its path."""
        self.position = ""
        self.agent_left: State = {}
        """What calls and restores left at each path. Anything else there was written by a person."""
        self.seen: list[State] = []
        """Every state before a restore, which must stay recoverable."""
        self.commits: dict[str, State] = {}
        """The commits that were read."""
        return self.call([("write", "a", "first", "a")])

    def call(self, changes: list[Edit]) -> str:
        before = read_folder(self.folder)
        place = self.workspace.call(lambda: edit(self.folder, changes))
        parent = self.head_place
        self.steps[place] = [*self.steps[parent], (before, read_folder(self.folder))]
        self.head_place = place
        self.note_change(before)
        if before != read_folder(self.folder):
            self.position = place
        return place

    def note_change(self, before: State) -> None:
        after = read_folder(self.folder)
        self.agent_left |= {path: after.get(path) for path in find_changed(before, after)}

    head_place = ""

    @rule(target=places, changes=EDITS)
    def agent_edits(self, changes: list[Edit]) -> str:
        return self.call(changes)

    @rule(changes=EDITS)
    def person_edits(self, changes: list[Edit]) -> None:
        edit(self.folder, changes)

    @rule(changes=EDITS)
    def agent_in_another_process_edits(self, changes: list[Edit]) -> None:
        get_second_process().start(self.folder, changes)
        get_second_process().wait()

    @rule()
    def another_process_takes_snapshots_meanwhile(self) -> None:
        get_second_process().start(self.folder, [])

    @rule(place=places)
    def conversation_moves(self, place: str) -> None:
        self.workspace.session.move(self.workspace.session.tree[place])
        self.head_place = place

    @rule(place=places)
    def conversation_and_files_move(self, place: str) -> None:
        before = read_folder(self.folder)
        plan = self.workspace.plan(place)
        done = self.workspace.go(place)
        after = read_folder(self.folder)

        conflicts = {conflict.path for conflict in done.conflicts}
        changed = find_changed(before, after)
        touched = self.find_touched(self.position, place)
        assert changed == {change.path for change in plan.changes} - conflicts
        assert changed <= touched, "only paths that the agent changed are restored"
        for path in changed:
            # A person who wrote just what the agent found or left there on the way is not told apart.
            known = {self.agent_left.get(path, "nothing"), *self.find_known_on_the_way(place, path)}
            assert before.get(path) in known, f"{path} was changed by a person"
        self.note_change(before)
        for path in touched - conflicts:
            assert after.get(path) == self.find_target(self.position, place, path), path
            # The file belongs to the place now, also if a person wrote just what the place has.
            self.agent_left[path] = after.get(path)
        for path in conflicts:
            assert after.get(path) == before.get(path)
        self.head_place = place
        if plan.changes:
            self.position = place
            self.seen.append(before)

    @rule(place=places, edits=EDITS, others=EDITS)
    def agent_and_person_edit_before_a_move(self, place: str, edits: list[Edit], others: list[Edit]) -> None:
        self.call(edits)
        edit(self.folder, others)
        self.conversation_and_files_move(place)

    @rule()
    def restore_is_undone_and_done_again(self) -> None:
        restored = [record for record in self.workspace.log.records if record.kind == "restore"]
        if not restored:
            return
        before = read_folder(self.folder)
        done = self.workspace.undo_restore()
        if not done.conflicts and done.before is not None:
            again = self.workspace.undo_restore()
            assert not again.conflicts
            assert read_folder(self.folder) == before
        else:
            self.note_change(before)
        # A person who wrote just what the restore found or left there is not told apart.
        states = [self.read_commit(commit) for commit in (restored[-1].before, restored[-1].commit)]
        now = read_folder(self.folder)
        for path in find_changed(*states):
            if now.get(path) in [state.get(path) for state in states]:
                self.agent_left[path] = now.get(path)
        head = self.workspace.session.head
        self.position = self.workspace.log.find_position(head.name, head.leaf) or ""

    @invariant()
    def states_before_restores_are_recoverable(self) -> None:
        """The last one is read at once, and all of them at the end: later steps must not lose any."""
        if getattr(self, "seen", None):
            records = [record for record in self.workspace.log.records if record.kind == "restore"]
            assert any(self.seen[-1] == self.read_commit(record.before) for record in reversed(records))

    def read_commit(self, commit: str) -> State:
        if commit not in self.commits:
            self.commits[commit] = read_commit(self.workspace, commit)
        return self.commits[commit]

    def find_touched(self, start: str, end: str) -> set[str]:
        up, down = self.split_steps(start, end)
        return {path for before, after in (*up, *down) for path in find_changed(before, after)}

    def split_steps(self, start: str, end: str) -> tuple[list[tuple[State, State]], list[tuple[State, State]]]:
        one, other = self.steps[start], self.steps[end]
        common = 0
        while common < min(len(one), len(other)) and one[common] is other[common]:
            common += 1
        return one[common:], other[common:]

    def find_known_on_the_way(self, place: str, path: str) -> list[object]:
        """Return what the agent left at a path on the way up to a place, and what it found there on the way down."""
        up, down = self.split_steps(self.position, place)
        left = [after.get(path) for before, after in reversed(up) if before.get(path) != after.get(path)]
        found = [before.get(path) for before, after in down if before.get(path) != after.get(path)]
        return [*left[:1], *found[:1]]

    def find_target(self, start: str, end: str, path: str) -> object:
        """Return what a path must be: after the last change on the way down, or before the first one on the way up."""
        up, down = self.split_steps(start, end)
        for before, after in reversed(down):
            if before.get(path) != after.get(path):
                return after.get(path)
        return next(before.get(path) for before, after in up if before.get(path) != after.get(path))

    def teardown(self) -> None:
        get_second_process().wait()
        if hasattr(self, "folder"):
            records = [record for record in self.workspace.log.records if record.kind == "restore"]
            saved = [read_commit(self.workspace, record.before) for record in records]
            assert all(state in saved for state in self.seen)
            shutil.rmtree(self.folder)


def read_commit(workspace: Workspace, commit: str) -> State:
    found: State = {}
    with workspace.store.open_blobs() as blobs:
        for path, version in workspace.store.list_files(commit).items():
            data = blobs.read(version.blob)
            name = os.fsdecode(path)
            found[name] = ("link", os.fsdecode(data)) if version.mode == "120000" else (data, version.mode == "100755")
    return found


SLICES = times(1, torture=20)


@pytest.mark.parametrize("number", range(SLICES))
def test_no_history_loses_or_changes_the_work_of_a_person(number: int) -> None:
    chosen = settings(max_examples=times(6, torture=500), stateful_step_count=times(12, torture=20), deadline=None)
    run_state_machine_as_test(Histories, settings=chosen)
