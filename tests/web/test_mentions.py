"""Which sessions hold a word, without opening them."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.web import mentions
from sessiontree.web.mentions import Mentions
from tests.web.conftest import House

WORD = b'"needle"'


def test_a_session_is_found_as_soon_as_it_holds_the_word(house: House) -> None:
    house.session()
    id = house.session()
    found = Mentions(WORD)
    assert found.files() == []

    with st.open(id) as session:
        session.append(st.Custom(custom_type="needle"))

    assert [Path(file).name.endswith(f"{id}.jsonl") for file in found.files()] == [True]


@pytest.mark.parametrize("block", [3, 7, 64])
def test_a_word_is_found_across_blocks_and_across_looks(
    house: House, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(mentions, "BLOCK", block)
    with st.open(house.session()) as session:
        file = Path(str(session.file))
    found = Mentions(WORD)
    start = file.read_bytes()
    for cut in range(len(WORD)):
        file.write_bytes(start + WORD[:cut])
        assert found.files() == []
    file.write_bytes(start + WORD)

    assert found.files() == [str(file)]


def test_a_file_that_was_put_in_the_place_of_another_is_looked_through_anew(house: House) -> None:
    with st.open(house.session()) as session:
        session.append(st.Custom(custom_type="needle"))
        file = Path(str(session.file))
    found = Mentions(WORD)
    assert len(found.files()) == 1

    other = file.with_suffix(".new")
    other.write_bytes(file.read_bytes().replace(WORD, b'"nothing"'))
    other.rename(file)

    assert found.files() == []
