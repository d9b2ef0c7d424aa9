"""The command line: arguments, output and exit codes."""

import errno
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import sessiontree as st
from sessiontree.cli.app import COMMAND_GROUPS, COMMAND_MODULES, app, run
from sessiontree.cli.output import escape_line, escape_lines
from sessiontree.core.entries import ThinkingLevelChange
from tests.cli.conftest import HOSTILE, Run, run_process


@pytest.fixture
def data(cli: Run) -> Callable[..., Any]:
    """Run a command with --json and return the printed object."""

    def command(*arguments: str, code: int = 0) -> Any:
        out = cli(*arguments, "--json", code=code)
        assert out.count("\n") == 1
        return json.loads(out)

    return command


@pytest.fixture
def talk(data) -> list[str]:
    """Create a session with two questions and answers, and return their ids."""
    data("new", "--name", "auth")
    return [
        data("append", "@", "--role", role, text)["id"]
        for role, text in [("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four")]
    ]


# Create and append


def test_new_creates_a_session_file(data, here: Path) -> None:
    made = data("new", "--name", "auth", "--cwd", "/p")
    as_file = data("new", "-o", "mine.jsonl")

    assert set(made) == {"session", "file"}
    assert (st.open(made["file"]).id, st.open("auth").cwd) == (made["session"], "/p")
    assert Path(as_file["file"]).name == "mine.jsonl"
    assert st.open("mine.jsonl").cwd == str(here)


def test_append_prints_the_id_parent_and_branch(data) -> None:
    data("new")
    first = data("append", "@", "--role", "user", "one")
    second = data(
        "append", "@", "--role", "assistant", "two", "--provider", "p", "--model", "m", "--usage", '{"cost":1}'
    )

    assert first["parent"] is None
    assert second == {"id": second["id"], "parent": first["id"], "branch": "main"}
    message = data("context", "@")["messages"][1]
    assert (message["provider"], message["model"], message["stopReason"]) == ("p", "m", "stop")
    assert message["usage"]["cost"]["total"] == 1
    assert message["usage"]["totalTokens"] == 0


def test_append_reads_text_from_standard_input(data, monkeypatch) -> None:
    import io

    data("new")
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    data("append", "@", "--role", "user", "-")

    assert data("context", "@")["messages"][0]["content"] == "from a pipe\n"


def test_append_accepts_complete_messages_and_any_entry(data) -> None:
    data("new")
    call = {"role": "assistant", "content": [{"type": "toolCall", "id": "c1", "name": "read", "arguments": {}}]}
    data("append", "@", "--message", json.dumps(call))
    result = data("append", "@", "--role", "toolResult", "done", "--error")
    note = data("append", "@", "--role", "custom", "remember", "--custom-type", "todo")
    other = data("append", "@", "--entry", '{"type":"later_type","deep":{"x":1.0},"id":"ignored"}')
    level = data("append", "@", "--entry", '{"type":"thinking_level_change","thinkingLevel":"high","why":"hard"}')

    session = st.open("@")
    assert data("context", "@")["thinkingLevel"] == "high"
    assert session.tree[result["id"]].body.message["toolCallId"] == "c1"
    assert session.tree[result["id"]].body.message["isError"] is True
    assert session.tree[note["id"]].body.custom_type == "todo"
    assert session.tree[other["id"]].body == st.Opaque(type="later_type", fields={"deep": {"x": 1.0}})
    assert b'"why":"hard"' in session.tree[level["id"]].raw


def test_append_on_another_branch_does_not_change_the_current_branch(data, talk) -> None:
    data("branch", "@", "b", "--at", talk[0])
    data("switch", "@", "main")

    written = data("append", "@", "--role", "user", "elsewhere", "--branch", "b")

    assert written["branch"] == "b"
    assert data("branches", "@")["current"] == "main"
    assert data("tree", "@")["leaf"] == talk[-1]


def test_append_at_a_place_moves_the_branch_there(data, talk) -> None:
    written = data("append", "@", "--role", "user", "instead", "--at", talk[1])

    assert written["parent"] == talk[1]
    assert data("tree", "@")["leaf"] == written["id"]


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        ({"input": "many"}, "input must be a number of at least 0, not 'many'"),
        ({"cost": "0.05"}, "cost must be a number of at least 0, not '0.05'"),
        ({"output": True}, "output must be a number of at least 0, not True"),
        ({"input": -5}, "input must be a number of at least 0, not -5"),
        ({"cost": {"total": -3}}, "total must be a number of at least 0, not -3"),
        ({"inputs": 10}, "unknown field 'inputs'; fields: input, output, cacheRead, cacheWrite, totalTokens, cost"),
        ({"cost": {"all": 1}}, "unknown field 'all'; fields: input, output, cacheRead, cacheWrite, total"),
    ],
)
def test_usage_with_unknown_fields_or_invalid_numbers_is_rejected(talk, fails, usage, message: str) -> None:
    before = st.open("@").read_lines()

    assert message in fails("append", "@", "--role", "assistant", "x", "--usage", json.dumps(usage), code=2)
    assert st.open("@").read_lines() == before


def test_a_value_that_is_not_an_object_is_reported_once(talk, fails) -> None:
    shown = fails("append", "@", "--role", "assistant", "x", "--usage", "lots", code=2)

    assert shown == "sessiontree: --usage: not a JSON object (see `sessiontree append --help`)\n"


