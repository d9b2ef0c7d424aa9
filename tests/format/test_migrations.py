import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.context import build_context
from sessiontree.core.entries import BranchSummary, Compaction
from sessiontree.core.heads import BranchOrigin, Heads
from sessiontree.core.messages import extract_text
from sessiontree.core.problems import find_problems
from sessiontree.core.tree import Tree
from sessiontree.format.splice import drop_key
from tests.builders import TIME, TIME_MS, build_file, header, ids, read, replay
from tests.strategies import json_values, object_texts


def open_tree(data):
    """Return the entries of a file and their tree."""
    entries = read(data)[1]
    return entries, Tree(entries)


def read_context(tree, leaf):
    """Return role and text of every message in the context at `leaf`."""
    return [(m["role"], m.get("summary") or extract_text(m["content"])) for m in build_context(tree, leaf).messages]


def rewrite(data):
    """Return the file as version 3."""
    reader, _ = read(data)
    return b"\n".join(reader.read_all_lines()) + b"\n"


# Version 1: no ids, one chain

V1 = header(id="old")
del V1["version"]


def make_v1_file(*lines):
    return build_file(V1, *lines)


def make_message(words, role="user"):
    return {"type": "message", "timestamp": TIME, "message": {"role": role, "content": words}}


def test_a_file_of_version_1_is_one_chain():
    reader, entries = read(make_v1_file(make_message("one"), make_message("two"), make_message("three")))

    a, b, c = (entry.id for entry in entries)
    assert [entry.parent for entry in entries] == [None, a, b]
    assert (reader.dialect, reader.needs_rewrite) == ("linear", True)
    assert read_context(Tree(entries), c) == [("user", "one"), ("user", "two"), ("user", "three")]


def test_ids_given_to_old_lines_agree_between_reads_and_differ_between_sessions():
    data = make_v1_file(make_message("one"), make_message("two"))
    other = build_file({**V1, "id": "other"}, make_message("one"), make_message("two"))

    first, again, others = ([entry.id for entry in read(file)[1]] for file in (data, data, other))

    assert first == again
    assert len({*first, *others}) == 4


def test_a_rewritten_file_has_the_same_content_and_needs_no_rewrite():
    data = make_v1_file(
        make_message("one"),
        {"type": "compaction", "summary": "S", "firstKeptEntryIndex": 1},
        "junk",
        make_message("two"),
    )

    reader, entries = read(rewrite(data))

    assert (reader.header.version, reader.needs_rewrite, reader.dialect) == (3, False, None)
    assert [(entry.id, entry.parent, entry.body) for entry in entries] == [
        (entry.id, entry.parent, entry.body) for entry in read(data)[1]
    ]
    assert list(reader.iter_lines())[2] == b"junk"


def test_the_header_of_a_rewritten_file_differs_only_in_its_version():
    assert rewrite(build_file('{"type":"session","id":"s",  "odd":1.0}')) == build_file(
        '{"type":"session","version":3,"id":"s",  "odd":1.0}'
    )
    assert rewrite(build_file('{"version": 2 ,"type":"session","id":"s"}')) == build_file(
        '{"version": 3 ,"type":"session","id":"s"}'
    )


@pytest.mark.parametrize(("index", "kept"), [(1, "one"), (2, "two")])
def test_a_first_kept_index_counts_the_header_as_zero(index, kept):
    compaction = {"type": "compaction", "summary": "S", "tokensBefore": 5, "firstKeptEntryIndex": index}

    entries, tree = open_tree(make_v1_file(make_message("one"), make_message("two"), compaction, make_message("three")))

    assert extract_text(tree[entries[2].body.first_kept].body.message["content"]) == kept
    assert b"firstKeptEntryIndex" not in entries[2].raw
    assert read_context(tree, entries[3].id)[:2] == [("compactionSummary", "S"), ("user", kept)]


@pytest.mark.parametrize("index", [0, 9, -1, None, True, "1"])
def test_an_index_of_the_header_or_of_nothing_keeps_nothing(index):
    compaction = {"type": "compaction", "summary": "S", "firstKeptEntryIndex": index}

    entries, tree = open_tree(make_v1_file(make_message("one"), compaction))

    assert entries[1].body == Compaction(summary="S")
    assert read_context(tree, entries[1].id) == [("compactionSummary", "S")]


