"""Files: what is put in place whole, and what the system says when it cannot be."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sessiontree.errors import StoreError
from sessiontree.store.files import reason_of, write_private


@contextmanager
def room_for(size: int) -> Generator[None]:
    """No file gets longer, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_file_in_the_place_of_another_is_the_users_alone(tmp_path: Path, umask: int) -> None:
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


def test_where_there_is_no_room_the_file_is_as_it_was_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_bytes(b"before")

    with room_for(1000), pytest.raises(StoreError, match="too large") as raised:
        write_private(str(file), b"x" * 100_000)

    assert raised.value.where == str(file)
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_came_meanwhile_is_kept_where_it_may_not_be_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "")

    if not links:
        monkeypatch.setattr(os, "link", link)
    file = tmp_path / "page.html"

    write_private(str(file), b"first", over=False)
    with pytest.raises(StoreError, match="exists"):
        write_private(str(file), b"second", over=False)

    assert file.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_whose_name_is_as_long_as_names_may_be_is_written(tmp_path: Path) -> None:
    file = tmp_path / ("x" * 255)

    write_private(str(file), b"whole")

    assert file.read_bytes() == b"whole"


def test_a_name_without_a_folder_is_in_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    write_private("page.html", b"whole")

    assert (tmp_path / "page.html").read_bytes() == b"whole"


def test_a_folder_that_is_not_there_is_told_by_the_name_that_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "gone" / "page.html"

    with pytest.raises(StoreError, match="No such file") as raised:
        write_private(str(file), b"whole")

    assert raised.value.where == str(file)


def test_an_error_that_has_no_number_says_what_it_says() -> None:
    assert reason_of(OSError("not a regular file")) == "not a regular file"
    assert reason_of(FileNotFoundError(2, "x")) == os.strerror(2)
