"""A search finds the same as comparing every entry, whatever is in the index."""

from __future__ import annotations

import json
import os
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

import sessiontree as st
from sessiontree.core.query import parse_query
from sessiontree.core.search_text import fold
from sessiontree.core.timestamps import format_timestamp
from sessiontree.format import codec
from sessiontree.format.codec import read_entry
from sessiontree.library import catalog
from sessiontree.library.index import session_search, session_summary, word_index
from sessiontree.library.session_files import OpenStore, get_sessions_folder
from sessiontree.store.range_reader import RangeReader
from tests.builders import build_file, header
from tests.library.session_folders import TIME, read_only_summary, say, search_ids, write_session


def test_words_of_any_script_and_length_are_found(session_folder: Path) -> None:
    texts = {
        "a": "Ein Stück Käse",
        "b": "我们用缓存吧",
        "c": "кэш и словарь",
        "d": "a b c",
        "e": "x",
        "f": "カフェで😀",
        "g": "half \ud83d",
        "h": "ﬁnal K",
    }
    write_session(session_folder, "s", header(), *(say(id, None, text) for id, text in texts.items()))

    for id, query in [
        ("a", "KÄSE"),
        ("a", "ka\u0308se"),
        ("a", "ü"),
        ("a", '"ein stück"'),
        ("b", "缓存"),
        ("b", "吧"),
        ("b", "用缓存"),
        ("c", "Словарь"),
        ("c", "и"),
        ("d", '"b c"'),
        ("e", "x"),
        ("f", "😀"),
        ("f", "カフェ"),
        ("g", "half"),
        ("h", "final k"),
    ]:
        for _ in range(2):
            assert search_ids(query, session_folder) == [id], query
    assert search_ids("缓 存吧 нет", session_folder) == []


_texts = hs.text(hs.sampled_from('abB \n\u3000"/\\.ée\u0301ßsﬁ缓存'), max_size=12)


@settings(max_examples=60)
@given(texts=hs.lists(_texts, min_size=1, max_size=4), query=hs.lists(_texts, max_size=1), data=hs.data())
def test_a_search_finds_the_same_as_comparing_every_entry(
    texts: list[str], query: list[str], data: hs.DataObject
) -> None:
    source = data.draw(hs.sampled_from(texts))
    start = data.draw(hs.integers(0, len(source)))
    words = " ".join(f'"{part}"' for part in [*query, source[start : start + 4].replace('"', "")])
    try:
        wanted = parse_query(words, now=0)
    except st.InvalidOperation:
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, escaped in (("plain", False), ("escaped", True)):
            lines = [json.dumps(say(f"{name}{n}", None, text), ensure_ascii=escaped) for n, text in enumerate(texts)]
            write_session(Path(folder), name, header(id=name), *lines)

        looked_through, looked_up = ({hit.entry for hit in st.search(words, dir=folder)} for _ in range(2))

    assert looked_through == looked_up
    assert looked_up == {
        f"{name}{number}"
        for number, text in enumerate(texts)
        if wanted.matches(fold(text))
        for name in ("plain", "escaped")
    }


def test_punctuation_is_compared_too(session_folder: Path) -> None:
    write_session(session_folder, "s", header(), say("a", None, "x->y, a::b"), say("b", None, "x y a b"))

    assert (
        search_ids("->", session_folder)
        == search_ids("a::b", session_folder)
        == search_ids('"y, a"', session_folder)
        == ["a"]
    )
    assert sorted(search_ids("x y", session_folder)) == ["a", "b"]


def test_letters_that_are_escaped_in_the_file_are_found(session_folder: Path) -> None:
    (session_folder / "s.jsonl").write_bytes(
        build_file(
            header(), '{"type":"message","id":"a","message":{"role":"user","content":"\\u0063ache\\nd\\u00e9j\\u00e0"}}'
        )
    )

    assert (
        search_ids("cache", session_folder)
        == search_ids("déjà", session_folder)
        == search_ids('"cache déjà"', session_folder)
        == ["a"]
    )