def test_lines_that_cannot_be_read_do_not_count():
    compaction = {"type": "compaction", "summary": "S", "firstKeptEntryIndex": 2}

    entries, tree = open_tree(make_v1_file(make_message("one"), "junk", make_message("two"), compaction))

    assert read_context(tree, entries[-1].id) == [("compactionSummary", "S"), ("user", "two")]


def test_a_stack_pop_becomes_a_summary_at_its_target():
    pop = {"type": "stack_pop", "backToIndex": 1, "summary": "tried two", "prePopSummary": "p"}

    entries, tree = open_tree(make_v1_file(make_message("one"), make_message("two"), pop, make_message("three")))

    assert entries[2].body == BranchSummary(summary="tried two", abandoned_leaf=entries[1].id)
    assert read_context(tree, entries[3].id) == [("user", "one"), ("branchSummary", "tried two"), ("user", "three")]
    assert json.loads(entries[2].raw)["prePopSummary"] == "p"


def test_a_stack_pop_at_the_start_abandons_the_root():
    [pop], tree = open_tree(make_v1_file({"type": "stack_pop", "backToIndex": 0, "summary": "S"}))

    assert (pop.body.abandoned_leaf, tree.parent(pop.id)) == ("root", None)


def test_a_line_that_is_not_an_entry_does_not_break_the_chain():
    entries, tree = open_tree(make_v1_file(make_message("one"), {"no": "type"}, make_message("two")))

    assert read_context(tree, entries[-1].id) == [("user", "one"), ("user", "two")]


def test_ids_that_old_lines_have_are_kept():
    entries, _ = open_tree(
        make_v1_file(make_message("one"), {**make_message("two"), "id": "mine"}, make_message("three"))
    )

    assert (entries[1].id, entries[2].parent) == ("mine", "mine")


def test_a_hook_message_gets_the_current_role_in_version_1_too():
    [entry], _ = open_tree(make_v1_file(make_message("x", role="hookMessage")))

    assert entry.body.message["role"] == "custom"


@given(object_texts)
def test_a_line_of_version_1_changes_only_its_id_and_parent(odd):
    raw = b'{"type":"from_the_future","odd":' + odd + b"}\r"

    [entry], _ = open_tree(make_v1_file(raw))

    assert drop_key(drop_key(entry.raw, "id"), "parentId") == raw


# Version 2: another name for a role


def test_version_2_has_another_role_for_custom_messages():
    raw = '{"type":"message","id":"a","parentId":null,"message":{"content":1.0, "role":"hookMessage"}}'

    reader, [entry] = read(build_file(header(version=2), raw))

    assert reader.dialect == "hooks"
    assert entry.raw.decode() == raw.replace("hookMessage", "custom")


def test_other_lines_of_version_2_are_not_changed():
    raw = '{"type":"message", "id":"a","message":{"role":"user"}, "x":"hookMessage"}'

    assert rewrite(build_file(header(version=2), raw)).splitlines()[1].decode() == raw


# The form with `uuid`

SEED = build_file(
    '{"type":"session","version":2,"uuid":"ses1","parentUuid":null,"id":"abc","cwd":"/project"}',
    *(
        f'{{"type":"message","uuid":"{id}","parentUuid":"{parent}","message":{{"role":"{role}","content":"{words}"}}}}'
        for id, parent, role, words in [
            ("m1", "ses1", "user", "Build a CLI"),
            ("m2", "m1", "assistant", "I'll create..."),
            ("m3", "m2", "user", "Add --verbose flag"),
            ("m4", "m3", "assistant", "Here's the flag..."),
            ("m5", "m4", "user", "Actually use Python"),
            ("m6", "m5", "assistant", "Converting to Python..."),
        ]
    ),
    '{"type":"branch_summary","uuid":"bs1","parentUuid":"m2","summary":"Attempted Node.js CLI with --verbose flag"}',
    '{"type":"message","uuid":"m7","parentUuid":"bs1","message":{"role":"user","content":"Use Rust instead"}}',
    '{"type":"message","uuid":"m8","parentUuid":"m7","message":{"role":"assistant","content":"Creating Rust CLI..."}}',
)


def test_the_example_of_the_first_draft_gives_its_five_messages():
    reader, entries = read(SEED)
    tree = Tree(entries)

    assert (reader.dialect, reader.header.id, reader.header.cwd) == ("uuid", "abc", "/project")
    assert replay(*entries).leaf == "m8"
    assert [problem.kind for problem in find_problems(tree, Heads())] == []
    assert [entry.id for entry in tree.path("m8")] == ["m1", "m2", "bs1", "m7", "m8"]
    assert read_context(tree, "m8") == [
        ("user", "Build a CLI"),
        ("assistant", "I'll create..."),
        ("branchSummary", "Attempted Node.js CLI with --verbose flag"),
        ("user", "Use Rust instead"),
        ("assistant", "Creating Rust CLI..."),
    ]


