"""The text of entries for readers and searches, and how texts are compared."""

import pytest
from hypothesis import given

from sessiontree.core.context import build_context
from sessiontree.core.entries import BranchSummary, Compaction, ContextEdit, CustomMessage, ModelChange
from sessiontree.core.entry_text import (
    describe_execution,
    describe_stop,
    describe_summary,
    format_call_head,
    format_content,
    format_entry_row,
    format_model,
    format_readable_text,
    format_whole_body,
    get_body_text,
    get_result_diff,
    get_speaker,
)
from sessiontree.core.messages import assistant, tool_call, tool_result, user
from sessiontree.core.search_text import VisibleEntries, build_full_text, fold
from tests.builders import entry, grow, say
from tests.strategies import damaged_entry_lists


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (say("user", "plain"), "plain"),
        (say("user", [{"type": "text", "text": "a"}, {"type": "image", "data": "xx"}, 7, {"text": "b"}]), "a\nb"),
        (
            say(
                "assistant",
                [
                    {"type": "thinking", "thinking": "hm", "thinkingSignature": "zz"},
                    {
                        "type": "toolCall",
                        "id": "c",
                        "name": "edit",
                        "arguments": {"path": "p", "edits": [{"new": "n"}], "line": 4711, "all": True, "part": 0.5},
                    },
                ],
                errorMessage="odd",
            ),
            "hm\nedit\np\nn\n4711\nodd",
        ),
        (say("toolResult", [{"type": "text", "text": "out"}], toolName="read"), "out\nread"),
        (say("bashExecution", command="ls", output="a.py"), "ls\na.py"),
        (say("fileMention", files=[{"path": "p", "content": "c"}]), "p\nc"),
        (say("user", {"odd": 1}), ""),
        ({"type": "custom_message", "customType": "x", "content": "note"}, "note"),
        ({"type": "branch_summary", "summary": "left"}, "left"),
        (say("system", "be brief", sections={"tools": "use them", "gone": None}), "be brief\nuse them"),
        ({"type": "compaction", "summary": "all"}, "all"),
        (
            {"type": "compaction", "summary": "all", "systemMessage": {"content": "be brief", "sections": {"a": "b"}}},
            "all\nbe brief\nb",
        ),
        ({"type": "label", "targetId": "a", "label": "here"}, "here"),
        ({"type": "label", "targetId": "a"}, ""),
        ({"type": "session_info", "name": "auth"}, "auth"),
        ({"type": "branch_point", "branchName": "b", "description": "why"}, "b\nwhy"),
        ({"type": "agent_action", "action": "spawn", "agentId": "w", "data": {"task": ["t"]}}, "w\nspawn\nt"),
        ({"type": "custom", "customType": "todo", "data": {"items": ["one", 2, {"x": "two"}]}}, "todo\none\ntwo"),
        ({"type": "custom", "customType": "sessiontree.head", "data": {"current": "main"}}, ""),
        ({"type": "context_edit", "targetId": "a", "replacement": {"content": "new"}}, "new"),
        ({"type": "context_edit", "targetId": "a", "replacement": None}, ""),
        ({"type": "model_change", "provider": "p", "modelId": "m"}, "p\nm"),
        ({"type": "thinking_level_change", "thinkingLevel": "high"}, "high"),
        ({"type": "mode_change", "mode": "plan", "data": "d"}, "plan\nd"),
        ({"type": "ttsr_injection", "injectedRules": ["r1", "r2"]}, "r1\nr2"),
        ({"type": "usage", "kind": "warm", "note": "n"}, "warm\nn"),
        ({"type": "reset_boundary"}, ""),
        ({"type": "from_the_future", "deep": [{"x": ["y"]}], "n": 1}, "y"),
    ],
)
def test_the_full_text_has_all_text_and_no_images(body, text: str) -> None:
    assert build_full_text(entry("a", None, body)) == text


def test_the_speaker_is_the_role_of_a_message_or_the_entry_type() -> None:
    assert get_speaker(entry("a", None, say("toolResult"))) == "toolResult"
    assert get_speaker(entry("a", None, {"type": "custom_message", "customType": "x", "content": ""})) == "custom"
    assert get_speaker(entry("a", None, {"type": "label", "targetId": "a"})) == "label"
    assert get_speaker(entry("a", None, {"type": "message", "message": 7})) == "message"


