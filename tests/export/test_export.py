"""File names of exports."""

from __future__ import annotations

import pytest

from sessiontree.export import FORMATS, build_file_name, detect_format
from sessiontree.home import list_user_homes


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_is_named_after_the_session_with_the_suffix_of_its_format(form: str) -> None:
    name = build_file_name("01890000-0000-7000-8000-00000000abcd", form)

    assert name.startswith("session-00000000abcd.")
    assert detect_format(name) == form


@pytest.mark.parametrize("id", ["", "../..", '"; rm', "\x1b[2J\n", "é" * 20])
def test_file_names_contain_only_safe_characters_of_the_id(id: str) -> None:
    name = build_file_name(id, "html").removeprefix("session-").removesuffix(".html")

    assert name.isascii()
    assert name.isalnum()


@pytest.mark.parametrize(("home", "taken_out"), [("/srv/ada", ["/srv/ada"]), ("/", []), ("relative", [])])
def test_the_home_folder_is_redacted_unless_it_is_the_root(
    monkeypatch: pytest.MonkeyPatch, home: str, taken_out: list[str]
) -> None:
    monkeypatch.setenv("HOME", home)

    assert list_user_homes() == taken_out