def test_in_the_first_draft_a_summary_abandons_the_line_before_it():
    entries, tree = open_tree(SEED)

    assert tree["bs1"].body.abandoned_leaf == "m6"
    assert ids(entries)[:4] == "m1m2"


def make_draft_file(*lines, top="ses1"):
    return build_file({"type": "session", "version": 2, "uuid": top, "id": "abc"}, *lines)


def test_a_stack_summary_is_a_branch_summary():
    lines = [
        {"type": "stack_summary", "uuid": "a", "parentUuid": "ses1", "summary": "first"},
        {"type": "message", "uuid": "b", "parentUuid": "a", "message": {"role": "user", "content": "x"}},
        {"type": "stack_summary", "uuid": "c", "parentUuid": "a", "summary": "second", "fromId": "given"},
    ]

    entries, tree = open_tree(make_draft_file(*lines))

    assert entries[0].body == BranchSummary(summary="first", abandoned_leaf="root")
    assert entries[2].body == BranchSummary(summary="second", abandoned_leaf="given")
    assert ids(tree.path("c")) == "ac"


def test_a_compaction_of_the_first_draft_keeps_its_anchor():
    lines = [
        {"type": "message", "uuid": "a", "parentUuid": "ses1", "message": {"role": "user", "content": "x"}},
        {"type": "compaction", "uuid": "c", "parentUuid": "a", "summary": "S", "firstKeptEntryUuid": "a"},
    ]

    _, tree = open_tree(make_draft_file(*lines))

    assert read_context(tree, "c") == [("compactionSummary", "S"), ("user", "x")]


def test_the_first_draft_is_detected_by_its_entries_if_its_header_has_no_uuid():
    first = {"type": "message", "uuid": "a", "parentUuid": None, "message": {"role": "hookMessage", "content": "x"}}

    reader, entries = read(build_file(header(version=2), first, {"type": "message", "uuid": 5}))

    assert (reader.dialect, ids(entries)) == ("uuid", "a")
    assert entries[0].body.message["role"] == "custom"
    assert [problem.line for problem in reader.problems] == [3]


def test_a_line_of_the_first_draft_differs_only_in_its_keys():
    raw = '{"odd":[1.0, 1e999], "uuid" : "a","parentUuid":"b" ,"type":"from_the_future", "odd":"\\ud800"}'

    [entry], _ = open_tree(make_draft_file(raw))

    assert entry.raw.decode() == raw.replace('"uuid"', '"id"').replace('"parentUuid"', '"parentId"')


# The dialect of Dash


def make_dash_file(*lines):
    return build_file(header(version=1, id="sess_1"), *lines)


def make_dash_line(id, parent=None, role="user", content="x", **fields):
    return {
        "type": "message",
        "id": id,
        "parentId": parent,
        "timestamp": TIME,
        "role": role,
        "content": content,
        **fields,
    }


def test_dash_messages_get_the_current_form():
    metadata = {"model": "m", "provider": "p", "cost": 0.5, "tokens": 150}
    reader, [asked, answered] = read(
        make_dash_file(make_dash_line("a"), make_dash_line("b", "a", "assistant", "hi", metadata=metadata))
    )

    assert reader.dialect == "dash"
    assert asked.body.message == {"role": "user", "content": "x", "timestamp": TIME_MS}
    message = answered.body.message
    assert (message["content"], message["stopReason"]) == ([{"type": "text", "text": "hi"}], "stop")
    assert (message["provider"], message["model"]) == ("p", "m")
    assert (message["usage"]["totalTokens"], message["usage"]["cost"]["total"]) == (150, 0.5)
    assert json.loads(answered.raw)["metadata"] == metadata
    assert not {"role", "content"} & set(json.loads(answered.raw))


def test_a_dash_assistant_without_metadata_has_an_unknown_model():
    [entry], _ = open_tree(
        make_dash_file(make_dash_line("a", role="assistant", content=[{"type": "text", "text": "hi"}], timestamp="?"))
    )

    message = entry.body.message
    assert (message["provider"], message["model"], message["usage"]["totalTokens"]) == ("unknown", "unknown", 0)
    assert (message["content"], message["timestamp"]) == ([{"type": "text", "text": "hi"}], 0)