def test_entries_of_all_branches_are_found_with_their_branch() -> None:
    session = st.create(name="auth", cwd="/p")
    first = session.append(st.user("common apple"))
    left = session.append(st.user("left apple"))
    session.create_branch("b", at=first)
    here = session.append(st.user("here apple"))
    session.append(st.Compaction(summary="done", first_kept=here.id))
    session.switch(here)
    gone = session.append(st.user("gone apple"))
    session.switch(here)

    hits = {hit.entry: hit for hit in st.search("apple", all=True)}

    assert {id: (hit.branch, hit.in_context) for id, hit in hits.items()} == {
        first.id: ("b", True),
        left.id: ("main", False),
        here.id: ("b", True),
        gone.id: (None, False),
    }
    assert (hits[here.id].session, hits[here.id].name, hits[here.id].role) == (session.id, "auth", "user")
    assert hits[here.id].snippet == "here apple"
    for hit in hits.values():
        assert st.open(hit.session).resolve_place(hit.entry) == hit.entry


def test_entries_before_a_compaction_are_not_in_context() -> None:
    session = st.create(cwd="/p")
    first, kept = session.extend([st.user("apple one"), st.user("apple two")])
    session.append(st.Compaction(summary="apple three", first_kept=kept.id))

    hits = {hit.snippet: hit.in_context for hit in st.search("apple", all=True)}

    assert hits == {"apple one": False, "apple two": True, "apple three": True}
    assert first.id


def test_only_entries_sent_to_the_model_are_in_context() -> None:
    session = st.create(cwd="/p")
    edited, removed = session.extend([st.user("apple before"), st.user("apple removed")])
    session.append(st.assistant("apple stopped", stop_reason="aborted"))
    session.append(st.Message({"role": "bashExecution", "command": "apple", "output": "", "excludeFromContext": True}))
    session.append(st.ContextEdit(target=edited.id, replacement={"content": "apple between"}))
    session.append(st.ContextEdit(target=edited.id, replacement={"content": "apple after"}))
    session.append(st.ContextEdit(target=removed.id, replacement=None))
    session.append(st.CustomMessage(custom_type="note", content="apple note"))

    hits = {hit.snippet: hit.in_context for hit in st.search("apple", all=True)}

    assert hits == {
        "apple before": False,
        "apple removed": False,
        "apple stopped": False,
        "apple": False,
        "apple between": False,
        "apple after": True,
        "apple note": True,
    }


