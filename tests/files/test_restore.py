"""Going back and forward with files: only changes of the agent are restored, and everything can be undone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sessiontree.config import FileSettings
from sessiontree.files import restore as restoring
from sessiontree.files.git_command import GitCommand, SnapshotError
from sessiontree.files.restore import find_interrupted, recover
from sessiontree.files.restore_plan import RestorePlan, plan_restore
from tests.files.conftest import Workspace, read_folder
from tests.reliability.harness import times


def list_conflicts(plan: RestorePlan) -> dict[str, str]:
    return {conflict.path: conflict.reason for conflict in plan.conflicts}


def change_everything(workspace: Workspace) -> None:
    """Add, change, delete, rename, link, and change a mode: what an agent may do."""
    folder = workspace.folder
    workspace.write("new/deep/file", "new")
    workspace.write("changed", "by the agent")
    (folder / "deleted").unlink()
    (folder / "old-name").rename(folder / "new-name")
    (folder / "script").chmod(0o755)
    (folder / "link").unlink()
    os.symlink("elsewhere", folder / "link")
    (folder / "file-or-folder").unlink()
    workspace.write("file-or-folder/inside", "x")
    (folder / "folder-or-file/inside").unlink()
    (folder / "folder-or-file").rmdir()
    workspace.write("folder-or-file", "x")


@pytest.fixture
def changed(workspace: Workspace) -> tuple[Workspace, str, dict[str, object], str, dict[str, object]]:
    """A workspace with two turns: the places and the files after each of them."""
    names = ("changed", "deleted", "old-name", "script", "file-or-folder", "folder-or-file/inside", "kept")
    for name in names:
        workspace.write(name, f"{name} 1")
    os.symlink("kept", workspace.folder / "link")
    first = workspace.call(lambda: workspace.write("first", "1"))
    before = read_folder(workspace.folder)
    second = workspace.call(lambda: change_everything(workspace))
    return workspace, first, before, second, read_folder(workspace.folder)


def test_planning_a_move_over_many_turns_starts_no_more_processes(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = workspace.call(lambda: workspace.write("a", "0"))
    places = [workspace.call(lambda number=number: workspace.write("a", f"{number}")) for number in range(1, 9)]
    commands: list[str] = []
    run = GitCommand.run_with_code

    def count(self: GitCommand, *arguments: Any, **options: Any) -> tuple[int, bytes]:
        commands.append(arguments[0])
        return run(self, *arguments, **options)

    monkeypatch.setattr(GitCommand, "run_with_code", count)
    plan_restore(workspace.store, workspace.log, places[0], first)
    one = commands.copy()
    commands.clear()
    plan = plan_restore(workspace.store, workspace.log, places[-1], first)

    assert [change.path for change in plan.changes] == ["a"]
    assert commands == one
    assert len(one) == 3


def test_going_back_and_forward_brings_every_kind_of_change(changed: tuple[Workspace, str, dict, str, dict]) -> None:
    workspace, first, before, second, after = changed

    workspace.go(first)
    assert read_folder(workspace.folder) == before
    workspace.go(second)
    assert read_folder(workspace.folder) == after
    workspace.go(None)
    assert "first" not in read_folder(workspace.folder)
    workspace.go(second)
    assert read_folder(workspace.folder) == after


def test_undo_of_a_restore_and_undo_of_the_undo(changed: tuple[Workspace, str, dict, str, dict]) -> None:
    workspace, first, before, _, after = changed
    workspace.go(first)

    workspace.undo_restore()
    assert read_folder(workspace.folder) == after
    workspace.undo_restore()
    assert read_folder(workspace.folder) == before


def test_unchanged_files_are_not_written(changed: tuple[Workspace, str, dict, str, dict]) -> None:
    workspace, first, *_ = changed
    path = workspace.folder / "kept"
    os.utime(path, ns=(1, 1))
    identity = path.stat().st_ino, path.stat().st_mtime_ns

    workspace.go(first)

    assert (path.stat().st_ino, path.stat().st_mtime_ns) == identity


def test_the_preview_changes_nothing_and_counts(changed: tuple[Workspace, str, dict, str, dict]) -> None:
    workspace, first, _, _, after = changed

    plan = workspace.plan(first)

    assert read_folder(workspace.folder) == after
    assert (plan.count("add"), plan.count("change"), plan.count("delete")) == (4, 3, 4)
    assert plan.summary == "4 files to add, 3 files to change, 4 files to delete"


def test_edits_of_a_person_on_other_paths_stay(workspace: Workspace) -> None:
    workspace.write("mine", "1")
    first = workspace.call(lambda: workspace.write("a", "1"))
    workspace.write("mine", "2")
    workspace.call(lambda: workspace.write("a", "2"))
    workspace.write("mine", "3")
    workspace.write("also-mine", "1")

    workspace.go(first)

    assert read_folder(workspace.folder) == {
        "mine": (b"3", False),
        "also-mine": (b"1", False),
        "a": (b"1", False),
    }


def test_a_path_that_changed_after_the_agent_is_a_conflict_and_restorable_by_name(workspace: Workspace) -> None:
    first = workspace.call(lambda: workspace.write("a", "1"))
    workspace.call(lambda: (workspace.write("a", "2"), workspace.write("b", "2")))
    workspace.write("a", "mine")

    plan = workspace.plan(first)
    assert list_conflicts(plan) == {"a": "changed on disk since"}
    done = workspace.restore(plan)
    assert read_folder(workspace.folder) == {"a": (b"mine", False)}
    assert [conflict.path for conflict in done.conflicts] == ["a"]

    workspace.undo_restore()
    workspace.restore(workspace.plan(first).take(["a"]))
    assert read_folder(workspace.folder) == {"a": (b"1", False)}
    workspace.undo_restore()
    assert read_folder(workspace.folder)["a"] == (b"mine", False)


def test_a_path_that_a_person_changed_between_two_turns_is_a_conflict(workspace: Workspace) -> None:
    first = workspace.call(lambda: workspace.write("a", "1"))
    workspace.call(lambda: workspace.write("a", "2"))
    workspace.write("a", "mine")
    workspace.call(lambda: workspace.write("a", "3"))

    assert list_conflicts(workspace.plan(first)) == {"a": "changed between two turns"}


def test_going_back_restores_what_a_person_wrote_before_the_agent_changed_it(workspace: Workspace) -> None:
    first = workspace.call(lambda: workspace.write("a", "1"))
    workspace.write("a", "mine")
    workspace.call(lambda: workspace.write("a", "2"))

    workspace.go(first)

    assert read_folder(workspace.folder) == {"a": (b"mine", False)}


def test_a_path_that_changes_after_the_preview_is_kept(workspace: Workspace) -> None:
    first = workspace.call(lambda: workspace.write("a", "1"))
    workspace.call(lambda: (workspace.write("a", "2"), workspace.write("b", "2")))
    plan = workspace.plan(first)
    workspace.write("a", "too late")

    done = workspace.restore(plan)

    assert [(conflict.path, conflict.reason) for conflict in done.conflicts] == [("a", "changed on disk since")]
    assert read_folder(workspace.folder) == {"a": (b"too late", False)}


def test_a_path_that_is_deleted_after_the_preview_is_reported(workspace: Workspace) -> None:
    first = workspace.call(lambda: workspace.write("a", "1"))
    workspace.call(lambda: (workspace.write("a", "2"), workspace.write("b", "2")))
    plan = workspace.plan(first)
    (workspace.folder / "a").unlink()

    done = workspace.restore(plan)

    assert [conflict.path for conflict in done.conflicts] == ["a"]
    assert read_folder(workspace.folder) == {}


def test_switching_between_branches_takes_the_files_along(workspace: Workspace) -> None:
    start = workspace.call(lambda: workspace.write("a", "start"))
    workspace.call(lambda: workspace.write("a", "main"))
    main = workspace.session.head.leaf
    workspace.restore(workspace.plan(start))
    workspace.session.create_branch("other", at=workspace.session.tree[start])
    other = workspace.call(lambda: (workspace.write("a", "other"), workspace.write("b", "other")))

    workspace.go(main)
    assert read_folder(workspace.folder) == {"a": (b"main", False)}
    workspace.go(other)
    assert read_folder(workspace.folder) == {"a": (b"other", False), "b": (b"other", False)}


def test_a_move_of_the_conversation_alone_does_not_confuse_the_next_restore(workspace: Workspace) -> None:
    first = workspace.call(lambda: workspace.write("a", "1"))
    workspace.call(lambda: workspace.write("a", "2"))
    workspace.session.move(workspace.session.tree[first])

    workspace.restore(workspace.plan(first))

    assert read_folder(workspace.folder) == {"a": (b"1", False)}


def test_a_file_that_grew_beyond_the_limit_is_a_conflict(folder: Path) -> None:
    workspace = Workspace(folder, FileSettings(max_file_bytes=100))
    first = workspace.call(lambda: workspace.write("a", "small"))
    workspace.call(lambda: workspace.write("a", "x" * 200))

    plan = workspace.plan(first)

    assert list_conflicts(plan) == {"a": "left out of a snapshot"}
    workspace.restore(plan)
    assert read_folder(folder) == {"a": (b"x" * 200, False)}


def test_nothing_is_written_or_deleted_through_a_link(workspace: Workspace, tmp_path: Path) -> None:
    first = workspace.call(lambda: workspace.write("sub/a", "1"))
    workspace.call(lambda: (workspace.write("sub/a", "2"), workspace.write("sub/b", "2")))
    outside = tmp_path / "outside"
    (workspace.folder / "sub").rename(outside)
    os.symlink(outside, workspace.folder / "sub")

    plan = workspace.plan(first)
    workspace.restore(plan)

    assert list_conflicts(plan) == {"sub/a": "its folder is a file or a link"}
    assert read_folder(outside) == {"a": (b"2", False), "b": (b"2", False)}
    with pytest.raises(SnapshotError, match="move away"):
        plan.take(["sub/a"])


def test_the_permissions_of_an_existing_file_stay(workspace: Workspace) -> None:
    workspace.write("a", "1")
    (workspace.folder / "a").chmod(0o640)
    first = workspace.call(lambda: workspace.write("b", "1"))
    workspace.call(lambda: (workspace.write("a", "2"), (workspace.folder / "a").chmod(0o750)))

    workspace.go(first)

    assert (workspace.folder / "a").stat().st_mode & 0o777 == 0o640


def test_snapshots_that_are_not_on_this_machine_are_reported(workspace: Workspace, tmp_path: Path) -> None:
    first = workspace.call(lambda: workspace.write("a", "1"))
    workspace.call(lambda: workspace.write("a", "2"))
    for ref in workspace.store.list_refs():
        workspace.store.git.run("update-ref", "-d", ref)
    workspace.store.git.run("prune", "--expire=now")

    plan = workspace.plan(first)

    assert plan.is_empty
    assert "not in the store" in (plan.missing or "")
    with pytest.raises(SnapshotError, match="cannot be restored"):
        workspace.restore(plan)


def test_a_name_without_a_conflict_cannot_be_taken(workspace: Workspace) -> None:
    first = workspace.call(lambda: workspace.write("a", "1"))

    with pytest.raises(SnapshotError, match="no conflict at a; conflicts: none"):
        workspace.plan(first).take(["a"])


# Failures and kills


def test_a_restore_that_cannot_be_prepared_changes_nothing(
    changed: tuple[Workspace, str, dict, str, dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, first, _, _, after = changed
    written = 0
    write = restoring._write_temporary

    def fill_the_disk(*arguments: object) -> None:
        nonlocal written
        written += 1
        if written == 3:
            raise OSError(28, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(restoring, "_write_temporary", fill_the_disk)
    with pytest.raises(SnapshotError, match="no file was restored"):
        workspace.go(first)

    assert read_folder(workspace.folder) == after
    assert find_interrupted(workspace.store) == []


def test_a_restore_that_fails_half_way_is_reverted(
    changed: tuple[Workspace, str, dict, str, dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, first, _, _, after = changed
    replaced = 0
    replace = restoring._replace

    def fail_once(*arguments: object) -> None:
        nonlocal replaced
        replaced += 1
        if replaced == 3:
            raise PermissionError(1, "Operation not permitted")
        replace(*arguments)

    monkeypatch.setattr(restoring, "_replace", fail_once)
    with pytest.raises(SnapshotError, match="no file was restored"):
        workspace.go(first)

    assert read_folder(workspace.folder) == after
    assert find_interrupted(workspace.store) == []


CHILD = """
import os, sys
from pathlib import Path
from sessiontree.files import restore as restoring
from tests.files.conftest import Workspace
from sessiontree.files.restore_plan import PathRestore, RestorePlan
from sessiontree.files.snapshot_store import FileVersion
import msgspec

