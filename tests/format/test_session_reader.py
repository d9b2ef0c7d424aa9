import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.entries import UNREADABLE, Chain, iter_entries
from sessiontree.core.heads import Heads
from sessiontree.core.problems import find_problems
from sessiontree.core.tree import Tree
from sessiontree.errors import FormatError
from sessiontree.format import codec, json_line, session_reader
from sessiontree.format.codec import read_entry
from sessiontree.format.session_reader import MAX_REPORTED, SessionReader, is_complete_line
from tests.builders import build_file, entry, header, ids, read
from tests.strategies import damaged_sessions, object_texts, sessions

A = {"type": "message", "id": "a", "parentId": None, "message": {"role": "user", "content": "x"}}
B = {**A, "id": "b", "parentId": "a"}


def list_problem_facts(reader):
    return [(problem.kind, problem.severity, problem.line, problem.offset) for problem in reader.problems]


def join_lines(reader):
    return b"\n".join(reader.read_all_lines()) + b"\n"


def test_a_file_is_a_header_and_entries():
    reader, entries = read(build_file(header(cwd="/x"), A, B))

    assert (reader.header.id, reader.header.cwd, reader.header.version) == ("s", "/x", 3)
    assert [(entry.id, entry.line) for entry in entries] == [("a", 2), ("b", 3)]
    assert (reader.problems, reader.dialect, reader.needs_rewrite, reader.is_newer) == ([], None, False, False)


def test_a_reader_continues_where_it_stopped():
    reader = SessionReader()

    first, second = reader.feed(build_file(header(), A)), reader.feed(build_file(B))

    assert [(entry.id, entry.line) for entry in iter_entries(first + second)] == [("a", 2), ("b", 3)]
    assert reader.get_offset(3) == len(build_file(header(), A))


def test_lines_can_stay_in_the_file_until_they_are_read():
    data = build_file(header(), A, "junk", B)
    fetched = []

    def fetch(start, length):
        fetched.append(start)
        return data[start : start + length]

    reader = SessionReader(fetch=fetch)
    a, b = reader.feed(data)

    assert fetched == []
    assert [json.loads(line.raw) for line in (a, b)] == [A, B]
    assert fetched == [reader.get_offset(2), reader.get_offset(4)]
    assert join_lines(reader) == data


@pytest.mark.parametrize("size", [1, 300, 500, 10_000])
def test_only_whole_lines_are_fetched(size, monkeypatch):
    monkeypatch.setattr(session_reader, "FETCH_SIZE", size)
    data = build_file(header(), A, "junk" * 100, B, "", A)
    fetched = []

    def fetch(start, length):
        fetched.append((data[start - 1 : start], data[start + length : start + length + 1]))
        return data[start : start + length]

    reader = SessionReader(fetch=fetch)
    reader.feed(data[:-1])

    assert join_lines(reader) == data
    assert [*reader.read_raws([6, 2, 4])] == [data.split(b"\n")[number - 1] for number in (6, 2, 4)]
    assert set(fetched) == {(b"\n", b"\n")}


def test_an_older_file_is_kept_in_memory_as_version_3():
    data = build_file(header(version=2), {**A, "message": {"role": "hookMessage"}})

    [line] = SessionReader(fetch=lambda start, length: data[start : start + length]).feed(data)

    assert json.loads(line.raw)["message"] == {"role": "custom"}


def test_a_migrated_line_reads_like_a_line_of_version_3():
    odd = '{"type":"message","id":"a","parentId":null,"timestamp":"t","message":{"role":"user"},"id":"z","meta":{}}'

    for version in (2, 3):
        assert ids(read(build_file(header(version=version), odd))[1]) == "a"


def test_lines_just_written_need_no_parsing():
    reader, _ = read(build_file(header(), A))
    written = [entry("b", "a"), entry("c", "b")]

    reader.add_written(written, [line.raw for line in written])

    again, entries = read(join_lines(reader))
    assert ids(entries) == "abc"
    assert [line.line for line in written] == [3, 4]
    assert [reader.get_offset(line) for line in (3, 4)] == [again.get_offset(line) for line in (3, 4)]


def test_one_line_just_written_needs_no_parsing():
    reader, _ = read(build_file(header(), A))
    raw = entry("b", "a").raw

    number = reader.add_written_line(raw)

    again, entries = read(join_lines(reader))
    assert ids(entries) == "ab"
    assert (number, reader.read_raw(number)) == (3, raw)
    assert reader.get_offset(3) == again.get_offset(3)


