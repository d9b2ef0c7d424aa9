"""Merging the files of two branches: what both sides changed, and what conflicts."""

from __future__ import annotations

from pathlib import Path

from sessiontree.files.folder_merge import BOTH_CHANGED, FileMerge, merge_files
from sessiontree.files.restore_plan import plan_changes
from tests.files.conftest import Workspace

LINES = "".join(f"line {number}\n" for number in range(30))


def merge(workspace: Workspace, ours: dict[str, str | None], theirs: dict[str, str | None]) -> FileMerge:
    """Merge two sets of changes to the files of a workspace, and leave `ours` on disk."""
    base = workspace.take().tree

    def apply(changes: dict[str, str | None]) -> str:
        for name, text in changes.items():
            path = Path(workspace.folder, name)
            path.unlink(missing_ok=True) if text is None else workspace.write(name, text)
        return workspace.take().tree

    before = {path: path.read_text() for path in workspace.folder.rglob("*") if path.is_file()}
    their_tree = apply(theirs)
    for path in workspace.folder.rglob("*"):
        if path.is_file():
            path.unlink()
    for path, text in before.items():
        workspace.write(str(path.relative_to(workspace.folder)), text)
    return merge_files(workspace.store, base=base, ours=apply(ours), theirs=their_tree)


def test_changes_of_both_sides_to_one_file_are_combined(workspace: Workspace) -> None:
    workspace.write("a.txt", LINES)

    merged = merge(workspace, {"a.txt": "first\n" + LINES}, {"a.txt": LINES + "last\n"})

    assert merged.conflicts == ()
    (change,) = merged.changes
    assert change.path == b"a.txt"
    assert change.new is not None
    with workspace.store.open_blobs() as blobs:
        assert blobs.read(change.new.blob).decode() == "first\n" + LINES + "last\n"


def test_added_and_deleted_files_are_merged(workspace: Workspace) -> None:
    workspace.write("old.txt", "old")
    workspace.write("kept.txt", "kept")

    merged = merge(workspace, {"ours.txt": "ours"}, {"old.txt": None, "theirs.txt": "theirs"})

    assert [(item.path, item.old is None, item.new is None) for item in merged.changes] == [
        (b"old.txt", False, True),
        (b"theirs.txt", True, False),
    ]
    plan = plan_changes(str(workspace.folder), merged.changes, None)
    assert [change.path for change in plan.changes] == ["old.txt", "theirs.txt"]


def test_conflicts_are_listed_and_there_are_no_changes_to_apply(workspace: Workspace) -> None:
    workspace.write("both.txt", "one\n")
    workspace.write("deleted.txt", "one\n")

    merged = merge(
        workspace,
        {"both.txt": "ours\n", "deleted.txt": "ours\n", "added.txt": "ours\n"},
        {"both.txt": "theirs\n", "deleted.txt": None, "added.txt": "theirs\n", "fine.txt": "fine"},
    )

    assert [(item.path, item.reason) for item in merged.conflicts] == [
        ("added.txt", BOTH_CHANGED),
        ("both.txt", BOTH_CHANGED),
        ("deleted.txt", "modify/delete"),
    ]
    assert merged.changes == ()


def test_the_same_change_on_both_sides_is_no_change(workspace: Workspace) -> None:
    workspace.write("a.txt", "one")

    assert merge(workspace, {"a.txt": "two"}, {"a.txt": "two"}) == FileMerge()
