"""Private folders of branches: real files, real git, and a real overlay where one can be mounted."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiontree.config import FileSettings
from sessiontree.files import private_folder
from sessiontree.files.folder_snapshot import FolderSnapshots, FolderState
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.private_folder import (
    FolderMethod,
    PrivateFolder,
    create_private_folder,
    find_folder_of_path,
    find_private_folder,
    get_folders_root,
    list_private_folders,
    open_private_folder,
    remove_private_folder,
    save_private_folder,
)
from sessiontree.home import get_home
from tests.files.conftest import Workspace, read_folder
from tests.reliability.harness import suspend_lock_holder

SETTINGS = FileSettings()


def create(workspace: Workspace, branch: str = "cache", *, method: FolderMethod = "checkout") -> PrivateFolder:
    commit = workspace.commit(workspace.take(), [], "person", None)
    return create_private_folder(
        workspace.store, commit, session=workspace.session.id, branch=branch, settings=SETTINGS, methods=[method]
    )


@pytest.fixture(params=["overlay", "checkout"])
def method(request: pytest.FixtureRequest, workspace: Workspace) -> FolderMethod:
    if request.param == "overlay":
        if os.geteuid() != 0:
            pytest.skip("mounting an overlay needs root")
        try:
            folder = create(workspace, "probe", method="overlay")
        except SnapshotError:
            pytest.skip("an overlay cannot be mounted here")
        remove_private_folder(folder, SETTINGS)
    return request.param


def test_it_has_the_uncommitted_work_and_keeps_its_changes_apart(workspace: Workspace, method: FolderMethod) -> None:
    workspace.write("a.txt", "a")
    workspace.write("sub/b.txt", "b")
    (workspace.folder / "sub/b.txt").chmod(0o755)
    os.symlink("a.txt", workspace.folder / "link")
    before = read_folder(workspace.folder)

    folder = create(workspace, method=method)
    assert read_folder(Path(folder.path)) == before
    Path(folder.path, "a.txt").write_text("changed there")
    Path(folder.path, "new.txt").write_text("new")
    Path(folder.path, "sub/b.txt").unlink()

    assert read_folder(workspace.folder) == before
    assert folder.method == method


def test_its_snapshots_are_commits_of_the_same_store(workspace: Workspace, method: FolderMethod) -> None:
    workspace.write("a.txt", "a")
    folder = create(workspace, method=method)
    Path(folder.path, "a.txt").write_text("b")

    commit = save_private_folder(folder, SETTINGS)

    assert [change.path for change in workspace.store.diff(folder.commit, commit)] == [b"a.txt"]
    assert workspace.store.is_ancestor(folder.commit, commit)
    assert save_private_folder(folder, SETTINGS) == commit


def test_snapshots_of_both_folders_do_not_mix(workspace: Workspace, method: FolderMethod) -> None:
    workspace.write("a.txt", "a")
    folder = create(workspace, method=method)
    snapshots = FolderSnapshots(folder.open_store(), SETTINGS)
    Path(folder.path, "a.txt").write_text("there")
    there = snapshots.take()
    workspace.write("a.txt", "here")
    here = workspace.take()

    assert snapshots.take() == there
    assert workspace.take() == here
    assert here.tree != there.tree


def test_the_last_state_is_kept_when_it_is_removed(workspace: Workspace, method: FolderMethod) -> None:
    workspace.write("a.txt", "a")
    folder = create(workspace, method=method)
    Path(folder.path, "late.txt").write_text("made at the end")

    commit = remove_private_folder(folder, SETTINGS)

    assert not os.path.exists(folder.root)
    assert find_private_folder(folder.session, folder.branch) is None
    assert workspace.store.find_version(commit, b"late.txt") is not None
    workspace.store.collect_garbage()
    assert workspace.store.has_commits([commit])


def test_an_overlay_is_mounted_again_after_a_restart(workspace: Workspace) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting an overlay needs root")
    workspace.write("a.txt", "a")
    try:
        folder = create(workspace, method="overlay")
    except SnapshotError:
        pytest.skip("an overlay cannot be mounted here")
    Path(folder.path, "a.txt").write_text("changed")
    private_folder._run("umount", folder.path)  # pyright: ignore[reportPrivateUsage]
    assert os.listdir(folder.path) == []

    found = find_private_folder(folder.session, folder.branch)
    assert found == folder
    assert Path(open_private_folder(found), "a.txt").read_text() == "changed"


def test_it_is_found_by_its_branch_and_by_a_path_in_it(workspace: Workspace) -> None:
    workspace.write("sub/a.txt", "a")
    folder = create(workspace)

    assert find_private_folder(workspace.session.id, "cache") == folder
    assert find_private_folder(workspace.session.id, "other") is None
    assert find_folder_of_path(os.path.join(folder.path, "sub", "a.txt")) == folder
    assert find_folder_of_path(str(workspace.folder)) is None
    assert list_private_folders() == list_private_folders(workspace.session.id) == [folder]


def test_a_branch_has_at_most_one(workspace: Workspace) -> None:
    workspace.write("a.txt", "a")
    create(workspace)

    with pytest.raises(SnapshotError, match="branch 'cache' already has a private folder"):
        create(workspace)


def test_a_suspended_process_that_holds_the_lock_of_a_folder_is_named(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = create(workspace)
    monkeypatch.setenv("SESSIONTREE_LOCK_TIMEOUT", "0.2")

    with (
        suspend_lock_holder(Path(f"{folder.root}.lock")) as pid,
        pytest.raises(SnapshotError, match=rf"process {pid} \(suspended\)"),
    ):
        remove_private_folder(folder, SETTINGS)

    remove_private_folder(folder, SETTINGS)


@pytest.mark.parametrize("method", ["overlay"], indirect=True)
def test_a_folder_is_a_checkout_if_a_suspended_process_keeps_the_shared_checkout(
    workspace: Workspace, method: FolderMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.write("a.txt", "a")
    commit = workspace.commit(workspace.take(), [], "person", None)
    create_private_folder(
        workspace.store, commit, session=workspace.session.id, branch="first", settings=SETTINGS, methods=[method]
    )
    lock = max(Path(get_folders_root(), "frozen").glob("*.lock"), key=lambda path: path.stat().st_mtime_ns)
    monkeypatch.setenv("SESSIONTREE_LOCK_TIMEOUT", "0.2")

    with suspend_lock_holder(lock):
        folder = create_private_folder(
            workspace.store, commit, session=workspace.session.id, branch="second", settings=SETTINGS
        )

    assert folder.method != "overlay"
    assert (Path(folder.path) / "a.txt").read_text() == "a"


def test_what_a_killed_process_left_is_replaced(workspace: Workspace) -> None:
    workspace.write("a.txt", "a")
    folder = create(workspace)
    os.unlink(os.path.join(folder.root, private_folder.MARKER))  # as if it was killed before the end
    Path(folder.path, "half.txt").write_text("half")

    assert find_private_folder(folder.session, folder.branch) is None
    again = create(workspace)

    assert read_folder(Path(again.path)) == read_folder(workspace.folder)


def test_ignored_folders_that_are_needed_are_copied_and_never_in_a_snapshot(workspace: Workspace) -> None:
    workspace.write(".gitignore", "node_modules/\n.venv/\nsecret.txt\n")
    workspace.write("node_modules/left-pad/index.js", "pad")
    workspace.write("secret.txt", "not needed")
    folder = create(workspace)
    copied = Path(folder.path, "node_modules/left-pad/index.js")
    copied.write_text("changed there")

    assert workspace.store.diff(folder.commit, save_private_folder(folder, SETTINGS)) == []
    assert (workspace.folder / "node_modules/left-pad/index.js").read_text() == "pad"
    assert not Path(folder.path, "secret.txt").exists()


def test_a_damaged_marker_is_an_error_not_the_shared_folder(workspace: Workspace) -> None:
    workspace.write("a.txt", "a")
    folder = create(workspace)
    marker = Path(folder.root, private_folder.MARKER)
    text = marker.read_text()

    for broken in (
        "",
        "{",
        "[]",
        '{"path": 3}',
        text.replace(folder.commit, "HEAD"),
        text.replace('"checkout"', '"guess"'),
        text.replace(folder.path, "/etc/x/.."),
        text.replace(folder.path, "/etc/x/"),
    ):
        marker.write_text(broken)
        with pytest.raises(SnapshotError, match="which names a private folder"):
            find_private_folder(folder.session, folder.branch)
        assert list_private_folders() == []
    marker.write_text(text.replace(folder.path, f"/etc/x/{workspace.folder.name}"))
    assert find_private_folder(folder.session, folder.branch) == folder
    marker.write_text(text)


def test_it_moves_with_the_home(
    workspace: Workspace, method: FolderMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.write("a.txt", "a")
    folder = create(workspace, method=method)
    Path(folder.path, "b.txt").write_text("b")
    home = tmp_path / "moved home"
    shutil.move(get_home(), home)
    monkeypatch.setenv("SESSIONTREE_HOME", str(home))

    found = find_private_folder(workspace.session.id, "cache")

    assert found is not None
    assert found.path.startswith(str(home))
    assert sorted(read_folder(Path(open_private_folder(found)))) == ["a.txt", "b.txt"]
    assert find_folder_of_path(found.path) == found
    remove_private_folder(found, SETTINGS)
    assert list_private_folders() == []


@pytest.fixture
def reflink_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that can clone files, in a file of its own."""
    if os.geteuid() != 0 or shutil.which("mkfs.btrfs") is None:
        pytest.skip("a file system with reflinks needs root and mkfs.btrfs")
    image, disk = tmp_path / "image", tmp_path / "disk"
    with open(image, "wb") as file:
        file.truncate(256 << 20)
    disk.mkdir()
    subprocess.run(["mkfs.btrfs", "--quiet", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True, check=False).returncode:
        pytest.skip("btrfs cannot be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_large_files_are_cloned_where_the_file_system_can_do_that(
    reflink_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONTREE_HOME", str(reflink_disk / "home"))
    project = reflink_disk / "project"
    project.mkdir()
    for name in ("kept", "changed", "run"):
        (project / name).write_bytes(os.urandom(1 << 20))
    (project / "run").chmod(0o755)
    (project / "small").write_text("small")
    (project / "link").symlink_to("kept")
    workspace = Workspace(project)
    before = read_folder(project)
    commit = workspace.commit(workspace.take(), [], "person", None)
    (project / "changed").write_bytes(os.urandom(1 << 20))

    folder = create_private_folder(
        workspace.store, commit, session="s", branch="b", settings=SETTINGS, methods=["reflink"]
    )

    assert folder.method == "reflink"
    assert read_folder(Path(folder.path)) == before
    assert find_blocks(Path(folder.path, "kept")) == find_blocks(project / "kept")
    assert find_blocks(Path(folder.path, "run")) == find_blocks(project / "run")
    assert find_blocks(Path(folder.path, "changed")) != find_blocks(project / "changed")
    assert FolderSnapshots(folder.open_store(), SETTINGS).take() == FolderState(workspace.store.get_tree(commit))
    Path(folder.path, "kept").write_text("changed in the copy")
    assert (project / "kept").read_bytes() == before["kept"][0]  # type: ignore[index]


def find_blocks(path: Path) -> list[tuple[int, ...]]:
    """Return where the content of a file is on the disk."""
    header = struct.Struct("=QQLLLL")
    request = bytearray(header.size + 32 * 56)
    header.pack_into(request, 0, 0, (1 << 64) - 1, 1, 0, 32, 0)
    with open(path, "rb") as file:
        fcntl.ioctl(file, 0xC020660B, request)  # FS_IOC_FIEMAP, after writing the file to the disk
    count = header.unpack_from(request)[3]
    return [struct.unpack_from("=QQQ", request, header.size + number * 56) for number in range(count)]