def test_lines_just_written_to_a_file_stay_in_the_file():
    data = build_file(header(), A)
    line = entry("b", "a")
    written = data + line.raw + b"\n"
    reader = SessionReader(fetch=lambda start, length: written[start : start + length])
    reader.feed(data)

    reader.add_written([line], [line.raw])

    assert join_lines(reader) == written


def test_a_reader_knows_whether_it_has_read_the_header():
    assert not SessionReader().has_header
    assert read(build_file(header()))[0].has_header


def test_a_last_line_without_a_newline_is_read_too():
    assert ids(read(build_file(header(), A, B)[:-1])[1]) == "ab"


@pytest.mark.parametrize("line", [b"nonsense", b"{", b"[]", b'{"type":"message"}', b"\xff"])
def test_a_line_that_cannot_be_read_is_reported_and_kept(line):
    start = build_file(header(), A)

    reader, entries = read(start + line + b"\n" + build_file(B))

    assert ids(entries) == "ab"
    assert list_problem_facts(reader) == [("malformed_line", "fault", 3, len(start))]
    assert list(reader.iter_lines())[1] == line


def test_many_unreadable_lines_are_reported_by_their_number():
    reader, entries = read(build_file(header(), A) + b"x\n" * (MAX_REPORTED + 1500) + build_file(B))

    assert ids(entries) == "ab"
    assert reader.unreadable_count == MAX_REPORTED + 1500
    assert [problem.line for problem in reader.problems] == [*range(3, MAX_REPORTED + 3), None]
    assert reader.problems[-1].message == "1,500 more unreadable lines, the last of them line 2,502"


def test_blank_lines_are_kept_and_not_reported():
    data = build_file(header(), "", A, " \t\r", B)

    reader, entries = read(data)

    assert (ids(entries), reader.problems) == ("ab", [])
    assert join_lines(reader) == data


def test_a_file_of_blank_lines_is_a_header_and_nothing():
    data = build_file(header()) + b"\n" * 5

    reader, entries = read(data)

    assert (entries, reader.line_count, reader.get_offset(6)) == ([], 6, len(data) - 1)
    assert join_lines(reader) == data


def test_lines_end_at_newline_bytes_alone():
    text = "a\u2028b\u2029c\x85d"

    [line] = read(build_file(header(), f'{{"type":"x","id":"{text}"}}'))[1]

    assert line.id == text


def test_carriage_returns_belong_to_the_line():
    data = build_file(header(), A, B).replace(b"\n", b"\r\n")

    reader, entries = read(data)

    assert (ids(entries), reader.problems) == ("ab", [])
    assert join_lines(reader) == data


def test_a_line_over_the_limit_is_kept_and_not_decoded(monkeypatch):
    for module in (codec, session_reader):
        monkeypatch.setattr(module, "LINE_LIMIT", 200)
    long = entry("long", "a", {"type": "x", "text": "x" * 200}).raw
    start = build_file(header(), A)

    reader, entries = read(start + long + b"\n" + build_file(B))

    assert ids(entries) == "ab"
    assert list_problem_facts(reader) == [("long_line", "fault", 3, len(start))]
    assert list(reader.iter_lines())[1] == long


@pytest.mark.parametrize(
    ("raw", "whole"),
    [(b"", False), (b'{"a":1}', True), (b'{"a":1', False), (b"[]", False), (b'{"a":"%s"}' % (b"x" * 200), False)],
)
def test_a_last_line_without_newline_is_complete_if_it_is_an_object_within_the_limit(raw, whole, monkeypatch):
    monkeypatch.setattr(session_reader, "LINE_LIMIT", 200)

    assert is_complete_line(raw) is whole


# The header and the lines before it


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "empty"), (b"\n", "no session header in its only line"), (b"junk\njunk\n", "header in its 2 lines")],
)
def test_a_file_without_a_header_is_not_a_session(data, reason):
    reader, _ = read(data)

    with pytest.raises(FormatError, match=reason) as caught:
        _ = reader.header
    assert caught.value.location == "test.jsonl"


@pytest.mark.parametrize(
    ("first", "found"),
    [(A, "is of type 'message'"), ({"x": 1}, "has no type"), ({"type": "session"}, "lacks an id")],
)
def test_a_file_with_an_entry_before_the_header_is_not_a_session(first, found):
    with pytest.raises(FormatError, match=f"line 1 is not a session header: it {found}"):
        read(build_file(first, header()))


