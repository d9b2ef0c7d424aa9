"""File operations: atomic writes, their errors, and the detection of changed names."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sessiontree.errors import StoreError
from sessiontree.store import file_operations
from sessiontree.store.file_operations import CLOCK_TICK, NANOSECONDS, FolderMonitor, format_os_error, write_private


@contextmanager
def limit_file_size(size: int) -> Generator[None]:
    """Limit the size of files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_an_overwritten_file_is_private_to_the_user(tmp_path: Path, umask: int) -> None:
    file = tmp_path / "page.html"
    file.write_text("before")
    file.chmod(0o644)
    old = os.umask(umask)
    try:
        write_private(str(file), b"after")
    finally:
        os.umask(old)

    assert file.read_bytes() == b"after"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_on_a_full_disk_the_file_is_unchanged_and_no_temporary_file_remains(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_bytes(b"before")

    with limit_file_size(1000), pytest.raises(StoreError, match="too large") as raised:
        write_private(str(file), b"x" * 100_000)

    assert raised.value.location == str(file)
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_created_at_the_same_time_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "")

    if not links:
        monkeypatch.setattr(os, "link", link)
    file = tmp_path / "page.html"

    write_private(str(file), b"first", overwrite=False)
    with pytest.raises(StoreError, match="exists"):
        write_private(str(file), b"second", overwrite=False)

    assert file.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_with_the_longest_possible_name_is_written(tmp_path: Path) -> None:
    file = tmp_path / ("x" * 255)

    write_private(str(file), b"whole")

    assert file.read_bytes() == b"whole"


def test_a_bare_file_name_is_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    write_private("page.html", b"whole")

    assert (tmp_path / "page.html").read_bytes() == b"whole"


def test_a_missing_folder_is_reported_with_the_requested_name(tmp_path: Path) -> None:
    file = tmp_path / "gone" / "page.html"

    with pytest.raises(StoreError, match="No such file") as raised:
        write_private(str(file), b"whole")

    assert raised.value.location == str(file)


def test_an_error_without_errno_keeps_its_message() -> None:
    assert format_os_error(OSError("not a regular file")) == "not a regular file"
    assert format_os_error(FileNotFoundError(2, "x")) == os.strerror(2)


# Whether names changed


def wait_for_new_timestamp() -> None:
    """Wait until the next change of a folder gets a new timestamp."""
    time.sleep(CLOCK_TICK * 1.5 / NANOSECONDS)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "above" / "folder"
    folder.mkdir(parents=True)
    (folder / "one").write_text("1")
    wait_for_new_timestamp()
    return folder


def build_checked_monitor(place: Path) -> FolderMonitor:
    """Return a monitor whose names were just checked."""
    folder = FolderMonitor(str(place))
    assert not folder.is_unchanged()
    folder.trust_names()
    return folder


def test_a_folder_without_changes_is_unchanged(place: Path) -> None:
    folder = build_checked_monitor(place)

    (place / "one").write_text("the content of a file is not a name")

    assert folder.is_unchanged()
    assert folder.is_unchanged()


def swap_for_a_copy(place: Path) -> None:
    shutil.copytree(place, place.with_name("copy"))
    place.rename(place.with_name("old"))
    place.with_name("copy").rename(place)


CHANGES: dict[str, Callable[[Path], object]] = {
    "made": lambda place: (place / "two").touch(),
    "deleted": lambda place: (place / "one").unlink(),
    "renamed": lambda place: (place / "one").rename(place / "two"),
    "moved away": lambda place: (place / "one").rename(place.parent / "one"),
    "replaced": lambda place: ((place.parent / "two").touch(), (place.parent / "two").rename(place / "one")),
    "linked": lambda place: os.link(place / "one", place.parent / "two") or os.unlink(place / "one"),
    "renamed itself": lambda place: place.rename(place.with_name("other")),
    "swapped for a copy": swap_for_a_copy,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_with_a_changed_name_is_not_unchanged(place: Path, change: str) -> None:
    folder = build_checked_monitor(place)

    CHANGES[change](place)

    assert not folder.is_unchanged()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_checks_is_noticed(place: Path, change: str) -> None:
    folder = FolderMonitor(str(place))
    assert not folder.is_unchanged()
    CHANGES[change](place)
    if place.exists():
        folder.trust_names()

    assert not folder.is_unchanged()


def test_a_check_right_after_a_change_is_not_trusted(place: Path) -> None:
    (place / "two").touch()
    folder = build_checked_monitor(place)
    assert not folder.is_unchanged()

    wait_for_new_timestamp()
    folder.trust_names()
    assert not folder.is_unchanged(), "the check was right after the change"

    folder.trust_names()
    assert folder.is_unchanged()


def test_with_timestamps_of_whole_seconds_a_check_is_trusted_later(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = time.time_ns() // NANOSECONDS * NANOSECONDS - NANOSECONDS
    real = os.fstat

    def round_to_seconds(fd: int) -> os.stat_result:
        status = real(fd)
        return os.stat_result(tuple(status), {"st_ctime_ns": changed})

    monkeypatch.setattr(file_operations.os, "fstat", round_to_seconds)
    folder = build_checked_monitor(place)
    assert not folder.is_unchanged()

    changed -= 5 * NANOSECONDS
    assert not folder.is_unchanged()
    folder.trust_names()
    assert folder.is_unchanged()


def test_changes_of_parent_folders_are_noticed_when_the_check_expires(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_operations, "TRUST_SECONDS", 0.05)
    folder = build_checked_monitor(place)
    place.parent.rename(place.parent.with_name("elsewhere"))
    place.mkdir(parents=True)
    time.sleep(0.06)

    assert not folder.is_unchanged()
    folder.trust_names()
    assert not folder.is_unchanged(), "another folder is at the path"


def test_without_timestamps_no_folder_counts_as_unchanged(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstat
    monkeypatch.setattr(file_operations.os, "fstat", lambda fd: os.stat_result(tuple(real(fd)), {"st_ctime_ns": 0}))

    assert not build_checked_monitor(place).is_unchanged()


def test_a_folder_that_cannot_be_opened_never_counts_as_unchanged(tmp_path: Path) -> None:
    folder = FolderMonitor(str(tmp_path / "none"))

    assert not folder.is_unchanged()
    folder.trust_names()
    assert not folder.is_unchanged()


def test_a_closed_folder_is_checked_again(place: Path) -> None:
    folder = build_checked_monitor(place)
    folder.close()

    assert not folder.is_unchanged()