def test_usage_accepts_all_fields(data, talk) -> None:
    usage = {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 3, "cost": {"total": 0.5}}
    data("append", "@", "--role", "assistant", "w", "--usage", '{"input":1,"cost":{}}')
    data("append", "@", "--role", "assistant", "x", "--usage", json.dumps(usage))

    assert data("context", "@")["messages"][-1]["usage"]["cost"]["total"] == 0.5


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("--message", {"role": "user"}, "needs content"),
        ("--message", {"role": "assistant", "content": None}, "needs content"),
        ("--message", {"role": "toolResult", "content": "x"}, 'needs the "toolCallId"'),
        ("--entry", {"type": "message"}, "--entry needs message"),
        ("--entry", {"type": "message", "message": "hi"}, "--entry needs message"),
        ("--entry", {"type": "message", "message": {}}, "--entry needs message"),
        ("--entry", {"type": "message", "message": {"content": "x"}}, "has no role"),
        ("--entry", {"type": "message", "message": {"role": "user"}}, "needs content"),
        ("--entry", {"type": "compaction"}, "--entry needs summary"),
        ("--entry", {"type": "compaction", "summary": ""}, "--entry needs summary"),
        ("--entry", {"type": "custom_message", "customType": "note"}, "--entry needs content"),
        ("--entry", {"type": "model_change"}, "--entry needs modelId"),
        ("--entry", {"type": "thinking_level_change"}, "--entry needs thinkingLevel"),
        ("--entry", {"type": "thinking_level_change", "thinkingLevel": 3}, "--entry needs thinkingLevel"),
        ("--entry", {"type": "context_edit", "targetId": "x"}, "--entry needs replacement"),
        ("--entry", {"type": "ttsr_injection"}, "--entry needs injectedRules"),
        ("--entry", {"type": "branch_point", "branchName": "b"}, "--entry cannot create a branch"),
    ],
)
def test_entries_with_missing_fields_are_rejected(talk, fails, option: str, given, message: str) -> None:
    before = st.open("@").read_lines()

    assert message in fails("append", "@", option, json.dumps(given), code=2)
    assert st.open("@").read_lines() == before


def test_optional_fields_are_not_required(data, talk) -> None:
    for entry in (
        {"type": "thinking_level_change", "thinkingLevel": None},
        {"type": "session_info", "name": None},
        {"type": "context_edit", "targetId": talk[0], "replacement": None},
        {"type": "label", "targetId": talk[0]},
        {"type": "reset_boundary"},
        {"type": "model_change", "model": "openai/gpt-5"},
    ):
        data("append", "@", "--entry", json.dumps(entry))
    data("append", "@", "--message", '{"role":"fileMention","files":[]}')


@pytest.mark.parametrize(
    "arguments",
    [
        ("append", "@"),
        ("append", "@", "--role", "user"),
        ("append", "@", "text"),
        ("append", "@", "--role", "user", "x", "--message", "{}"),
        ("append", "@", "--role", "nobody", "x"),
        ("append", "@", "--message", "no json"),
        ("append", "@", "--message", "{}"),
        ("append", "@", "--entry", "[]"),
        ("append", "@", "--entry", "{}"),
        ("append", "@", "--role", "toolResult", "x"),
        ("append", "@", "--role", "toolResult", "x", "--call", "nope"),
        ("navigate", "@", "root", "--from", "HEAD"),
        ("label", "@", "HEAD", "x", "--clear"),
        ("rename", "@", "x", "--clear"),
        ("new", "-o", "x.jsonl", "--dir", "."),
        ("show", "@", "root"),
        ("tree",),
        ("tree", "@", "--filter", "nonsense"),
        ("nonsense",),
        ("completion", "tcsh"),
    ],
)
def test_wrong_usage_has_exit_code_2(talk, fails, arguments) -> None:
    before = st.open("@").read_lines()

    message = fails(*arguments, code=2)

    assert message.count("\n") == 1
    assert message.endswith("--help`)\n")

    assert st.open("@").read_lines() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("tree", "nope"),
        ("log", "@", "--at", "nope"),
        ("switch", "@", "nope"),
        ("undo", "@"),
        ("compare", "@", "main", "nope"),
        ("compare", "@", "main"),
        ("branch", "@", "main"),
        ("branch", "@", "nope", "--rename", "x"),
        ("append", "@", "--role", "user", "x", "--branch", "nope"),
        ("append", "@", "--entry", '{"type":"label","targetId":"nope","label":"x"}'),
        ("label", "@", "nope", "x"),
        ("fork", "@", "--at", "nope"),
        ("fork", "@", "-o", "taken.jsonl"),
        ("new", "-o", "taken.jsonl"),
        ("new", "-o", "taken.jsonl/below.jsonl"),
        ("tree", "taken.jsonl"),
        ("tree", "/dev/null/x.jsonl"),
    ],
)
def test_an_error_is_one_line_with_exit_code_1(talk, fails, here, arguments) -> None:
    (here / "taken.jsonl").write_text("not a session")
    before = st.open("@").read_lines()

    assert len(fails(*arguments)) > 20

    assert (here / "taken.jsonl").read_text() == "not a session"
    assert st.open("@").read_lines() == before


# Inspect


def test_tree_as_json_has_every_entry_in_drawing_order(data, talk) -> None:
    data("label", "@", talk[1], "here")
    data("navigate", "@", "here")
    data("append", "@", "--role", "user", "another way")

    tree = data("tree", "@")

    assert set(tree) == {"session", "name", "branch", "leaf", "entries", "problems"}
    assert (tree["name"], tree["branch"], tree["problems"]) == ("auth", "main", [])
    messages = [(row["depth"], row["role"], row["text"]) for row in tree["entries"] if row["type"] == "message"]
    assert messages == [
        (1, "user", "one"),
        (2, "assistant", "two"),
        (3, "user", "another way"),
        (3, "user", "three"),
        (4, "assistant", "four"),
    ]
    [labeled] = [row for row in tree["entries"] if row["label"]]
    assert (labeled["id"], labeled["label"], labeled["parent"]) == (talk[1], "here", talk[0])
    assert [row["text"] for row in data("tree", "@", "--filter", "user-only")["entries"]] == [
        "one",
        "another way",
        "three",
    ]


def test_tree_is_indented_only_where_branches_fork(cli, data, talk) -> None:
    data("navigate", "@", talk[1])
    data("append", "@", "--role", "user", "another way")
    data("label", "@", talk[1], "here")

    lines = cli("tree", "@").splitlines()[1:]

    assert lines == [
        "• user: one",
        "• [here] assistant: two",
        "├─ • user: another way (main) ← active",
        "└─ user: three",
        "      assistant: four",
    ]


def test_tree_shows_the_branch_of_a_hidden_head_at_its_nearest_visible_ancestor(cli, data, talk) -> None:
    with st.open("@") as session:
        session.append(ThinkingLevelChange("high"))

    assert cli("tree", "@").splitlines()[-1] == "• assistant: four (main) ← active"
    assert cli("tree", "@", "--filter", "all").splitlines()[-1] == "• [thinking: high] (main) ← active"


def test_tree_shows_as_many_rows_as_asked_and_says_that_more_follow(cli, data, talk) -> None:
    whole = cli("tree", "@").splitlines()

    assert cli("tree", "@", "--limit", "2").splitlines() == [*whole[:3], "(more rows follow; 2 rows shown)"]
    assert cli("tree", "@", "--limit", "1000").splitlines() == whole