def test_junk_before_the_header_is_reported_and_kept():
    data = build_file("junk", "", header(), A)

    reader, entries = read(data)

    assert (ids(entries), entries[0].line) == ("a", 4)
    assert list_problem_facts(reader) == [("malformed_line", "fault", 1, 0)]
    assert join_lines(reader) == data


def test_bytes_that_are_not_utf_8_in_the_header_or_a_title_slot_are_a_fault_and_both_are_read():
    slot = build_file({"type": "title", "title": "called"}).replace(b"called", b"called \xff")
    data = slot + build_file(header(cwd="/x"), A).replace(b"/x", b"/x\xff")

    reader, entries = read(data)

    assert (reader.title, reader.header.cwd, ids(entries)) == ("called \ufffd", "/x\ufffd", "a")
    assert list_problem_facts(reader) == [("not_utf8", "fault", 1, 0), ("not_utf8", "fault", 2, len(slot))]
    assert reader.unreadable_count == 0
    assert join_lines(reader) == data


def test_a_byte_order_mark_before_the_header_is_ignored():
    data = build_file(header(), entry("a").raw)

    reader = SessionReader()
    reader.feed(b"\xef\xbb\xbf" + data)

    assert reader.header.raw == data.split(b"\n")[0]
    assert reader.problems == []
    assert list(reader.iter_lines()) == data.split(b"\n")[1:-1]


def test_a_header_far_from_the_start_is_not_found(monkeypatch):
    monkeypatch.setattr(session_reader, "PREAMBLE_LIMIT", 1 << 10)

    with pytest.raises(FormatError, match="no session header in its first 1 KiB"):
        SessionReader().feed(b"junk\n" * 1000 + build_file(header()))


def test_a_title_slot_before_the_header_names_the_session():
    slot = {"type": "title", "v": 1, "title": " called ", "pad": " " * 40}
    data = build_file(slot, header(title="older"), A)

    reader, entries = read(data)

    assert (reader.title, ids(entries), reader.problems) == ("called", "a", [])
    assert join_lines(reader) == data


def test_an_empty_title_slot_removes_the_name():
    assert read(build_file({"type": "title", "title": ""}, header(title="older")))[0].title == ""
    assert read(build_file(header(title="older")))[0].title == "older"
    assert read(build_file(header()))[0].title is None


def test_a_second_title_slot_is_not_a_header():
    slot = {"type": "title", "title": "x"}

    with pytest.raises(FormatError, match="line 2 is not a session header: it is of type 'title'"):
        read(build_file(slot, slot, header()))


def test_a_newer_version_is_noted_and_read_unchanged():
    data = build_file(header(version=4), A)

    reader, entries = read(data)

    assert (reader.is_newer, reader.needs_rewrite, ids(entries)) == (True, False, "a")
    assert list_problem_facts(reader) == [("newer_version", "note", 1, 0)]
    assert join_lines(reader) == data


# Properties


@given(sessions() | damaged_sessions())
def test_reading_loses_no_byte(data):
    reader, entries = read(data)

    assert join_lines(reader) == data
    assert [entry.raw for entry in entries] == [list(reader.iter_lines())[entry.line - 2] for entry in entries]
    assert all(data[reader.get_offset(entry.line) :].startswith(entry.raw) for entry in entries)


@given(damaged_sessions())
def test_a_line_in_a_file_reads_like_the_line_alone(data):
    for line in read(data)[1]:
        alone = read_entry(line.raw, line.line)

        assert (line.id, line.parent, line.type, line.timestamp) == (
            alone.id,
            alone.parent,
            alone.type,
            alone.timestamp,
        )
        assert (line.branch, line.current, line.custom_type) == (alone.branch, alone.current, alone.custom_type)
        assert line.body == alone.body


@given(object_texts)
def test_a_line_of_an_unknown_type_keeps_every_byte(odd):
    raw = b'{"id":"a","odd":' + odd + b',"type":"from_the_future"}'

    reader, [line] = read(build_file(header(), raw))

    assert line.raw == raw
    assert join_lines(reader) == build_file(header(), raw)


