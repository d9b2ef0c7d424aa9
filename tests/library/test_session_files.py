"""Which files in a folder are sessions."""

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.library.session_files import list_session_files

HEADER = '{"type":"session","version":3,"id":"s","timestamp":"","cwd":"/p"}\n'


@pytest.mark.parametrize(("hidden", "names"), [(True, {".a.jsonl", "b.jsonl"}), (False, {"b.jsonl"})])
def test_hidden_files_are_skipped_on_request(tmp_path: Path, hidden: bool, names: set[str]) -> None:
    for name in (".a.jsonl", "b.jsonl", ".c", "d"):
        (tmp_path / name).touch()

    assert {file.name for file in list_session_files(str(tmp_path), hidden=hidden)} == names
    assert {file.name for file in list_session_files(str(tmp_path), ".c", hidden=hidden)} == {*names, ".c"}


def test_a_session_whose_name_begins_with_a_dot_is_repaired_once(tmp_path: Path) -> None:
    damaged = tmp_path / ".talk.jsonl"
    damaged.write_text(HEADER + "garbage\n")

    assert st.repair(st.open(damaged)).file == st.repair(st.open(damaged)).file
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