def test_dash_tool_messages_become_tool_results():
    metadata = {"toolCallId": "c1", "toolName": "read", "isError": True}
    given_, named, bare = open_tree(
        make_dash_file(
            make_dash_line("a", role="tool", metadata=metadata),
            make_dash_line("b", "a", role="tool", metadata={"tool": "ls"}),
            make_dash_line("c", "b", role="tool"),
        )
    )[0]

    assert given_.body.message == {
        "role": "toolResult",
        "content": [{"type": "text", "text": "x"}],
        "toolCallId": "c1",
        "toolName": "read",
        "isError": True,
        "timestamp": TIME_MS,
    }
    assert named.body.message["toolName"] == "ls"
    assert (bare.body.message["toolCallId"], bare.body.message["isError"]) == ("", False)


def test_dash_tool_output_without_a_call_reaches_the_model():
    _, tree = open_tree(
        make_dash_file(
            make_dash_line("a"), make_dash_line("b", "a", role="tool", content="42", metadata={"tool": "calc"})
        )
    )

    assert build_context(tree, "b").to_llm()[1]["content"][0]["text"] == "Output of calc:\n42"


def test_dash_branches_follow_the_nearest_branch_point_above():
    lines = [
        make_dash_line("a"),
        {
            "type": "branch_point",
            "id": "p",
            "parentId": "a",
            "timestamp": TIME,
            "branchName": "one",
            "description": "d",
        },
        make_dash_line("b", "p"),
        {"type": "branch_point", "id": "q", "parentId": "a", "timestamp": TIME, "branchName": "two"},
        make_dash_line("c", "q"),
        make_dash_line("d", "b"),
        {"type": "agent_action", "id": "e", "parentId": "c", "action": "spawn", "agentId": "x"},
        make_dash_line("f", "a"),
    ]

    heads = replay(*open_tree(make_dash_file(*lines))[0])

    assert heads.heads == {"main": "f", "one": "d", "two": "e"}
    assert heads.info["one"] == BranchOrigin(created=TIME, description="d")


def test_dash_lines_in_the_current_form_only_get_a_branch():
    whole = {"type": "message", "id": "a", "parentId": None, "message": {"role": "user", "content": "x"}}
    own = {**whole, "id": "b", "parentId": 5, "branch": "side"}
    unnamed = {"type": "branch_point", "id": "c", "parentId": "b"}

    first, second, third = open_tree(make_dash_file(whole, own, unnamed, {"type": "message"}))[0]

    assert (first.body.message, first.branch) == (whole["message"], "main")
    assert json.loads(second.raw) == own
    assert third.branch == "main"


@given(st.sampled_from(["role", "content", "metadata", "timestamp", "branchName", "parentId"]), json_values)
def test_values_of_a_wrong_type_in_dash_lines_are_ignored(key, value):
    for line in (
        make_dash_line("b", "a", "tool"),
        make_dash_line("b", "a", "assistant"),
        {"type": "branch_point", "id": "b"},
    ):
        _, entry = open_tree(make_dash_file(make_dash_line("a"), {**line, key: value}))[0]

        assert entry.id == "b"
        assert entry.body is not None


# oh-my-pi writes version 3


def test_entries_of_oh_my_pi_are_read_unchanged():
    lines = [
        {"type": "message", "id": "a", "parentId": None, "message": {"role": "user", "content": "old"}},
        {"type": "model_change", "id": "b", "parentId": "a", "model": "p/m/x", "role": "default"},
        {"type": "model_change", "id": "c", "parentId": "b", "model": "p/small", "role": "smol"},
        {"type": "mode_change", "id": "d", "parentId": "c", "mode": "plan", "data": {"step": 1}},
        {"type": "ttsr_injection", "id": "e", "parentId": "d", "injectedRules": ["r1"]},
        {"type": "thinking_level_change", "id": "f", "parentId": "e", "thinkingLevel": None, "configured": "auto"},
        {"type": "reset_boundary", "id": "g", "parentId": "f"},
        {"type": "message", "id": "h", "parentId": "g", "message": {"role": "user", "content": "new"}},
        {"type": "title_change", "id": "i", "parentId": "h", "title": "t"},
    ]
    data = build_file({"type": "title", "v": 1, "title": "t", "pad": "  "}, header(), *lines)

    reader, entries = read(data)
    seen = build_context(Tree(entries), "i")

    assert (reader.title, reader.dialect, reader.needs_rewrite) == ("t", None, False)
    assert seen.model == {"provider": "p", "modelId": "m/x"}
    assert (seen.state.mode, seen.state.mode_data, seen.state.rules) == ("plan", {"step": 1}, ("r1",))
    assert seen.thinking_level == "off"
    assert seen.sources == ("h",)
    assert replay(*entries).leaf == "h"
    assert rewrite(data) == data