def test_hits_are_limited_newest_first(session_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(word_index, "CHUNK_SIZE", 20)
    for name, minutes in (("s", (1, 5, 3)), ("t", (4, 2))):
        lines = [say(f"{name}{m}", None, "apple pie", timestamp=f"2026-01-01T00:0{m}:00.000Z") for m in minutes]
        write_session(session_folder, name, header(id=name), *lines)

    assert search_ids("apple", session_folder) == ["s5", "t4", "s3", "t2", "s1"]
    assert [hit.entry for hit in st.search("apple", dir=session_folder, limit=2)] == ["s5", "t4"]
    assert [hit.entry for hit in st.search("since:2026-01-01T00:04", dir=session_folder)] == ["s5", "t4"]


def test_lines_too_old_to_be_hits_are_not_decoded(session_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(RangeReader.iter_blocks, "__defaults__", (1 << 10,))
    monkeypatch.setattr(session_search, "RANGE_SIZE", 1 << 11)
    lines = [say(f"e{n}", None, "apple pie", timestamp=format_timestamp(n * 60_000)) for n in range(3000)]
    write_session(session_folder, "s", header(), *lines)
    decoded: list[bytes] = []

    def read(raw: bytes, line: int) -> st.Entry:
        decoded.append(raw)
        return read_entry(raw, line)

    monkeypatch.setattr(session_search, "read_entry", read)

    assert [hit.entry for hit in st.search("apple", dir=session_folder, limit=2)] == ["e2999", "e2998"]
    assert len(decoded) < 30


@pytest.mark.parametrize("piece", [1, 100, 1000])
def test_every_line_is_searched_with_any_block_size(session_folder: Path, monkeypatch, piece: int) -> None:
    monkeypatch.setattr(session_search, "RANGE_SIZE", piece)
    write_session(session_folder, "s", header(), *(say(f"e{n}", None, f"apple {'x' * n * n}") for n in range(30)), "")

    assert sorted(search_ids("apple", session_folder)) == sorted(f"e{n}" for n in range(30))


def test_a_search_reports_progress(session_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(RangeReader.iter_blocks, "__defaults__", (1 << 10,))
    write_session(session_folder, "s", header(), *(say(f"e{n}", None, "apple pie") for n in range(60)))
    read_only_summary(session_folder)
    steps: list[tuple[int, int]] = []

    st.search("pear", dir=session_folder, progress=lambda done, total: steps.append((done, total)))

    assert len(steps) > 5
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1]


def test_a_hit_in_an_undamaged_session_does_not_load_all_of_it(session_folder: Path, monkeypatch) -> None:
    write_session(
        session_folder, "s", header(), say("a", None, "apple"), say("b", "a", "berry"), say("c", "a", "cherry")
    )

    def load(session: st.Session) -> None:
        raise AssertionError("all of it was read")

    monkeypatch.setattr(st.Session, "_load", load)

    hits = [hit for query in ("apple", "berry") for hit in st.search(query, dir=session_folder)]

    assert [(hit.entry, hit.branch, hit.in_context) for hit in hits] == [("a", "main", True), ("b", None, False)]


def test_roles_narrow_a_search(session_folder: Path) -> None:
    write_session(
        session_folder,
        "s",
        header(),
        say("a", None, "apple"),
        say("b", "a", "", message={"role": "toolResult", "content": [{"type": "text", "text": "apple"}]}),
        {"type": "label", "id": "c", "parentId": "b", "targetId": "a", "label": "apple"},
    )

    assert search_ids("apple role:user", session_folder) == ["a"]
    assert search_ids("apple role:tool", session_folder) == ["b"]
    assert search_ids("role:label", session_folder) == ["c"]


def test_of_entries_with_one_id_the_last_is_found(session_folder: Path) -> None:
    write_session(session_folder, "s", header(), say("a", None, "apple"), say("a", None, "berry"))

    assert (search_ids("apple", session_folder), search_ids("berry", session_folder)) == ([], ["a"])


def test_replaced_entries_do_not_displace_hits(session_folder: Path) -> None:
    for name in ("s", "t"):
        lines = [say(name, None, f"apple {n}", timestamp=f"2026-01-01T00:0{n}:00.000Z") for n in (5, 4, 3)]
        write_session(session_folder, name, header(id=name), say(f"{name}0", None, "apple"), *lines)

    for _ in range(2):
        hits = st.search("apple", dir=session_folder, limit=4)
        assert [(hit.entry, hit.snippet) for hit in hits][:2] == [("t", "apple 3"), ("s", "apple 3")]
        assert {hit.entry for hit in hits[2:]} == {"s0", "t0"}


def test_sessions_with_shadowed_entries_are_read_and_searched_once(session_folder: Path, monkeypatch) -> None:
    paths = [
        write_session(
            session_folder,
            f"s{n}",
            header(id=f"s{n}"),
            say("a", None, "apple", timestamp=format_timestamp(n)),
            say("a", None, "berry"),
        )
        for n in range(20)
    ]
    write_session(session_folder, "sound", header(id="sound"), say("b", None, "apple", timestamp=format_timestamp(0)))
    iter_ranges_backward = session_search._iter_ranges_backward
    for _ in range(2):
        read: list[str] = []
        opened: list[str] = []

        def iter_ranges(reader: RangeReader, start: int, stop: int, read: list[str] = read) -> object:
            read.append(reader.path)
            return iter_ranges_backward(reader, start, stop)

        def open_session(path: str, open_store: OpenStore, opened: list[str] = opened) -> st.Session:
            opened.append(path)
            return session_summary.open_read_only(path, open_store)

        monkeypatch.setattr(session_search, "_iter_ranges_backward", iter_ranges)
        monkeypatch.setattr(session_search, "open_read_only", open_session)

        assert [hit.entry for hit in st.search("apple", dir=session_folder, limit=2)] == ["b"]
        assert sorted(read) == sorted(opened) == sorted([*map(str, paths), str(session_folder / "sound.jsonl")])


def test_damaged_sessions_without_recent_matches_are_not_opened(session_folder: Path, monkeypatch) -> None:
    for n in range(20):
        damaged = write_session(
            session_folder,
            f"s{n}",
            header(id=f"s{n}"),
            say("a", None, f"apple {n}", timestamp=format_timestamp(n // 10)),
            "noise",
        )
        os.utime(damaged, (n, n))
    opened: list[str] = []

    def open_session(path: str, open_store: OpenStore) -> st.Session:
        opened.append(path)
        return session_summary.open_read_only(path, open_store)

    monkeypatch.setattr(session_search, "open_read_only", open_session)

    assert [hit.snippet for hit in st.search("apple", dir=session_folder, limit=2)] == ["apple 19", "apple 18"]
    assert opened == [str(session_folder / "s19.jsonl"), str(session_folder / "s18.jsonl")]


def test_a_session_removed_during_a_search_does_not_displace_hits(session_folder: Path, monkeypatch) -> None:
    write_session(session_folder, "stays", header(id="stays"), say("a", None, "apple"))
    goes = write_session(
        session_folder, "goes", header(id="goes"), say("b", None, "apple", timestamp="2026-01-02T00:00:00.000Z")
    )

    def look_up(sight: object, db: object, path: str, entries: object) -> bool:
        goes.unlink(missing_ok=True)
        return False

    monkeypatch.setattr(session_search._EntryContext, "_load_from_index", look_up)

    assert [hit.entry for hit in st.search("apple", dir=session_folder, limit=1)] == ["a"]


def test_a_damaged_session_is_searched_too(session_folder: Path) -> None:
    head = {"type": "custom", "customType": "sessiontree.head", "id": "h", "parentId": None}
    write_session(
        session_folder,
        "s",
        header(),
        say("a", "gone", "apple"),
        "nonsense apple",
        {**head, "data": {"heads": {"main": "x"}}},
    )

    (hit,) = st.search("apple", dir=session_folder)

    assert (hit.entry, hit.branch, hit.in_context) == ("a", None, False)


def test_a_snippet_is_one_line_around_the_match() -> None:
    def build_snippet_of(text: str, query: str) -> str:
        return session_search.build_snippet(text, parse_query(query, now=0).terms)

    long = "word " * 100

    assert build_snippet_of("a\nb  c", "b") == "a b c"
    assert build_snippet_of(f"{long}needle {long}", "needle").startswith("…")
    assert "needle" in build_snippet_of(f"{long}needle {long}", "NEEDLE")
    assert build_snippet_of(f"{long}STRASSE", "straße").endswith("STRASSE")
    assert build_snippet_of(long, "role:user").startswith("word word")


@pytest.mark.parametrize("query", ["apple", "a"])
def test_words_indexed_by_a_concurrent_search_are_found_once(session_folder: Path, monkeypatch, query: str) -> None:
    write_session(session_folder, "s", header(), say("a", None, "apple"), say("b", "a", "another apple"))
    read_only_summary(session_folder)
    real = session_search.find_candidates

    def search_first(*given):
        monkeypatch.setattr(session_search, "find_candidates", real)
        assert search_ids(query, session_folder) == ["b", "a"]
        return real(*given)

    monkeypatch.setattr(session_search, "find_candidates", search_first)

    assert search_ids(query, session_folder) == ["b", "a"]


def test_matches_with_equal_time_and_position_keep_their_order() -> None:
    entries = [read_entry(json.dumps(say(id, None, "apple")).encode(), 0) for id in "ab"]
    matches = [session_search._FileMatch(1, "file", 2, entry, "apple") for entry in entries]

    assert sorted(matches) == matches


def test_a_last_line_without_newline_counts_for_the_branch_of_a_hit(session_folder: Path) -> None:
    session = st.create(file=session_folder / "s.jsonl")
    session.append(st.user("apple"))
    session.create_branch("other")
    path = session_folder / "s.jsonl"
    for _ in range(2):
        assert [hit.branch for hit in st.search("apple", dir=session_folder)] == ["other"]
    session.switch("main")
    path.write_bytes(path.read_bytes()[:-1])

    for _ in range(2):
        assert read_only_summary(session_folder).branch == "main"
        assert [hit.branch for hit in st.search("apple", dir=session_folder)] == ["main"]


def test_a_snippet_surrounds_the_word_that_a_prefix_matches() -> None:
    (term,) = parse_query("cach*", now=0).terms
    text = f"precache {'x' * 300} Caches {'y' * 300}"

    assert "Caches" in session_search.build_snippet(text, [term])


def decompose(text: str) -> str:
    """Return the text with each accent as a separate character."""
    return unicodedata.normalize("NFD", text)


@pytest.mark.parametrize(
    ("text", "query", "shown"),
    [
        (decompose("한국어 문장입니다. " * 60 + "찾을것" + " 뒤쪽 문장입니다." * 60), "찾을것", "찾을것"),
        ("ŉ" * 400 + " Straße hier " + "x " * 300, "strasse", "Straße"),
        ("ﬃ" * 400 + " a Needle " + "x " * 300, "needle", "Needle"),
        (decompose("é") * 400 + " E-Mail " + "x " * 300, "e*", "E-Mail"),
        ("ısı " * 200 + "isi " + "x " * 300, "isi", "isi"),
    ],
    ids=["jamo", "longer letters", "ligatures", "accents", "letters that are only alike"],
)
def test_a_snippet_contains_the_match_in_any_unicode_form(text: str, query: str, shown: str) -> None:
    assert shown in session_search.build_snippet(text, parse_query(query, now=0).terms)


LETTERS = hs.text(hs.sampled_from("aEéßŉﬃİıſ\u0301\u0323각\u1100\u1161\u11a8 \n"), min_size=1, max_size=8)


@given(LETTERS, LETTERS)
def test_a_match_is_in_its_snippet(before: str, sought: str) -> None:
    query = parse_query(f'role:user "{sought}"', now=0)
    text = before * 200 + sought + " x" * 200

    if query.matches(fold(text)):
        assert query.matches(fold(session_search.build_snippet(text, query.terms)))


def test_a_phrase_matches_within_one_text_block_in_any_file_format(session_folder: Path) -> None:
    blocks = [{"type": "text", "text": text} for text in ("here it ends", "and here begins é")]
    message = {"type": "message", "timestamp": TIME, "message": {"role": "user", "content": blocks}}
    write_session(session_folder, "old", {"type": "session", "id": "old", "cwd": "/p"}, message)
    for name, escaped in (("plain", False), ("escaped", True)):
        line = json.dumps({**message, "id": name, "parentId": None}, ensure_ascii=escaped)
        write_session(session_folder, name, header(id=name), line)

    assert search_ids('"ends and"', session_folder) == []
    assert len(search_ids('"here begins"', session_folder)) == len(search_ids("ends begins", session_folder)) == 3


def test_numeric_tool_arguments_and_system_messages_are_found(session_folder: Path) -> None:
    session = st.create(file=session_folder / "s.jsonl")
    call = {"type": "toolCall", "id": "c", "name": "read", "arguments": {"offset": 4711, "deep": [{"port": 8080}]}}
    called = session.append(st.Message({"role": "assistant", "content": [call]}))
    system = session.append(st.Message({"role": "system", "content": "", "sections": {"rules": "never on Sundays"}}))

    for _ in range(2):
        assert search_ids("4711 8080", session_folder) == [called.id]
        assert search_ids("sundays role:system", session_folder) == [system.id]


@pytest.fixture
def catalog_folder() -> Path:
    """A folder of the catalog."""
    folder = Path(get_sessions_folder()) / "--p--"
    folder.mkdir(parents=True)
    return folder


def find_session_names(query: str) -> list[str]:
    return sorted(Path(file).stem for file in catalog.find_matching_sessions(query, all=True))


def test_matching_sessions_are_read_only_until_the_first_match(catalog_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(RangeReader.iter_blocks, "__defaults__", (1 << 10,))
    for name in ("many", "more"):
        write_session(catalog_folder, name, header(id=name), *(say(f"{name}{n}", None, "apple pie") for n in range(60)))
    write_session(
        catalog_folder,
        "few",
        header(id="few"),
        say("a", None, "apple", timestamp=format_timestamp(0)),
        say("b", None, "berry"),
    )
    write_session(catalog_folder, "none", header(id="none"), say("c", None, "cherry"))
    read: list[bytes] = []

    def read_entry(raw: bytes, line: int) -> Any:
        read.append(raw)
        return codec.read_entry(raw, line)

    monkeypatch.setattr(session_search, "read_entry", read_entry)
    steps: list[tuple[int, int]] = []
    for _ in range(2):
        assert find_session_names("apple") == ["few", "many", "more"]
        assert find_session_names("berry role:user") == ["few"]
        assert find_session_names("apple since:7d") == find_session_names("plum") == []
    assert len(read) < 20
    catalog.find_matching_sessions("apple", all=True, progress=lambda done, total: steps.append((done, total)))
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1]


def test_a_replaced_entry_does_not_make_its_session_match(catalog_folder: Path) -> None:
    write_session(catalog_folder, "s", header(), say("a", None, "apple"), say("a", None, "berry"))

    for _ in range(2):
        assert (find_session_names("apple"), find_session_names("berry")) == ([], ["s"])


def test_no_session_matches_in_an_empty_folder() -> None:
    assert catalog.find_matching_sessions("apple") == []