folder, stop = sys.argv[1], int(sys.argv[2])
workspace = Workspace(Path(folder))
plan = msgspec.json.decode(sys.stdin.buffer.read(), type=RestorePlan)
count = 0

def die_at(function):
    def run(*arguments, **options):
        global count
        count += 1
        if count == stop:
            os.kill(os.getpid(), 9)
        return function(*arguments, **options)
    return run

for name in ("_write_temporary", "_replace", "_remove_empty_parents", "_make_parents", "_record"):
    setattr(restoring, name, die_at(getattr(restoring, name)))
restoring.restore(
    plan, workspace.snapshots, session="s", branch="main", parent=None, write_record=lambda record, place: None
)
"""


@pytest.mark.parametrize("choice", ["finish", "revert"])
def test_a_killed_restore_is_finished_or_reverted(changed: tuple[Workspace, str, dict, str, dict], choice: str) -> None:
    import msgspec

    workspace, first, before, _, after = changed
    for stop in range(1, times(24, torture=60), times(5, torture=1)):
        plan = workspace.plan(first)
        command = [sys.executable, "-c", CHILD, str(workspace.folder), str(stop)]
        ran = subprocess.run(command, input=msgspec.json.encode(plan), check=False, capture_output=True)
        if ran.returncode == 0:
            break
        assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()
        (interrupted,) = find_interrupted(workspace.store)
        with pytest.raises(SnapshotError, match="interrupted"):
            workspace.restore(plan)

        done = recover(workspace.snapshots, interrupted, choice, write_record=workspace.write_record)

        assert done.conflicts == ()
        assert find_interrupted(workspace.store) == []
        assert read_folder(workspace.folder) == (before if choice == "finish" else after)
        if choice == "finish":
            workspace.undo_restore()
            assert read_folder(workspace.folder) == after


def test_the_journal_of_a_later_version_is_found(changed: tuple[Workspace, str, dict, str, dict]) -> None:
    import msgspec

    workspace, first, *_ = changed
    command = [sys.executable, "-c", CHILD, str(workspace.folder), "16"]
    subprocess.run(command, input=msgspec.json.encode(workspace.plan(first)), check=False, capture_output=True)
    (journal,) = Path(workspace.store.path, "restores").iterdir()
    journal.write_bytes(msgspec.json.encode(msgspec.json.decode(journal.read_bytes()) | {"unknown": 1}))

    assert len(find_interrupted(workspace.store)) == 1


def test_an_edit_after_a_kill_is_kept(changed: tuple[Workspace, str, dict, str, dict]) -> None:
    import msgspec

    workspace, first, *_ = changed
    command = [sys.executable, "-c", CHILD, str(workspace.folder), "16"]
    subprocess.run(command, input=msgspec.json.encode(workspace.plan(first)), check=False, capture_output=True)
    workspace.write("changed", "mine")
    (interrupted,) = find_interrupted(workspace.store)

    done = recover(workspace.snapshots, interrupted, "finish")

    assert [conflict.path for conflict in done.conflicts] == ["changed"]
    assert (workspace.folder / "changed").read_text() == "mine"


@pytest.mark.parametrize("why", ["large", "ignored"])
def test_a_file_that_snapshots_leave_out_comes_back_with_undo(workspace: Workspace, why: str) -> None:
    first = workspace.call(lambda: workspace.write("a", "1"))
    workspace.call(lambda: workspace.write("a", "2"))
    if why == "ignored":
        workspace.write(".gitignore", "a\n")
        workspace.call(lambda: workspace.write("b", "1"))
    mine = "x" * (6_000_000 if why == "large" else 10)
    workspace.write("a", mine)

    workspace.restore(workspace.plan(first).take(["a"]))
    assert (workspace.folder / "a").read_text() == "1"
    done = workspace.undo_restore()

    assert done.conflicts == ()
    assert (workspace.folder / "a").read_text() == mine


def test_undo_of_a_finished_restore_keeps_what_a_person_did_before(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.write("mine", "1")
    first = workspace.call(lambda: workspace.write("a", "1"))
    workspace.call(lambda: (workspace.write("a", "2"), workspace.write("b", "2")))

    def die(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    plan = workspace.plan(first)
    with monkeypatch.context() as patch:
        patch.setattr(restoring, "_record", die)
        with pytest.raises(KeyboardInterrupt):
            workspace.restore(plan)
    workspace.write("mine", "2")
    workspace.write("b", "mine")
    (interrupted,) = find_interrupted(workspace.store)
    recover(workspace.snapshots, interrupted, "finish", write_record=workspace.write_record)

    workspace.undo_restore()

    assert read_folder(workspace.folder) == {"mine": (b"2", False), "a": (b"2", False), "b": (b"mine", False)}


# Several processes and the life of a store


def test_every_snapshot_stays_reachable_until_its_session_is_forgotten(workspace: Workspace) -> None:
    first = workspace.call(lambda: workspace.write("a", "1"))
    workspace.call(lambda: workspace.write("a", "2"))
    workspace.go(first)
    workspace.call(lambda: workspace.write("a", "3"))
    commits = [commit for record in workspace.log.records for commit in (record.before, record.commit)]
    workspace.store.git.run("gc", "--quiet", "--prune=now")

    assert workspace.store.has_commits(commits)

    assert workspace.store.forget_session(workspace.session.id)
    assert not workspace.store.forget_session(workspace.session.id)
    workspace.store.git.run("gc", "--quiet", "--prune=now")
    assert not workspace.store.has_commits(commits[:1])


def test_a_snapshot_works_after_objects_of_the_index_were_deleted(workspace: Workspace) -> None:
    workspace.call(lambda: workspace.write("a", "1"))
    workspace.store.forget_session(workspace.session.id)
    workspace.store.git.run("gc", "--quiet", "--prune=now")
    workspace.write("b", "1")

    files = workspace.store.list_files(workspace.take().tree)

    assert sorted(files) == [b"a", b"b"]


WRITER = """
import sys
from pathlib import Path
from tests.files.conftest import Workspace

workspace = Workspace(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    workspace.call(lambda: workspace.write(f"{sys.argv[2]}/{number}", "x"))
commits = [record.commit for record in workspace.log.records]
assert workspace.store.has_commits(commits)
print(len(commits))
"""


def test_two_processes_share_a_store(folder: Path) -> None:
    count = times(5, torture=60)
    command = [sys.executable, "-c", WRITER, str(folder)]
    writers = [
        subprocess.Popen([*command, name, str(count)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for name in ("one", "two")
    ]
    for writer in writers:
        out, err = writer.communicate(timeout=120)
        assert (writer.returncode, out.decode().strip()) == (0, str(count)), err.decode()

    workspace = Workspace(folder)
    assert len(workspace.store.list_files(workspace.take().tree)) == 2 * count
    workspace.store.git.run("fsck", "--no-dangling", "--no-progress", *workspace.store.list_refs())