def test_tree_shows_the_rows_around_a_place(cli, data, talk) -> None:
    whole = data("tree", "@")["entries"]
    place = whole[len(whole) // 2]["id"]

    assert data("tree", "@", "--around", place, "--limit", "3")["entries"] == whole[len(whole) // 2 - 1 :][:3]
    assert data("tree", "@", "--around", "root", "--limit", "3")["entries"] == whole[:3]
    assert data("tree", "@", "--around", place)["entries"] == whole
    assert cli("tree", "@", "--filter", "all", "--around", place, "--limit", "1").count("\n") == 3


def test_tree_around_an_unknown_place_is_an_error(fails, data, talk) -> None:
    assert "place 'nowhere' not found" in fails("tree", "@", "--around", "nowhere")
    assert "--limit" in fails("tree", "@", "--limit", "0", code=2)


def test_a_limited_tree_reports_faults_of_the_shape_and_of_what_it_shows(here: Path, cli) -> None:
    lines = [
        '{"type":"session","version":3,"id":"s","cwd":"/p"}',
        '{"type":"message","id":"a1234567","parentId":"gone","timestamp":"","message":{"role":"user","content":"x"}}',
        '{"type":"message","id":"b1234567","parentId":"a1234567","timestamp":""}',
    ]
    (here / "s.jsonl").write_text("\n".join([*lines, ""]))

    def list_kinds(*options: str) -> list[str]:
        found = json.loads(cli("tree", "s.jsonl", "--json", *options))
        return [problem["kind"] for problem in found["problems"]]

    assert list_kinds() == ["malformed_line", "orphan"]
    assert "orphan" in list_kinds("--limit", "1")


def test_tree_without_visible_entries_prints_a_note(cli, data) -> None:
    data("new")
    assert "(no entries)" in cli("tree", "@")

    data("append", "@", "--role", "user", "one")
    assert "hides 1 entry)" in cli("tree", "@", "--filter", "labeled-only")
    data("navigate", "@", "root")

    assert "at the root" in cli("tree", "@")


def test_log_lists_the_path_raw_as_json_and_with_labels_and_branches_as_text(cli, data, talk) -> None:
    data("label", "@", talk[1], "here")
    data("branch", "@", "b", "--at", talk[1])

    raw = cli("log", "@", "--at", "main", "--json").splitlines()
    text = cli("log", "@", "--at", "main")

    entries = st.open("@").branch("main").path()
    assert [line.encode() for line in raw] == [entry.raw for entry in entries]
    assert "[here] assistant: two" in text
    assert "assistant: four (main)" in text


def test_show_prints_one_entry_in_full(cli, data, talk) -> None:
    calls = [{"type": "text", "text": "a\nb"}, {"type": "toolCall", "id": "c", "name": "bash", "arguments": {"x": 1}}]
    data("append", "@", "--message", json.dumps({"role": "assistant", "content": calls, "errorMessage": "odd"}))
    data("label", "@", "HEAD", "here")
    text = cli("show", "@", "HEAD")

    assert data("show", "@", talk[0])["id"] == talk[0]
    for part in ('a\nb\n→ bash({"x": 1})\nerror: odd', "label   here", "kind    message (assistant)"):
        assert part in text
    for body in ({"type": "branch_summary", "summary": "went well"}, {"type": "custom", "customType": "todo"}):
        data("append", "@", "--entry", json.dumps(body))
        assert (body.get("summary") or '"customType": "todo"') in cli("show", "@", "HEAD")
    data("append", "@", "--message", '{"role":"bashExecution","command":"ls","output":"a.py"}')
    assert "$ ls\na.py" in cli("show", "@", "HEAD")


def test_a_session_with_only_a_name_has_no_entries_to_show(cli, data) -> None:
    data("new", "--name", "fresh")

    assert cli("tree", "@").splitlines()[1:] == ["(no entries)"]
    assert cli("log", "@") == "(no entries)\n"
    assert cli("log", "@", "--json") == ""


def test_a_damage_warning_names_the_doctor_command(cli, data, talk, capsys) -> None:
    file = st.open("@").file
    file.write_bytes(file.read_bytes() + b"nonsense\n")

    assert run(["tree", "@"]) == 0
    message = capsys.readouterr().err
    assert f"(see `sessiontree doctor {file}`)" in message


def test_context_prints_one_json_line_per_place(cli, data, talk) -> None:
    lines = [json.loads(line) for line in cli("context", "@", "--at", talk[1], "--at", "root", "--json").splitlines()]

    assert [line["leaf"] for line in lines] == [talk[1], None]
    assert set(lines[0]) == {"leaf", "model", "thinkingLevel", "messages"}
    assert [len(line["messages"]) for line in lines] == [2, 0]
    assert lines[1]["model"] is None


def test_context_includes_recorded_mode_and_rules(data, talk) -> None:
    data("append", "@", "--entry", '{"type":"mode_change","mode":"plan"}')
    data("append", "@", "--entry", '{"type":"ttsr_injection","injectedRules":["r"]}')

    context = data("context", "@")

    assert (context["mode"], context["rules"]) == ("plan", ["r"])


def test_context_for_a_request_has_a_result_for_every_call_and_no_failed_turns(data) -> None:
    data("new")
    call = {"role": "assistant", "content": [{"type": "toolCall", "id": "c1", "name": "read", "arguments": {}}]}
    data("append", "@", "--message", json.dumps(call))
    data("append", "@", "--message", '{"role":"assistant","content":"half","stopReason":"aborted"}')

    converted, request = data("context", "@", "--llm")["messages"], data("context", "@", "--request")["messages"]

    assert [message["role"] for message in converted] == ["assistant", "assistant"]
    assert [(message["role"], message.get("isError")) for message in request] == [
        ("assistant", None),
        ("toolResult", True),
    ]


def test_explain_shows_for_every_entry_whether_the_model_sees_it(cli, data, talk) -> None:
    data("append", "@", "--entry", json.dumps({"type": "compaction", "summary": "all", "firstKeptEntryId": talk[2]}))

    explained = data("context", "@", "--explain")
    text = cli("context", "@", "--explain")

    results = {item["id"]: (item["reaches"], item["representedBy"]) for item in explained["explain"]}
    assert results[talk[0]] == (False, st.open("@").head.leaf)
    assert results[talk[3]] == (True, None)
    assert explained["tokens"] == sum(item["tokens"] for item in explained["explain"]) > 0
    assert "summarized by a compaction" in text
    assert "one" in cli("context", "@", "--at", talk[0])


# Branches


def test_branches_of_a_long_session_are_listed_with_its_last_leaves(cli, data, talk, monkeypatch) -> None:
    data("branch", "@", "side", "--at", talk[1], "--description", "try")
    for number in range(2):
        data("navigate", "@", talk[1])
        data("append", "@", "--role", "assistant", f"way {number}")
    monkeypatch.setattr("sessiontree.cli.inspect.RECENT_ENTRIES", 5)

    lines = cli("branches", "@").splitlines()

    assert lines[0].split() == ["branch", "head", "created", "description"]
    assert [line.split()[0] for line in lines[1:-1]] == ["main", "*", "(none)"]
    assert "try" in lines[2]
    assert "--all lists every leaf" in lines[-1]
    assert "entries" in cli("branches", "@", "--all").splitlines()[0]


def test_switching_in_a_long_session_lists_branches_without_counting_entries(cli, data, talk, monkeypatch) -> None:
    data("branch", "@", "old", "--at", talk[1])
    data("branch", "@", "side", "--at", talk[1])
    data("branch", "@", "old", "--archive")
    monkeypatch.setattr("sessiontree.cli.inspect.RECENT_ENTRIES", 5)

    lines = cli("switch", "@", "main").splitlines()

    assert lines[0].split() == ["branch", "head", "created", "description"]
    assert [line[:7].split() for line in lines[1:]] == [["*", "main"], ["-", "old"], ["side"]]


def test_branches_are_created_renamed_archived_and_listed(cli, data, talk) -> None:
    data("branch", "@", "b", "--at", talk[1], "--description", "try")
    data("branch", "@", "b", "--rename", "c")
    data("switch", "@", "main")
    listed = data("branch", "@", "c", "--archive")

    assert listed["current"] == "main"
    [main, archived] = listed["branches"]
    assert (main["name"], main["head"], main["entryCount"]) == ("main", talk[-1], 5)
    assert set(archived) == {"name", "head", "entryCount", "createdAt", "description", "archived"}
    assert (archived["name"], archived["description"], archived["archived"]) == ("c", "try", True)
    assert "c" not in cli("branches", "@").split()
    assert "c" in cli("branches", "@", "--all").split()
    assert data("branch", "@", "c", "--unarchive")["branches"][1]["archived"] is False


def test_navigate_prints_the_move_and_undo_reverts_it(cli, data, talk) -> None:
    plan = {
        "oldLeaf": talk[3],
        "newLeaf": talk[1],
        "commonAncestor": talk[2],
        "abandoned": [talk[3]],
        "editorText": "three",
    }
    assert data("navigate", "@", talk[2], "--dry-run") == plan
    assert data("tree", "@")["leaf"] == talk[3]

    assert data("navigate", "@", talk[2]) == {**plan, "summaryEntry": None, "cancelled": False}
    assert data("tree", "@")["leaf"] == talk[1]
    assert data("undo", "@")["newLeaf"] == talk[3]
    assert "three" in cli("navigate", "@", talk[2])
    assert data("navigate", "@", talk[0], "--dry-run", "--from", talk[1])["oldLeaf"] == talk[1]


def test_switch_selects_a_branch_or_moves_the_current_one_to_the_exact_place(data, talk) -> None:
    data("switch", "@", talk[2])

    assert data("tree", "@")["leaf"] == talk[2]
    assert data("switch", "@", "HEAD@{1}")["branches"][0]["head"] == talk[3]


def test_labels_and_names_are_shown_set_and_cleared(cli, data, talk) -> None:
    assert data("label", "@", "HEAD") == {"label": None}
    assert data("label", "@", "HEAD", "here") == {"label": "here"}
    assert cli("label", "@", "here").strip() == "here"
    assert data("label", "@", "here", "--clear") == {"label": None}
    assert data("rename", "@") == {"name": "auth"}
    assert data("rename", "@", "other") == {"name": "other"}
    assert data("rename", "other", "--clear") == {"name": None}
    assert cli("rename", "@").strip() == "(no name)"


def test_fork_creates_a_separate_session(data, talk) -> None:
    path = data("fork", "@", "--at", talk[1], "--name", "copy", "-o", "copy.jsonl")
    whole = data("fork", "@", "--whole")

    assert path["forkedFrom"] == talk[1]
    assert [entry.id for entry in st.open("copy.jsonl").head.path()][-2:] == talk[:2]
    assert len(st.open(whole["session"]).tree) == 5


def test_compare_and_diff_as_text_and_json(cli, data, talk) -> None:
    for name, cost in (("a", 0.05), ("b", 0.03)):
        data("branch", "@", name, "--at", talk[1])
        data("append", "@", "--role", "assistant", name, "--usage", json.dumps({"input": 10, "cost": cost}))

    comparison = data("compare", "@", "a", "b")
    difference = data("diff", "@", "a", "main")

    assert comparison["winner"] == "b"
    assert [branch["totalCost"] for branch in comparison["branches"]] == [0.05, 0.03]
    assert "winner: b" in cli("compare", "@", "a", "b")
    assert "no winner" in cli("compare", "@", "a", "main")
    assert difference["commonAncestor"] == talk[1]
    assert difference["b"]["entries"] == talk[2:]
    output = cli("diff", "@", "a", "main")
    assert f"+ {talk[3][:8]} assistant: four" in output
    assert "--- a 10 tokens, $0.0500" in output
    assert "+++ main tokens unknown, cost unknown" in output


def test_migrate_rewrites_an_old_file_and_reports_it(cli, data, here: Path) -> None:
    old = b'{"type":"session","id":"old","cwd":"/p"}\n{"type":"message","message":{"role":"user","content":"x"}}\n'
    (here / "old.jsonl").write_bytes(old)

    assert len(data("log", "old.jsonl")["message"]) == 2
    assert (here / "old.jsonl").read_bytes() == old
    assert data("migrate", "old.jsonl")["migrated"] is True
    assert (here / "old.jsonl.bak").read_bytes() == old
    assert cli("migrate", "old.jsonl").startswith("nothing")


def test_doctor_lists_problems_and_exits_with_1_for_faults(cli, data, talk, here: Path) -> None:
    assert cli("doctor", "@").strip() == "no problems found"
    header = '{"type":"session","version":3,"id":"x","cwd":"/p"}\n'
    call = (
        '{"type":"message","id":"a","parentId":null,"message":{"role":"assistant","content":[{"type":"toolCall"}]}}\n'
    )
    (here / "note.jsonl").write_text(header + call)
    (here / "bad.jsonl").write_text(header + "garbage\n" + call.replace("null", '"gone"'))

    assert [problem["kind"] for problem in data("doctor", "note.jsonl")["problems"]] == ["unanswered_call"]
    problems = data("doctor", "bad.jsonl", code=1)["problems"]
    assert [(problem["kind"], problem["line"], problem["offset"]) for problem in problems[:2]] == [
        ("malformed_line", 2, len(header)),
        ("orphan", 3, len(header) + 8),
    ]
    assert "orphan" in cli("doctor", "bad.jsonl", code=1)


def test_tree_warns_about_damage_on_standard_error(here: Path, capsys) -> None:
    (here / "bad.jsonl").write_text('{"type":"session","version":3,"id":"x"}\ngarbage\nmore\n')

    assert run(["tree", "bad.jsonl"]) == 0

    assert "damaged: line 2: not an entry" in capsys.readouterr().err


def test_a_folder_is_rejected_as_a_session(fails) -> None:
    assert "it is a folder" in fails("tree", ".")


# Escaping, help, colors, completion


def test_text_from_files_cannot_control_the_terminal(cli, data, talk, here: Path) -> None:
    session = st.open("@")
    entry = session.append(st.Message({"role": "bashExecution", "output": HOSTILE, "command": HOSTILE}))
    session.append(st.Opaque(type=HOSTILE, fields={HOSTILE: HOSTILE}))
    session.append(st.assistant([st.tool_call(HOSTILE, HOSTILE, {"path": HOSTILE})], model=HOSTILE, provider=HOSTILE))
    session.append(st.CustomMessage(custom_type=HOSTILE, content=HOSTILE))
    session.append(st.ThinkingLevelChange(HOSTILE))
    session.label(entry, HOSTILE)
    session.rename(HOSTILE)
    session._store.append(
        [
            json.dumps(
                {"type": "message", "id": "h", "parentId": None, "message": {"role": HOSTILE, "content": HOSTILE}}
            ).encode(),
            b'{"type":"x","id":"a\x7f\xc2\x9b","parentId":null,"timestamp":"\\u001b","branch":"b\xc2\x9b"}',
        ],
        after=session._load().cursor,
    )

    for command in ("tree", "log", "context", "branches", "doctor"):
        for options in ([], ["--json"], *([["--explain"]] if command == "context" else [])):
            out = cli(command, "@", *options)
            assert not set(out) & {"\x1b", "\x07", "\x9b", "\u202e", "\u2028", "\x7f", "\r", "\ud800"}
    for place in ("HEAD", "HEAD@{1}", entry.id):
        shown = cli("show", "@", place) + cli("show", "@", place, "--json")
        assert not set(shown) & {"\x1b", "\x07", "\x9b", "\u202e", "\u2028", "\x7f", "\r"}


def test_errors_cannot_control_the_terminal(fails) -> None:
    assert "\x1b" not in fails("tree", "\x1b[2J")


def test_control_characters_are_shown_as_escapes() -> None:
    assert escape_line("a\x1b[2J\u202eb\n") == "a\\x1b[2J\\u202eb\\x0a"
    assert escape_lines("a\tb\nc\x1b") == "a\tb\nc\\x1b"
    assert escape_line("plain") == "plain"


def test_help_is_the_default_and_every_command_has_help(cli) -> None:
    assert "Inspect:" in cli()
    for name in COMMAND_MODULES:
        assert "Usage: sessiontree " in cli(name, "--help")


def walk_commands(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command in a group and its subgroups."""
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*names, name)
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from walk_commands(command, *names, name)


def test_the_help_of_every_command_shows_an_example(cli) -> None:
    for names in walk_commands(app):
        called = "-p" if names == ("prompt",) else " ".join(names)
        example = cli(*names, "--help").partition("\n  Example")[2]
        assert f"sessiontree {called}" in example, f"{called} has none"


def test_colors_follow_the_option_and_no_color(cli, talk, monkeypatch) -> None:
    assert "\x1b[" not in cli("tree", "@")
    assert "\x1b[" in cli("--color", "tree", "@")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in cli("tree", "@")


def test_help_groups_commands_like_the_documentation(cli) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    groups = {
        heading: re.findall(r"(?m)^### (\S+)$", section)
        for heading, section in re.findall(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)", page)
    }

    assert {heading: list(names) for heading, names in COMMAND_GROUPS.items()} == {
        heading: names for heading, names in groups.items() if names
    }
    out = cli("--help")
    for heading, names in COMMAND_GROUPS.items():
        assert f"\n{heading}:\n" in out
        for name in names:
            assert f"\n  {name} " in out


def test_help_shows_the_short_forms_and_truncates_nothing(cli) -> None:
    out = cli("--help")

    assert "..." not in out.replace("[ARGS]...", "")
    for form in ("sessiontree ", "sessiontree -c ", "sessiontree -r ", 'sessiontree -p "'):
        assert f"\n    {form}" in out


@pytest.mark.parametrize("arguments", [("completion",), ("models", "get"), ("append", "@", "--role")])
def test_wrong_usage_is_reported_on_one_line_without_escapes(fails, arguments) -> None:
    message = fails(*arguments, code=2)

    assert "\\x" not in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(cli, shell: str) -> None:
    assert "_SESSIONTREE_COMPLETE" in cli("completion", shell)


def complete(*words: str) -> list[str]:
    environment = {**os.environ, "_SESSIONTREE_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words)}
    environment["COMP_CWORD"] = str(len(words) - 1)
    command = [sys.executable, "-c", "from sessiontree.cli import main; main()"]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    return [line.partition(",")[2] for line in out.splitlines() if line]


def test_completion_offers_commands_sessions_branches_and_labels(data, talk) -> None:
    data("label", "@", "HEAD", "here")
    data("branch", "@", "try", "--at", talk[0])
    session = st.open("@").id

    assert complete("sessiontree", "bran") == ["branch", "branches"]
    assert complete("sessiontree", "tree", session[:6]) == [session]
    assert complete("sessiontree", "navigate", "@", "he") == ["here"]
    assert complete("sessiontree", "compare", "@", "t") == ["try"]
    assert complete("sessiontree", "navigate", "nope", "h") == []


def test_completion_offers_session_names(data) -> None:
    for name in ("dup", "dup", "due", "du $(id)", "-du"):
        data("new", "--name", name)

    assert complete("sessiontree", "tree", "du") == ["due", "dup"]
    assert complete("sessiontree", "prompt", "--session", "du") == ["due", "dup"]
    assert complete("sessiontree", "chat", "--session", "due") == ["due"]


def test_completion_omits_names_with_shell_syntax(data, talk) -> None:
    for name in ("t$(id)", "t;id", "t`id`", "t id"):
        data("label", "@", "HEAD", name)
        assert complete("sessiontree", "navigate", "@", "t") == []


def test_completion_expands_short_forms() -> None:
    assert complete("sessiontree", "-p", "--mo") == ["--model", "--mode"]
    assert complete("sessiontree", "-c", "--mo") == ["--model"]


def test_the_tour_plays_without_a_terminal_in_a_temporary_folder(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    out = cli("demo")

    assert list(tmp_path.glob("sessiontree-demo-*/*"))
    for message in ("winner: dict", "← active", "no problems found", "The session files are in"):
        assert message in out


# As a real process


def test_the_version_is_printed_without_loading_the_library() -> None:
    assert run_process("--version").stdout == f"sessiontree {st.__version__}\n"


def test_the_package_runs_as_a_module() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "sessiontree", "--version"], capture_output=True, text=True, check=True
    )

    assert result.stdout == f"sessiontree {st.__version__}\n"


def test_a_closed_pipe_causes_no_traceback(data, talk) -> None:
    script = f"{sys.executable} -c 'from sessiontree.cli import main; main()' tree @ | true"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    assert result.stderr == ""


def test_an_ascii_terminal_causes_no_traceback(data, talk) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    result = run_process("tree", "@", env=environment)

    assert result.returncode == 0
    assert "user: one" in result.stdout


def test_an_unexpected_exception_is_reported_on_one_line(monkeypatch, fails, talk) -> None:
    monkeypatch.setattr("sessiontree.cli.tree.TreeDrawing", lambda *_: 1 / 0)

    assert "internal error, ZeroDivisionError" in fails("tree", "@")
    monkeypatch.setenv("SESSIONTREE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["tree", "@"])


def test_an_interrupt_has_its_own_exit_code(monkeypatch, fails, talk) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sessiontree.cli.tree.TreeDrawing", interrupt)

    assert "stopped" in fails("tree", "@", code=130)


# Repair

SOUND = '{"type":"session","version":3,"id":"s","cwd":"/p"}\n'
RECORD = '{"type":"custom","id":"x","customType":"sessiontree.head","data":%s}\n'
DAMAGE = [
    ("malformed_line", SOUND + "garbage\n"),
    ("malformed_line", SOUND + '{"type":"message","id":"x","parentId":null}\n'),
    ("malformed_line", SOUND + RECORD % "5"),
    ("malformed_line", SOUND + RECORD % '{"current":"main","heads":[1]}'),
    ("not_utf8", SOUND + '{"type":"custom","id":"x","parentId":null,"data":"\udcff"}\n'),
    ("not_utf8", SOUND.replace("/p", "/p\udcff")),
    ("not_utf8", '{"type":"title","title":"\udcff"}\n' + SOUND),
    (
        "hidden_key",
        SOUND + '{"type":"message","id":"x","parentId":null,"timestamp":"","message":{},"branch":"side","meta":{}}\n',
    ),
    ("orphan", SOUND + '{"type":"message","id":"x","parentId":"gone","message":{"role":"user","content":"x"}}\n'),
    ("self_parent", SOUND + '{"type":"message","id":"x","parentId":"x","message":{"role":"user","content":"x"}}\n'),
    ("cycle", SOUND + '{"type":"custom","id":"x","parentId":"y"}\n{"type":"custom","id":"y","parentId":"x"}\n'),
    ("duplicate_id", SOUND + '{"type":"custom","id":"x","parentId":null}\n' * 2),
    (
        "missing_anchor",
        SOUND + '{"type":"compaction","id":"x","parentId":null,"summary":"s","firstKeptEntryId":"gone"}\n',
    ),
    ("missing_head", SOUND + RECORD % '{"current":"main","heads":{"main":"gone"}}'),
    ("torn_tail", SOUND + '{"type":"message","id":"x'),
]


@pytest.mark.parametrize(("kind", "text"), DAMAGE, ids=[kind for kind, _ in DAMAGE])
def test_every_kind_of_fault_is_found_and_repaired_without_touching_the_file(
    data, here: Path, kind: str, text: str
) -> None:
    before = text.encode("utf-8", "surrogateescape")
    (here / "bad.jsonl").write_bytes(before)
    problems = data("doctor", "bad.jsonl", code=1)["problems"]
    assert {problem["kind"] for problem in problems if problem["severity"] == "fault"} == {kind}

    report = data("doctor", "bad.jsonl", "--repair", code=1)

    assert {repair["kind"] for repair in report["repairs"]} == {kind}
    assert (here / "bad.jsonl").read_bytes().startswith(before)
    sound = report["repaired"] or "bad.jsonl"
    assert [problem for problem in data("doctor", sound)["problems"] if problem["severity"] == "fault"] == []


def test_every_documented_kind_of_fault_is_tested() -> None:
    table = (Path(__file__).parents[2] / "docs" / "tree.md").read_text()
    elsewhere = {"no_session", "long_line"}

    assert set(re.findall(r"^\| `(\w+)` \| fault ", table, re.MULTILINE)) == {kind for kind, _ in DAMAGE} | elsewhere


def test_doctor_examines_every_file_in_a_folder(cli, data, talk, here: Path) -> None:
    data("fork", "@", "-o", "good.jsonl")
    (here / "none.jsonl").write_text("nothing of ours\n")
    (here / "sub").mkdir()
    (here / "sub" / "bad.jsonl").write_text('{"type":"session","version":3,"id":"s"}\ngarbage\n')
    os.utime(here / "sub" / "bad.jsonl", (1, 1))
    (here / "loop.jsonl").symlink_to("loop.jsonl")
    (here / "link.jsonl").symlink_to("good.jsonl")
    os.mkfifo(here / "pipe.jsonl")
    (here / "folder.jsonl").mkdir()

    results = [json.loads(line) for line in cli("doctor", ".", "--json", code=1).splitlines()]
    text = cli("doctor", ".", "--repair", code=1)

    assert {item["file"]: [problem["kind"] for problem in item["problems"]] for item in results} == {
        "./good.jsonl": [],
        **{f"./{name}.jsonl": ["no_session"] for name in ("none", "loop", "link", "pipe", "folder")},
        "./sub/bad.jsonl": ["malformed_line"],
    }
    assert "repaired copy: ./sub/bad.repaired_" in text
    assert "repaired copy: ./sub/bad.repaired_" in cli("doctor", ".", "--repair", code=1)
    assert len(list((here / "sub").glob("bad.repaired_*.jsonl"))) == 1
    assert (here / "none.jsonl").read_text() == "nothing of ours\n"
    (here / "empty").mkdir()
    assert "no sessions found" in cli("doctor", "empty")


def test_doctor_examines_the_same_sessions_as_the_listing(cli, here: Path) -> None:
    for name in ("sessions/own/deep", "elsewhere/deep"):
        (here / name).mkdir(parents=True)
    for link, target in {"linked": "../elsewhere", "again": "own", "deeper": "own/deep", "up": ".."}.items():
        (here / "sessions" / link).symlink_to(target)
    for name in ("sessions/own/a", "sessions/own/deep/b", "sessions/own/.c", "elsewhere/d", "elsewhere/deep/e"):
        (here / f"{name}.jsonl").write_text("garbage\n")

    results = [json.loads(line)["file"] for line in cli("doctor", "sessions", "--json", code=1).splitlines()]

    assert results == ["sessions/own/a.jsonl", "sessions/own/deep/b.jsonl", "sessions/linked/d.jsonl"]


def test_a_session_without_a_header_is_repaired(data, here: Path) -> None:
    line = '{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"Hello"}}'
    (here / "lost.jsonl").write_text(f"garb\x00age\n{line}\n")

    report = data("doctor", "lost.jsonl", "--repair", code=1)

    assert [problem["kind"] for problem in report["problems"]] == ["no_session"]
    assert [repair["kind"] for repair in report["repairs"]] == ["no_session"]
    assert data("doctor", report["repaired"]) == {"problems": []}


def test_a_file_that_is_too_large_is_a_fault_and_is_not_opened(data, here: Path, monkeypatch) -> None:
    monkeypatch.setattr("sessiontree.library.index.session_summary.PREAMBLE_LIMIT", 1 << 10)
    (here / "log.jsonl").write_text("a line of a log\n" * 1000)

    (problem,) = data("doctor", "log.jsonl", "--repair", code=1)["problems"]

    assert problem["message"] == "no session header in its first 1 KiB"


def test_a_path_that_is_not_a_regular_file_is_a_fault(data, here: Path) -> None:
    os.mkfifo(here / "pipe.jsonl")

    (problem,) = data("doctor", "pipe.jsonl", code=1)["problems"]

    assert (problem["kind"], problem["message"]) == ("no_session", "not a regular file")


def test_doctor_reports_a_failed_repair_and_continues(cli, here: Path) -> None:
    record = RECORD % '{"current":"main","heads":{"main":"gone"}}'
    (here / "a.jsonl").write_text(f'{{"type":"session","version":9,"id":"a"}}\n{record}')
    long = "b" * 230 + ".jsonl"
    (here / long).write_text('{"type":"session","version":3,"id":"b"}\ngarbage\n')

    newer, lengthy = [json.loads(line) for line in cli("doctor", ".", "--repair", "--json", code=1).splitlines()]

    assert [problem["kind"] for problem in newer["problems"]] == ["newer_version", "missing_head"]
    assert newer["refused"].endswith("it has version 9; a repaired copy would have version 3")
    assert [problem["kind"] for problem in lengthy["problems"]] == ["malformed_line"]
    assert lengthy["refused"].endswith("File name too long")
    assert "not repaired" in cli("doctor", long, "--repair", code=1)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_an_unreadable_folder_is_a_fault(cli, here: Path) -> None:
    (here / "shut").mkdir(mode=0)

    assert "fault no_session  Permission denied" in cli("doctor", ".", code=1)


# Regressions


def test_a_line_of_invalid_json_cannot_control_the_terminal(cli, here: Path) -> None:
    bad = '{"type":"message","id":"b","parentId":null,"timestamp":"","message":{"role":"\x1b]0;x\x07"}}'
    (here / "x.jsonl").write_text(f'{{"type":"session","version":3,"id":"\\u001b[2J"}}\n{bad}\n')

    assert "\x1b" not in cli("tree", "x.jsonl") + cli("show", "x.jsonl", "b", "--json") + cli(
        "tree", "x.jsonl", "--json"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--role", "user", "x", "--provider", "p"),
        ("--role", "assistant", "x", "--call", "c"),
        ("--role", "user", "x", "--error"),
        ("--message", "{}", "--usage", "{}"),
        ("--role", "toolResult", "x", "--custom-type", "n"),
    ],
)
def test_options_that_would_have_no_effect_are_rejected(talk, fails, arguments) -> None:
    assert "requires --role" in fails("append", "@", *arguments, code=2)


def test_an_unknown_branch_is_reported_as_a_branch(talk, fails) -> None:
    assert "branch 'nope' not found" in fails("append", "@", "--role", "user", "x", "--branch", "nope")


def test_many_processes_can_append_at_the_same_time(data, talk) -> None:
    command = [sys.executable, "-c", "from sessiontree.cli import main; main()", "append", "@", "--role", "user"]
    running = [subprocess.Popen([*command, str(number)], stdout=subprocess.DEVNULL) for number in range(8)]

    assert [process.wait() for process in running] == [0] * 8
    assert len(data("context", "@")["messages"]) == 4 + 8


@pytest.mark.parametrize(
    "arguments",
    [
        ("append", "@", "--role", "user", "x"),
        ("label", "@", "HEAD", "here"),
        ("rename", "@", "another"),
        ("branch", "@", "another"),
        ("switch", "@", "root"),
    ],
)
def test_a_moved_incomplete_last_line_is_reported(talk, capsys, arguments) -> None:
    path = st.open("@").file
    assert path is not None
    with path.open("ab") as file:
        file.write(b'{"type":"mess')

    assert run(list(arguments)) == 0

    assert "incomplete last line moved to" in capsys.readouterr().err


def test_closed_standard_input_is_reported(talk) -> None:
    script = f"{sys.executable} -c 'from sessiontree.cli import main; main()' append @ --role user - <&-"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stderr) == (
        2,
        "sessiontree: standard input is closed (see `sessiontree append --help`)\n",
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_output_is_not_an_error(closed: str, here: Path) -> None:
    for arguments in ("new --name auth --json", "append auth --role user Hello", "tree auth", "--version"):
        script = f"{sys.executable} -c 'from sessiontree.cli import main; main()' {arguments} {closed}"
        result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")
        assert bool(result.stdout) == (closed == "2>&-")
    assert [summary.message_count for summary in st.sessions()] == [1]


def test_closed_input_counts_as_no_terminal(here: Path) -> None:
    st.create("auth").close()
    for arguments, code in (("", 0), ("chat", 1), ("delete auth", 2), ("tree auth --interactive", 2)):
        script = f"{sys.executable} -c 'from sessiontree.cli import main; main()' {arguments} <&-"
        result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert result.returncode == code
        assert "internal error" not in result.stderr


@pytest.mark.parametrize("to", ["| true", "> /dev/full"])
def test_output_to_a_closed_pipe_causes_no_traceback(talk, to: str) -> None:
    for arguments in ("--version", "tree @", "log @ --json"):
        script = f"{sys.executable} -c 'from sessiontree.cli import main; main()' {arguments} {to}"
        result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert "Traceback" not in result.stderr
        assert "Exception" not in result.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_failed_write_to_standard_output_is_reported(talk, monkeypatch, unbuffered: str) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    for arguments in ("tree @", "--help", "export @ --format jsonl -o -"):
        script = f"{sys.executable} -c 'from sessiontree.cli import main; main()' {arguments} > /dev/full"
        result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (1, "sessiontree: standard output: No space left on device\n")


def test_other_errors_are_not_attributed_to_standard_output(monkeypatch, fails, talk) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("sessiontree.cli.tree.TreeDrawing", fail)

    assert fails("tree", "@") == "sessiontree: Input/output error\n"


def test_a_deleted_current_folder_is_reported(fails, here: Path) -> None:
    here.rmdir()

    assert "the current folder was deleted" in fails("doctor", ".")


def test_option_values_are_completed_for_the_given_session(data, talk) -> None:
    data("label", "@", "HEAD", "here")
    data("fork", "@", "-o", "copy.jsonl")
    data("label", "copy.jsonl", "HEAD", "there")

    assert complete("sessiontree", "log", "copy.jsonl", "--at", "the") == ["there"]
    assert complete("sessiontree", "append", "@", "--branch", "m") == ["main"]
    assert complete("sessiontree", "log", "--at", "he") == []


def test_a_session_of_a_newer_version_is_not_forked(fails, here: Path) -> None:
    (here / "new.jsonl").write_text('{"type":"session","version":9,"id":"n"}\n')

    assert "version 9" in fails("fork", "new.jsonl", "--whole")


def test_a_session_whose_name_looks_like_a_path_is_found(data) -> None:
    data("new", "--name", "a/b.jsonl")

    assert data("rename", "a/b.jsonl") == {"name": "a/b.jsonl"}


@pytest.mark.parametrize("mask", [0o277, 0o777])
def test_all_files_are_private_with_any_umask(mask: int, here: Path, home: Path) -> None:
    def run_masked(*arguments: str) -> None:
        done = run_process(*arguments, preexec_fn=lambda: os.umask(mask))
        assert done.returncode == 0, done.stderr

    run_masked("new", "--name", "a")
    run_masked("append", "a", "--role", "user", "Hello")
    run_masked("ls")
    run_masked("search", "Hello")
    run_masked("archive", "a")
    run_masked("token", "create")

    found = sorted((home / ".sessiontree").rglob("*"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in found}
    assert {"tokens.json", "index.db"} <= modes.keys()
    assert {name: oct(mode) for name, mode in modes.items() if mode not in (0o600, 0o700)} == {}


# Start-up


UNUSED_AT_START = (
    "argparse",
    "ast",
    "asyncio",
    "inspect",
    "json",
    "locale",
    "platform",
    "textwrap",
    "typing_extensions",
)
"""Modules that libraries import, but a short command does not need."""


def run_main(code: str, *arguments: str) -> str:
    """Run the command in a process, then some code, and return what that prints last."""
    script = (
        "import contextlib, sys\nfrom sessiontree import cli\n"
        f"sys.argv[1:] = {list(arguments)!r}\ncli._exit = lambda code: None\ncli.main()\n{code}"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return shown.stdout.splitlines()[-1]


@pytest.mark.parametrize("arguments", [("tree", "@"), ("context", "@"), ("branches", "@"), ("log", "@")])
def test_a_short_command_imports_no_module_that_it_does_not_need(talk: list[str], arguments: tuple[str, ...]) -> None:
    loaded = run_main("print('imported', *sys.modules)", *arguments).split()

    assert loaded[0] == "imported"
    assert [name for name in UNUSED_AT_START if name in loaded] == []


def test_modules_that_start_up_leaves_out_can_be_imported_afterwards(talk: list[str]) -> None:
    shown = run_main(
        "import inspect, gettext, platform, textwrap, msgspec, uuid, click\n"
        "class Point(msgspec.Struct):\n    x: int\n"
        "print(inspect.isfunction(run_main := lambda: 0), gettext.__spec__ is not None, platform.system(),"
        " textwrap.dedent(' a'), msgspec.json.schema(Point)['$ref'], type(msgspec.inspect.type_info(int)).__name__,"
        " uuid.uuid4().version, click.core.inspect.isfunction(print))",
        "tree",
        "@",
    )

    assert shown.split() == ["True", "True", os.uname().sysname, "a", "#/$defs/Point", "IntType", "4", "False"]


@pytest.mark.parametrize("text", ["Show it.", "  Show\tit. ", "First.\n\n    Second.\n      Third.\n", ""])
def test_the_help_of_an_option_is_cleaned_as_by_inspect(text: str) -> None:
    import inspect

    from sessiontree.cli import _clean_help

    assert _clean_help(text) == inspect.cleandoc(text)