def test_case_composition_and_white_space_are_not_compared() -> None:
    assert fold("Straße\n\t KÄSE") == fold("STRASSE ka\u0308se") == "strasse käse"


@given(damaged_entry_lists())
def test_any_entry_has_a_text(entries) -> None:
    for item in entries:
        assert isinstance(build_full_text(item), str)
        assert isinstance(get_speaker(item), str)


def test_edited_content_is_not_visible_but_its_replacement_is() -> None:
    tree = grow(
        "a>b>c>d>e>f>g>h",
        b=say("assistant", [{"type": "text", "text": "kept"}, {"type": "toolCall", "id": "x", "name": "read"}]),
        c=CustomMessage(custom_type="note", content=[{"type": "text", "text": "note"}]),
        d=ContextEdit(target="a", replacement={"content": "a, better"}),
        e=ContextEdit(target="b", replacement={"content": "no call"}),
        f=ContextEdit(target="c", replacement=None),
        g=ContextEdit(target="gone", replacement={"content": "of nothing"}),
        h={"type": "branch_summary", "summary": "left"},
    )

    def find_visible(leaf: str) -> str:
        context = VisibleEntries(build_context(tree, leaf))
        return "".join(entry.id for entry in tree if context.contains(entry))

    assert find_visible("c") == "abc"
    assert find_visible("d") == "bcd"
    assert find_visible("e") == "cde"
    assert find_visible("f") == find_visible("g") == "de"
    assert find_visible("h") == "deh"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (user("two\nlines"), "two\nlines"),
        (
            assistant([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}]),
            "(thinking) hm\n\nso",
        ),
        (assistant([tool_call("c", "read", {"path": "é.py"})]), '→ read({"path": "é.py"})'),
        (assistant("", stop_reason="error", error="too long"), "error: too long"),
        (tool_result("c", "read", "what it said"), "what it said"),
        (user([{"type": "image", "data": "…"}]), "[image: ?, 0 bytes]"),
        (say("user", [{"type": "audio"}, {}]), "(audio)\n\n(unknown)"),
        (say("bashExecution", command="ls", output="a.py"), "$ ls\na.py"),
        (CustomMessage(custom_type="note", content="see"), "see"),
        (Compaction(summary="all of it", tokens_before=5), "all of it"),
        (ModelChange(provider="p", model="m"), "p\nm"),
    ],
)
def test_a_reader_sees_all_parts_of_an_entry(body, words):
    assert format_readable_text(entry("a", None, body)) == words


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (user("two\nlines"), "two\nlines"),
        (say("bashExecution", command="ls", output="a.py\n"), "$ ls\na.py\n"),
        (say("bashExecution", command="true", output=""), "$ true"),
        (say("hookMessage", summary="short", text="long"), "short"),
        (say("fileMention", text="see"), "see"),
        (say("system", []), ""),
        (CustomMessage(custom_type="note", content="see"), "see"),
        (BranchSummary(summary="left", abandoned_leaf="root"), "left"),
        (ModelChange(provider="p", model="m"), None),
    ],
)
def test_the_text_of_an_entry_is_its_content_summary_or_command(body, text):
    assert get_body_text(entry("a", None, body).decode()) == text


@pytest.mark.parametrize(
    ("provider", "model", "name"),
    [("p", "m", "p/m"), (None, "m", "m"), ("unknown", "unknown", ""), (None, None, "")],
)
def test_a_model_is_named_with_its_provider_if_it_is_known(provider, model, name):
    assert format_model({"role": "assistant", "provider": provider, "model": model}) == name


@pytest.mark.parametrize(("details", "diff"), [({"diff": "+a"}, "+a"), ({"diff": 7}, ""), ({}, ""), (None, "")])
def test_a_tool_result_may_report_a_diff(details, diff):
    assert get_result_diff({"role": "toolResult", "details": details}) == diff