@given(sessions(), st.data())
def test_every_prefix_of_a_valid_file_is_valid(data, cut):
    lines = data.splitlines(keepends=True)
    count = cut.draw(st.integers(1, len(lines)))

    reader, entries = read(b"".join(lines[:count]))

    heads, tree = Heads(), Tree(entries)
    heads.replay(entries, tree)
    found = [*reader.problems, *find_problems(tree, heads)]
    assert [problem for problem in found if problem.severity == "fault"] == []
    assert len(entries) == count - 1


@given(sessions(), st.data())
def test_a_file_cut_anywhere_after_its_header_loses_only_the_cut_line(data, cut):
    whole = read(data)[1]
    at = cut.draw(st.integers(data.index(b"\n"), len(data)))

    kept, newline, tail = data[:at].rpartition(b"\n")
    reader, entries = read(data[:at] if is_complete_line(tail) else kept + newline)  # as stores do

    assert [entry.raw for entry in entries] == [entry.raw for entry in whole[: len(entries)]]
    assert len(entries) >= data[:at].count(b"\n") - 1
    assert len(reader.problems) <= 1


@given(damaged_sessions(), st.data())
def test_reading_in_parts_equals_reading_at_once(data, cut):
    at = cut.draw(st.sampled_from([place + 1 for place, byte in enumerate(data) if byte == 10]))
    parts, whole = SessionReader(), SessionReader()

    entries = iter_entries(parts.feed(data[:at]) + parts.feed(data[at:]))

    assert [entry.raw for entry in entries] == [entry.raw for entry in iter_entries(whole.feed(data))]
    assert parts.problems == whole.problems
    assert list(parts.iter_lines()) == list(whole.iter_lines())


def make_chain(count: int, **changes: str) -> list[str]:
    """Return a chain of messages in the standard form; `changes` apply to the third."""
    parts = [
        {"id": f"{n:08x}", "parent": f"{n - 1:08x}", "time": "2026-01-01T00:00:00.000Z", "keys": "", "end": "}}"}
        for n in range(1, count + 1)
    ]
    parts[2].update(changes)
    return [
        '{{"type":"message","id":"{id}","parentId":"{parent}","timestamp":"{time}"{keys},"message":{{"role":"user"{end}'.format(
            **part
        )
        for part in parts
    ]


def test_consecutive_messages_are_one_chain_until_they_are_accessed():
    [chain] = SessionReader().feed(build_file(header(), *make_chain(5)))

    assert isinstance(chain, Chain)
    assert (len(chain), chain.parent, chain.number) == (5, "00000000", 2)
    assert [(e.id, e.parent, e.line) for e in iter_entries([chain])][2:4] == [
        ("00000003", "00000002", 4),
        ("00000004", "00000003", 5),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"id": 'a","id":'},  # as long as an id, but not valid JSON
        {"time": '2026","id":"other","x":"'},  # as long as a timestamp; the second id counts
        {"time": "2026-01-01T00:00:00.00\\u"},
        {"time": "2026-01-01T00:00:00+0100"},
        {"time": "short"},
        {"parent": "ffffffff"},
        {"keys": ',"branch":"other"'},
        {"keys": ',"branch":null'},
        {"end": '},"id":"last"}'},
        {"end": '},"branch":"b"}'},
        {"end": "} "},
        {"end": ""},
    ],
    ids=str,
)
def test_a_line_in_a_chain_reads_like_the_line_alone(changes):
    lines = make_chain(5, **changes)

    reader, entries = read(build_file(header(), *lines))

    alone = []
    for number, line in enumerate(lines, 2):
        with contextlib.suppress(json_line.NotJson):
            alone.append(read_entry(line.encode(), number))
    assert [(e.id, e.parent, e.branch, e.line, e.raw) for e in entries if e.decode() is not UNREADABLE] == [
        (e.id, e.parent, e.branch, e.line, e.raw) for e in alone
    ]
    assert reader.line_count == 6


def test_lines_read_backwards_are_fetched_singly_and_lines_in_order_together():
    data = build_file(header(), *({**A, "id": f"a{number}"} for number in range(1000)))
    fetched = []

    def fetch(start, length):
        fetched.append(length)
        return data[start : start + length]

    reader = SessionReader(fetch=fetch)
    reader.feed(data)
    lines = data.split(b"\n")

    assert [*reader.read_raws(range(1001, 1, -1))] == lines[1000:0:-1]
    assert sum(fetched) < len(data)

    fetched.clear()
    assert [*reader.read_raws(range(2, 1002))] == lines[1:1001]
    assert sum(fetched) < len(data)
    assert len(fetched) < 20
