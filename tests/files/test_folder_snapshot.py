"""Snapshots of real folders with real git: what they contain, what they leave out, and when they fail."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from sessiontree.config import FileSettings
from sessiontree.files import folder_snapshot
from sessiontree.files.git_command import SnapshotError, SnapshotsUnavailable, find_git, parse_version
from sessiontree.files.snapshot_store import SnapshotStore
from tests.files.conftest import Workspace, read_folder, run_git
from tests.reliability.harness import times


def list_paths(workspace: Workspace, tree: str) -> set[str]:
    return {os.fsdecode(path) for path in workspace.store.list_files(tree)}


def test_a_snapshot_contains_every_kind_of_change(workspace: Workspace) -> None:
    workspace.write("kept.txt", "kept")
    workspace.write("changed.txt", "one")
    workspace.write("deleted.txt", "gone soon")
    workspace.write("script", "#!/bin/sh")
    os.symlink("kept.txt", workspace.folder / "link")
    first = workspace.take()
    workspace.write("changed.txt", "two")
    (workspace.folder / "deleted.txt").unlink()
    (workspace.folder / "script").chmod(0o755)
    (workspace.folder / "link").unlink()
    os.symlink("changed.txt", workspace.folder / "link")
    workspace.write("new/deep/file", "new")

    second = workspace.take()

    assert workspace.list_changes(first, second) == {
        "changed.txt": "changed",
        "deleted.txt": "deleted",
        "script": "changed",
        "link": "changed",
        "new/deep/file": "added",
    }


def test_nothing_is_written_if_nothing_changed(workspace: Workspace) -> None:
    workspace.write("a", "a")
    first = workspace.take()
    before = {path: path.stat().st_mtime_ns for path in Path(workspace.store.path).rglob("*")}

    assert workspace.take() == first
    assert {path: path.stat().st_mtime_ns for path in Path(workspace.store.path).rglob("*")} == before


def test_an_edit_with_the_same_size_right_after_a_snapshot_is_found(workspace: Workspace) -> None:
    for number in range(20):
        workspace.write("a", f"{number:02}")
        workspace.write("b", "other")
        state = workspace.take()
        workspace.write("a", f"{number + 50}")

        assert workspace.list_changes(state, workspace.take()) == {"a": "changed"}


def test_ignore_rules_of_the_project_and_the_user_are_followed(folder: Path, home: Path) -> None:
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/ignore").write_text("*.global\n")
    run_git(folder, "init", "-q")
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    (folder / ".git/info/exclude").write_text("*.private\n")
    for name in ("a.log", "a.global", "a.private", "build/x", "a.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    workspace = Workspace(folder)

    assert list_paths(workspace, workspace.take().tree) == {".gitignore", "a.txt"}


def test_ignore_rules_above_the_folder_are_followed(folder: Path) -> None:
    run_git(folder, "init", "-q")
    (folder / ".gitignore").write_text("*.log\n/app/build/\n/other\nvendor/x\n")
    for name in ("app/a.log", "app/build/x", "app/other", "app/a.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    workspace = Workspace(folder / "app")

    assert list_paths(workspace, workspace.take().tree) == {"a.txt", "other"}


RULES = (
    "/packages/*/dist/",
    "packages/**/cache",
    "**/tmp/",
    "packages/o?e/[a-c]x",
    "packages/[!x]ne/y\\*",
    "packages/one/deep/**",
    "!packages/one/deep/kept",
    "packages/two/*",
    "packages/[z-a]/b",
    "#packages/one/a",
    "*.log\r",
    "!/packages/*/important.log",
)


@pytest.mark.parametrize(
    "rules", [RULES, ("*", "!packages", "!one"), ("packages/*", "!packages/one", "x"), ("/other/**",)]
)
def test_patterns_above_the_folder_mean_what_git_takes_them_for(folder: Path, rules: tuple[str, ...]) -> None:
    run_git(folder, "init", "-q")
    (folder / ".gitignore").write_text("\n".join(rules))
    names = "a dist/x deep/dist/x cache/x deep/y/cache tmp/x deep/tmp/x ax dx y* yy deep/kept a.log important.log x"
    for name in names.split():
        path = folder / "packages/one" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    shown = run_git(folder, "ls-files", "-z", "-o", "--exclude-standard", "packages/one").split("\0")[:-1]

    workspace = Workspace(folder / "packages/one")

    assert list_paths(workspace, workspace.take().tree) == {name.removeprefix("packages/one/") for name in shown}


@pytest.mark.parametrize("rules", ["*", "/packages/", "packages/one", "packages/**", "one/\n!packages/one/a"])
def test_rules_that_ignore_the_folder_itself_do_not_hide_its_files(folder: Path, rules: str) -> None:
    """Otherwise an agent in such a folder would have empty snapshots, and nobody would know."""
    run_git(folder, "init", "-q")
    (folder / ".gitignore").write_text(rules)
    (folder / "packages/one").mkdir(parents=True)
    workspace = Workspace(folder / "packages/one")
    workspace.write(".gitignore", "*.log\n")
    workspace.write("a", "1")
    workspace.write("b.log", "1")

    assert list_paths(workspace, workspace.take().tree) == {".gitignore", "a"}


def test_a_file_that_the_project_tracks_although_it_is_ignored_belongs_to_the_snapshot(folder: Path) -> None:
    run_git(folder, "init", "-q")
    (folder / ".gitignore").write_text("*.gen\n")
    (folder / "tracked.gen").write_text("1")
    (folder / "other.gen").write_text("1")
    run_git(folder, "add", "-f", "tracked.gen")
    workspace = Workspace(folder)
    first = workspace.take()
    (folder / "tracked.gen").write_text("2")

    assert list_paths(workspace, first.tree) == {".gitignore", "tracked.gen"}
    assert workspace.list_changes(first, workspace.take()) == {"tracked.gen": "changed"}


def test_a_file_that_becomes_ignored_leaves_only_at_the_next_clean_snapshot(workspace: Workspace) -> None:
    workspace.write("build/x", "x")
    first = workspace.take()
    workspace.write(".gitignore", "build/\n")

    after_call = workspace.snapshots.take()

    assert workspace.list_changes(first, after_call) == {".gitignore": "added"}
    assert workspace.list_changes(after_call, workspace.take()) == {"build/x": "deleted"}


def test_large_files_are_left_out_and_named(folder: Path) -> None:
    workspace = Workspace(folder, FileSettings(max_file_bytes=100))
    workspace.write("small", "x" * 100)
    workspace.write("large", "x" * 101)
    with open(folder / "huge", "wb") as file:
        file.truncate(4 << 30)

    state = workspace.take()

    assert list_paths(workspace, state.tree) == {"small"}
    assert [(item.path, item.reason) for item in state.left_out] == [
        ("huge", "larger than 100 bytes"),
        ("large", "larger than 100 bytes"),
    ]
    assert workspace.take() == state


def test_a_file_that_grows_beyond_the_limit_leaves_the_snapshot(folder: Path) -> None:
    workspace = Workspace(folder, FileSettings(max_file_bytes=100))
    workspace.write("a", "x")
    first = workspace.take()
    workspace.write("a", "x" * 200)

    second = workspace.take()

    assert workspace.list_changes(first, second) == {"a": "deleted"}
    assert [item.path for item in second.left_out] == ["a"]


@pytest.mark.parametrize("with_commit", [False, True])
def test_a_nested_repository_is_left_alone_and_named(folder: Path, with_commit: bool) -> None:
    nested = folder / "nested"
    nested.mkdir()
    run_git(nested, "init", "-q")
    (nested / "file").write_text("x")
    if with_commit:
        run_git(nested, "add", "file")
        run_git(nested, "commit", "-q", "-m", "x")
    workspace = Workspace(folder)
    workspace.write("a", "a")

    state = workspace.take()

    assert list_paths(workspace, state.tree) == {"a"}
    assert [(item.path, item.reason) for item in state.left_out] == [("nested/", "a nested repository")]


def test_a_folder_that_becomes_a_repository_leaves_when_its_files_change(workspace: Workspace) -> None:
    workspace.write("sub/file", "x")
    workspace.take()
    run_git(workspace.folder / "sub", "init", "-q")
    workspace.write("sub/file", "changed")

    state = workspace.take()

    assert list_paths(workspace, state.tree) == set()
    assert {item.reason for item in state.left_out} == {"a nested repository"}


def test_a_submodule_is_left_out(folder: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    run_git(library, "init", "-q")
    (library / "code").write_text("x")
    run_git(library, "add", ".")
    run_git(library, "commit", "-q", "-m", "x")
    run_git(folder, "init", "-q")
    run_git(folder, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "lib")
    workspace = Workspace(folder)

    state = workspace.take()

    assert list_paths(workspace, state.tree) == {".gitmodules"}
    assert [item.path for item in state.left_out] == ["lib/"]


def test_folders_that_are_deleted_during_it_do_not_prevent_a_snapshot(workspace: Workspace) -> None:
    workspace.write("kept", "a")
    is_done = threading.Event()

    def delete_and_create_folders() -> None:
        while not is_done.is_set():
            for number in range(20):
                shutil.rmtree(workspace.folder / f"{number}", ignore_errors=True)
                for name in range(20):
                    (workspace.folder / f"{number}" / f"{name}").mkdir(parents=True)

    other = threading.Thread(target=delete_and_create_folders)
    other.start()
    try:
        states = [workspace.take() for _ in range(times(25, torture=200))]
    finally:
        is_done.set()
        other.join()

    assert all("kept" in list_paths(workspace, state.tree) for state in states)


def test_a_pipe_next_to_a_deleted_file_is_named(workspace: Workspace) -> None:
    workspace.write("sub/file", "a")
    workspace.write("sub/other", "a")
    workspace.take()
    os.mkfifo(workspace.folder / "sub" / "pipe")
    os.unlink(workspace.folder / "sub" / "file")

    state = workspace.take()

    assert [(item.path, item.reason) for item in state.left_out] == [("sub/pipe", "not a regular file")]


def test_pipes_and_sockets_do_not_block_and_leave_the_snapshot(workspace: Workspace) -> None:
    workspace.write("pipe", "a file first")
    workspace.write("a", "a")
    workspace.take()
    (workspace.folder / "pipe").unlink()
    os.mkfifo(workspace.folder / "pipe")
    os.mkfifo(workspace.folder / "other-pipe")
    here = os.getcwd()
    os.chdir(workspace.folder)  # the path of a socket is short
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("socket")
    finally:
        os.chdir(here)

    state = workspace.take()
    listener.close()

    assert list_paths(workspace, state.tree) == {"a"}
    assert {(item.path, item.reason) for item in state.left_out} == {
        (name, "not a regular file") for name in ("pipe", "other-pipe", "socket")
    }


def test_links_are_stored_as_links_even_if_they_leave_the_folder(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    os.symlink(tmp_path / "secret", workspace.folder / "out")
    os.symlink("missing", workspace.folder / "dangling")
    os.symlink(tmp_path, workspace.folder / "up")

    state = workspace.take()

    files = workspace.store.list_files(state.tree)
    assert {path: version.mode for path, version in files.items()} == {
        b"out": "120000",
        b"dangling": "120000",
        b"up": "120000",
    }


def test_a_folder_that_becomes_a_link_is_not_followed(workspace: Workspace, tmp_path: Path) -> None:
    workspace.write("sub/file", "x")
    workspace.take()
    other = tmp_path / "other"
    (workspace.folder / "sub").rename(other)
    os.symlink(other, workspace.folder / "sub")

    assert list_paths(workspace, workspace.take().tree) == {"sub"}


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b"new\nline", b"-x", b":(top)x", b" ", b"git~1", b".git.", b"a\\b", b"*"]
)
def test_every_name_is_exact(workspace: Workspace, name: bytes) -> None:
    path = os.path.join(os.fsencode(workspace.folder), name)
    with open(path, "wb") as file:
        file.write(b"x\r\n")

    files = workspace.store.list_files(workspace.take().tree)

    assert list(files) == [name]
    with workspace.store.open_blobs() as blobs:
        assert blobs.read(files[name].blob) == b"x\r\n"


def test_a_name_that_git_reserves_is_left_out(workspace: Workspace) -> None:
    workspace.write(".GIT", "x")
    os.symlink("a", workspace.folder / ".gitmodules")
    workspace.write("a", "a")

    state = workspace.take()

    assert list_paths(workspace, state.tree) == {"a"}
    assert {item.path for item in state.left_out} == {".GIT", ".gitmodules"}


def test_the_home_of_sessiontree_and_session_files_are_left_out(tmp_path: Path, home: Path) -> None:
    home.mkdir()
    workspace = Workspace(tmp_path)
    (tmp_path / "a").write_text("a")
    (tmp_path / "s.jsonl").write_text("{}")
    (tmp_path / "s.jsonl.lock").write_text("")
    (tmp_path / "data.jsonl").write_text("{}")

    assert list_paths(workspace, workspace.take().tree) == {"a", "data.jsonl"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_something_unreadable_means_that_there_is_no_snapshot(workspace: Workspace, kind: str) -> None:
    workspace.write("sub/file", "x")
    state = workspace.take()
    target = workspace.folder / "sub" / ("file" if kind == "file" else "")
    workspace.write("sub/file", "y")
    target.chmod(0)
    try:
        with pytest.raises(SnapshotError):
            workspace.take()
    finally:
        target.chmod(0o700)

    assert workspace.list_changes(state, workspace.take()) == {"sub/file": "changed"}


def test_a_warning_of_git_means_that_there_is_no_snapshot(workspace: Workspace) -> None:
    workspace.write("rules", "*.log\n")
    os.symlink("rules", workspace.folder / ".gitignore")  # git does not read it, and says so on standard error

    with pytest.raises(SnapshotError, match="git ls-files"):
        workspace.take()


def test_a_read_only_folder_has_snapshots(workspace: Workspace) -> None:
    workspace.write("a", "a")
    workspace.folder.chmod(0o555)
    try:
        assert list_paths(workspace, workspace.take().tree) == {"a"}
    finally:
        workspace.folder.chmod(0o755)


def test_a_file_that_keeps_changing_is_left_out_or_stored_as_it_was_at_one_moment(folder: Path) -> None:
    workspace = Workspace(folder)
    workspace.write("quiet", "quiet")
    workspace.write("busy", "")
    stop = threading.Event()
    contents = [bytes([65 + number]) * 200_000 for number in range(4)]

    def keep_writing() -> None:
        while not stop.is_set():
            for content in contents:
                with open(folder / "busy", "wb") as file:
                    file.write(content)

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        states = [workspace.take() for _ in range(5)]
    finally:
        stop.set()
        writer.join()

    for state in states:
        files = workspace.store.list_files(state.tree)
        assert b"quiet" in files
        if b"busy" in files:
            with workspace.store.open_blobs() as blobs:
                # A writer that the system interrupts may have written only a part. Two contents never mix.
                assert len({*blobs.read(files[b"busy"].blob)}) <= 1
        else:
            assert ("busy", "it keeps changing") in [(item.path, item.reason) for item in state.left_out]


def test_a_killed_git_leaves_no_trace(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.write("a", "a")
    state = workspace.take()
    workspace.write("a", "b")

    def fail(*arguments: object, **options: object) -> None:
        raise SnapshotError("git write-tree was killed by signal 9")

    run = workspace.store.git.run
    with monkeypatch.context() as patch:
        patch.setattr(workspace.store.git, "run", lambda *a, **o: fail() if a[0] == "write-tree" else run(*a, **o))
        with pytest.raises(SnapshotError):
            workspace.take()

    assert [path.name for path in Path(workspace.store.path).glob("index*")] == ["index"]
    assert workspace.list_changes(state, workspace.take()) == {"a": "changed"}


@pytest.mark.parametrize("where", ["root", "home"])
def test_unsuitable_folders_are_refused_with_a_sentence(home: Path, where: str) -> None:
    home.mkdir()
    with pytest.raises(SnapshotsUnavailable, match="no snapshots of"):
        SnapshotStore.open("/" if where == "root" else str(home))


def test_a_huge_folder_is_refused_or_stored_whole(folder: Path) -> None:
    count = times(2000, torture=200_000)
    for number in range(count):
        if number % 1000 == 0:
            (folder / str(number // 1000)).mkdir()
        (folder / str(number // 1000) / str(number)).write_text(f"{number}")
    with pytest.raises(SnapshotsUnavailable, match=f"more than {count - 1} files"):
        Workspace(folder, FileSettings(max_files=count - 1)).take()

    workspace = Workspace(folder, FileSettings(max_files=count))
    first = workspace.call(lambda: workspace.write("0/0", "changed"))
    workspace.call(lambda: workspace.write("0/1", "changed"))
    done = workspace.go(first)

    assert done.written == ("0/1",)
    assert len(workspace.store.list_files(workspace.take().tree)) == count


def test_a_file_of_4_gb_is_left_out_without_reading_it(workspace: Workspace) -> None:
    with open(workspace.folder / "huge", "wb") as file:
        file.truncate(4 << 30)
    workspace.write("a", "a")
    start = time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])

    state = workspace.take()

    used = time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - start
    assert list_paths(workspace, state.tree) == {"a"}
    assert [(item.path, item.reason) for item in state.left_out] == [("huge", "larger than 5 MB")]
    assert used < 1, "hashing 4 GB takes several seconds"


def test_a_folder_with_too_many_files_is_refused(folder: Path) -> None:
    workspace = Workspace(folder, FileSettings(max_files=3))
    for number in range(4):
        workspace.write(f"{number}", "x")

    with pytest.raises(SnapshotsUnavailable, match="more than 3 files"):
        workspace.take()


def test_a_missing_or_old_git_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SnapshotsUnavailable, match="git not found"):
        find_git(str(tmp_path))
    old = tmp_path / "git"
    old.write_text("#!/bin/sh\necho git version 2.37.1\n")
    old.chmod(0o755)
    find_git.cache_clear()

    with pytest.raises(SnapshotsUnavailable, match=r"found git 2\.37"):
        find_git(f"{tmp_path}:/usr/bin:/bin")

    assert parse_version("git version 2.39.5 (Apple Git-154)") == (2, 39)
    assert parse_version("hello") is None


def test_the_first_snapshot_reports_progress(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_snapshot, "MIN_CHUNK", 2)
    workspace = Workspace(folder)
    for number in range(5):
        workspace.write(f"{number}", "x")
    seen: list[tuple[int, int]] = []

    workspace.snapshots.take(progress=lambda done, total: seen.append((done, total)))

    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_a_store_is_private(workspace: Workspace) -> None:
    assert os.stat(workspace.store.path).st_mode & 0o777 == 0o700


# Nothing of the project is touched or run


def plant(folder: Path, marker: Path) -> None:
    """Plant a filter, hooks, an fsmonitor and attributes in a repository, each of which writes a marker."""
    run_git(folder, "init", "-q")
    command = f"sh -c 'echo ran >> {marker}; cat'"
    run_git(folder, "config", "filter.evil.clean", command)
    run_git(folder, "config", "filter.evil.smudge", command)
    run_git(folder, "config", "filter.evil.process", f"sh -c 'echo ran >> {marker}; exit 1'")
    script = f"#!/bin/sh\necho ran >> {marker}\n"
    for name in ("pre-commit", "post-index-change", "reference-transaction", "fsmonitor"):
        hook = folder / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(script)
        hook.chmod(0o755)
    run_git(folder, "config", "core.fsmonitor", str(folder / ".git/hooks/fsmonitor"))
    (folder / ".gitattributes").write_text("* filter=evil text working-tree-encoding=UTF-16\n")


def hash_tree(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        digest.update(f"{path} {status.st_mode} {status.st_mtime_ns} {status.st_ino}".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def test_nothing_planted_in_the_project_runs_and_its_repository_stays_byte_equal(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    plant(folder, marker)
    nested = folder / "nested"
    nested.mkdir()
    plant(nested, marker)
    (folder / "a").write_text("a")
    subprocess.run(["git", "add", "a"], cwd=folder, capture_output=True, check=False)
    assert marker.exists(), "the control: the plant works"
    marker.unlink()
    before = hash_tree(folder / ".git"), hash_tree(nested)
    workspace = Workspace(folder)

    workspace.call(lambda: workspace.write("a", "agent\r\n"))
    place = workspace.call(lambda: workspace.write("b", "agent"))
    workspace.go(workspace.log.records[0].place)
    workspace.go(place)

    assert read_folder(folder)["a"] == (b"agent\r\n", False)
    assert not marker.exists()
    assert (hash_tree(folder / ".git"), hash_tree(nested)) == before


def test_the_environment_of_a_hook_does_not_reach_git(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_git(folder, "init", "-q")
    monkeypatch.setenv("GIT_INDEX_FILE", str(folder / ".git/index"))
    monkeypatch.setenv("GIT_DIR", str(folder / ".git"))
    workspace = Workspace(folder)
    workspace.write("a", "a")

    workspace.take()

    assert not (folder / ".git/index").exists()