def test_a_reader_sees_the_json_of_an_entry_without_text():
    assert format_readable_text(entry("a", None, {"type": "reset_boundary"})).startswith('{"id":"a"')


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("bash", {"command": "ls -l"}, "$ ls -l"),
        ("read", {"path": "a.py", "offset": 10}, "read a.py offset=10"),
        ("edit", {"path": "a.py", "old_text": "x", "new_text": "y"}, "edit a.py"),
        ("write", {"path": "a.py", "content": "one"}, "write a.py, 1 line"),
        ("write", {"path": "a.py", "content": "one\ntwo\n"}, "write a.py, 2 lines"),
        ("write", {"path": "a.py", "content": ""}, "write a.py, empty"),
        ("grep", {"pattern": "def", "path": "src"}, "grep src pattern=def"),
        ("odd", "no object", "odd"),
        ("odd", {}, "odd"),
        ("fetch", {"url": "https://a.example", "note": "x" * 41, "deep": {}}, "fetch https://a.example"),
    ],
)
def test_a_call_head_has_the_main_arguments(name: str, arguments: object, line: str) -> None:
    assert format_call_head(name, arguments) == line


@pytest.mark.parametrize(
    ("body", "described"),
    [
        (Compaction(summary="s", tokens_before=12345), ("Compaction", ("12k tokens before",))),
        (Compaction(summary="s"), ("Compaction", ())),
        (BranchSummary(summary="s", abandoned_leaf="0123456789abcdef"), ("Branch summary", ("of 01234567",))),
        (BranchSummary(summary="s", abandoned_leaf="root"), ("Branch summary", ())),
    ],
)
def test_a_summary_has_a_title_and_facts(body, described):
    assert describe_summary(body) == described


@pytest.mark.parametrize(
    ("fields", "facts", "has_failed"),
    [
        ({"exitCode": 0}, ("exit code 0",), False),
        ({"exitCode": 2, "excludeFromContext": True}, ("exit code 2", "not sent to the model"), True),
        ({"cancelled": True, "truncated": True}, ("cancelled", "truncated"), True),
        ({"truncated": True, "fullOutputPath": "/tmp/all"}, ("truncated; full output in /tmp/all",), False),
    ],
)
def test_a_command_of_the_user_is_described_by_its_end(fields, facts, has_failed):
    described = describe_execution({"code": "1 + 1", "output": "2", **fields})

    assert described == ("1 + 1", "2", facts, has_failed)


@pytest.mark.parametrize(
    ("reason", "words"), [("stop", ""), ("length", "cut off at the token limit"), ("aborted", "aborted")]
)
def test_an_incomplete_answer_is_described_by_its_stop_reason(reason, words):
    assert describe_stop({"role": "assistant", "stopReason": reason}) == words


def test_content_has_a_placeholder_for_every_image():
    image = {"type": "image", "mimeType": "image/png", "data": "QUJD"}

    assert format_content([{"type": "text", "text": "see"}, image]) == "see\n[image: png, 3 bytes]"


def test_the_whole_text_of_an_entry_has_its_calls_and_its_error_or_its_data() -> None:
    call = {"type": "toolCall", "id": "1", "name": "read", "arguments": {"path": "a.py"}}
    message = {"role": "assistant", "content": [{"type": "text", "text": "Look."}, call], "errorMessage": "cut off"}

    assert format_whole_body({"message": message}).splitlines() == [
        "Look.",
        '→ read({"path": "a.py"})',
        "error: cut off",
    ]
    assert format_whole_body({"message": {"role": "user", "content": "Hi"}}) == "Hi"
    assert format_whole_body({"summary": "Short."}) == "Short."
    assert format_whole_body({"content": "A note"}) == "A note"
    assert format_whole_body({"level": "high"}) == '{\n  "level": "high"\n}'


@pytest.mark.parametrize(
    ("details", "row"),
    [
        ({"title": "Tests\npassed"}, "[note]: Tests passed"),
        ({"title": ""}, "[note]: long text"),
        ({"title": 7}, "[note]: long text"),
        ("title", "[note]: long text"),
    ],
)
def test_the_row_of_a_note_has_its_title_if_it_has_one(details, row):
    body = CustomMessage(custom_type="note", content="long text", details=details)
    assert format_entry_row(entry("a", None, body)) == row