# All dialects


@pytest.mark.parametrize("version", [None, 0, 1, 2])
def test_a_file_of_an_old_version_without_entries_has_no_dialect_yet(version):
    reader, entries = read(build_file(header(version=version) if version is not None else V1))

    assert (entries, reader.dialect, reader.needs_rewrite) == ([], None, True)


@pytest.mark.parametrize(
    "data",
    [
        SEED,
        make_dash_file(make_dash_line("a"), make_dash_line("b", "a", "tool")),
        make_v1_file(make_message("x"), make_message("y")),
    ],
)
def test_migrating_twice_changes_nothing(data):
    once = rewrite(data)

    assert rewrite(once) == once
    assert [(entry.id, entry.parent) for entry in read(once)[1]] == [
        (entry.id, entry.parent) for entry in read(data)[1]
    ]


@pytest.mark.parametrize("role", ["user", "assistant", "tool", "system"])
@pytest.mark.parametrize("content", [b'"a \xff b"', b'[{"type":"text","text":"a \xff b"}]'])
def test_invalid_utf8_in_dash_lines_is_reported_and_kept(role, content):
    raw = make_dash_file(make_dash_line("a", role=role, content="CONTENT")).replace(b'"CONTENT"', content)
    reader, entries = read(raw)
    tree, heads = Tree(entries), replay(*entries)

    assert [problem.kind for problem in find_problems(tree, heads)] == ["not_utf8"]
    assert extract_text(entries[0].body.message["content"]) == "a \ufffd b"
    again = rewrite(raw)
    assert content in again
    assert "\ufffd".encode() not in again
    assert [entry.body for entry in read(again)[1]] == [entry.body for entry in entries]
    assert reader.dialect == "dash"


def test_invalid_utf8_in_names_of_dash_files_is_reported_and_kept():
    raw = make_dash_file(
        make_dash_line("a", role="tool", metadata={"toolCallId": "NAME", "tool": "NAME"}),
        make_dash_line("b", "a", "assistant", metadata={"model": "NAME", "provider": "NAME"}),
        make_dash_line("c", "b", "assistant"),
        {"type": "branch_point", "id": "d", "parentId": "c", "timestamp": TIME, "branchName": "NAME"},
        make_dash_line("e", "d"),
    ).replace(b"NAME", b"a \xff b")
    _, entries = read(raw)

    assert entries[0].body.message["toolName"] == entries[0].body.message["toolCallId"] == "a \ufffd b"
    assert [entry.body.message["model"] for entry in entries[1:3]] == ["a \ufffd b"] * 2
    assert [entry.branch for entry in entries[3:]] == ["a \ufffd b"] * 2
    again = rewrite(raw)
    assert "\ufffd".encode() not in again
    assert [entry.body for entry in read(again)[1]] == [entry.body for entry in entries]


@given(json_values)
def test_the_spelling_of_a_dash_message_does_not_matter(content):
    """The spelling with spaces or escapes does not matter."""
    line = make_dash_line("a", content=content)
    for role in ("user", "assistant", "tool"):
        line["role"] = role
        [plain], _ = open_tree(make_dash_file(line))
        spaced = json.dumps(line, separators=(" , ", " : "), ensure_ascii=False).encode("utf-8", "surrogatepass")
        if b"\xed" not in spaced:
            assert open_tree(make_dash_file() + spaced + b"\n")[0][0].body == plain.body


def test_an_id_of_version_1_with_invalid_utf8_is_reported_and_kept():
    message = {"type": "message", "message": {"role": "user", "content": "x"}}
    raw = make_v1_file(message, {**message, "id": "ID"}).replace(b'"ID"', b'"a \xff b"')
    reader, entries = read(raw)

    assert reader.dialect == "linear"
    assert [problem.kind for problem in find_problems(Tree(entries), replay(*entries))] == ["not_utf8"]
    assert b'"a \xff b"' in rewrite(raw)
