"""The server as a real process, with the client of the SDK and the client of fastmcp."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

import sessiontree as st
from sessiontree.adapters.langgraph import TreeSaver
from sessiontree.core.messages import assistant, user
from sessiontree.errors import ReadOnly
from sessiontree.export.redact import Redactor
from sessiontree.library.foreign_import import import_sessions
from sessiontree.mcp_server.session_access import (
    ENTRY_CHARS,
    REMOVED_CHARS,
    SECRET_CHARS,
    SessionAccess,
    _read_start,
    _read_text,
)
from sessiontree.mcp_server.stdio_server import format_path
from sessiontree.session import Session
from tests.interop.conformance import FIXTURES
from tests.reliability.harness import times
from tests.surrogates import write_hostile_files

KEY = "sk-ant-api03-" + "Ab3dEf9h" * 11 + "-AAAA"
READING = ["search_sessions", "list_sessions", "list_branches", "read_path", "read_entry", "compare_branches"]
WRITING = ["label_entry", "fork_session", "append_note"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def session(project: Path) -> Iterator[Session]:
    with st.create("cache") as made:
        made.append(user("How do I cache the parser?"))
        start = made.append(assistant(f"Use a dictionary. The key is {KEY}."))
        made.append(user("Try something else"))
        made.create_branch("redis", at=start, current=False).append(assistant("Use redis as a cache."))
        made.label(start, "start")
        yield made


@pytest.fixture
def foreign_session(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    other = tmp_path / "other"
    other.mkdir()
    with st.create("elsewhere", cwd=other) as made:
        made.append(user("A cache in another folder"))
        return made.id


def build_parameters(*options: str) -> Any:
    from mcp.client.stdio import StdioServerParameters

    env = {name: os.environ[name] for name in ("HOME", "SESSIONTREE_HOME", "PATH")}
    return StdioServerParameters(
        command=sys.executable, args=["-m", "sessiontree", "mcp", "serve", *options], env=env, cwd=os.getcwd()
    )


def connect(*options: str) -> Any:
    from mcp.client.client import Client

    return Client(build_parameters(*options))


def assistant_call(name: str, arguments: dict[str, Any]) -> Any:
    return assistant([{"type": "toolCall", "id": "c1", "name": name, "arguments": arguments}])


def get_text(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


async def test_a_client_searches_and_reads_without_secrets(session: Session, foreign_session: str) -> None:
    async with connect() as client:
        tools = (await client.list_tools()).tools
        found = await client.call_tool("search_sessions", {"query": "cache"})
        path = await client.call_tool("read_path", {"session": "cache", "place": "start"})
        by_key = await client.call_tool("search_sessions", {"query": "key"})

        assert [tool.name for tool in tools] == READING
        assert all(tool.annotations.read_only_hint for tool in tools)
        matches = found.structured_content["matches"]
        assert [(item["branch"], item["inContext"], item["role"]) for item in matches] == [
            ("redis", False, "assistant"),
            ("main", True, "user"),
            ("main", False, "session_info"),
        ]
        assert {item["session"] for item in matches} == {session.id}
        assert "branch redis, not in context: Use redis as a cache." in get_text(found)
        assert [item["role"] for item in path.structured_content["entries"]][1:] == ["user", "assistant"]
        assert "[start]" in get_text(path)
        for result in (path, by_key):
            assert KEY not in result.model_dump_json()
            assert "[redacted token]" in get_text(result)


def test_a_path_has_the_conversation_without_the_bookkeeping_of_adapters(project: Path) -> None:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("model", lambda _: {"messages": [AIMessage("Rain")]})
    builder.add_edge(START, "model")
    graph = builder.compile(checkpointer=TreeSaver())
    for question in ("Ulm?", "Bonn?"):
        graph.invoke({"messages": [HumanMessage(question)]}, {"configurable": {"thread_id": "trip"}})
    with st.open("trip") as saved:
        count = sum(entry.type == "custom" for entry in saved.head.path())
    access = SessionAccess(os.getcwd())

    whole = access.read_path("trip")
    last = access.read_path("trip", limit=2)
    first = access.read_path("trip", last["earlier"], limit=2)

    assert [item["text"] for item in whole["entries"] if item["role"] in ("user", "assistant")] == [
        "Ulm?",
        "Rain",
        "Bonn?",
        "Rain",
    ]
    assert {item["role"] for item in whole["entries"]} <= {"user", "assistant", "session_info"}
    assert [item["text"] for item in last["entries"]] == ["Bonn?", "Rain"]
    assert [item["text"] for item in first["entries"]] == ["Ulm?", "Rain"]
    assert whole["leftOut"] == count > 4
    assert f"[left out: {count} entries with state of extensions]" in format_path(whole)


def test_a_search_does_not_confirm_guesses_of_a_secret(session: Session) -> None:
    session.append(assistant_call("login", {"password": "hunter2-Qx7"}))
    access = SessionAccess(os.getcwd())

    for guess in (KEY[:20], KEY[20:40], "hunter2", "dictionary " + KEY[:16]):
        assert access.search(guess, limit=1) == {"matches": [], "nextOffset": None}
    assert len(access.search("dictionary")["matches"]) == 1
    assert len(access.search("login")["matches"]) == 1
    assert len(access.search("role:user")["matches"]) == 2


def test_matches_in_secrets_do_not_use_up_a_page(session: Session) -> None:
    for _ in range(3):
        session.append(user(f"Again {KEY}"))

    found = SessionAccess(os.getcwd()).search("sk", limit=1)

    assert [item["snippet"] for item in found["matches"]] == []
    session.append(user("ask me"))
    session.append(user(f"Again {KEY}"))
    found = SessionAccess(os.getcwd()).search("sk", limit=1)
    assert [item["snippet"] for item in found["matches"]] == ["ask me"]
    assert found["nextOffset"] is None


def test_a_first_message_that_is_cut_off_inside_a_secret_does_not_show_its_start(project: Path) -> None:
    with st.create() as made:
        made.append(user("word " * 36 + KEY))

    (listed,) = SessionAccess(os.getcwd()).list_sessions()["sessions"]

    assert listed["firstMessage"] == ("word " * 36).strip() + "…"


class CountingRedactor(Redactor):
    """Counts the characters that it searches."""

    searched = 0

    def redact_text(self, text: str) -> str:
        self.searched += len(text)
        return super().redact_text(text)


def test_only_the_start_of_a_text_of_many_megabytes_is_redacted(project: Path) -> None:
    with st.create("huge") as made:
        entry = made.append(user(f"The key is {KEY}. " + "line after line\n" * 2_000_000))
    redactor = CountingRedactor()

    text, length = _read_start(entry, redactor, ENTRY_CHARS)

    assert redactor.searched < 1_000_000
    assert text.startswith("The key is [redacted token]. line after line")
    assert (len(text), length) == (ENTRY_CHARS, len(entry.text))
    page = SessionAccess(os.getcwd()).read_entry("huge", entry.id)
    assert (page["length"], page["nextOffset"]) == (length, len(page["text"]))


@pytest.mark.parametrize("count", [1, 5, 3000, 6000])
@pytest.mark.parametrize("before", [0, SECRET_CHARS + REMOVED_CHARS + ENTRY_CHARS - 50])
def test_a_start_has_no_part_of_a_secret_however_much_is_removed(count: int, before: int) -> None:
    text = "x " * (before // 2) + f"key {KEY} " * count + "end " * 100_000
    for entry in (
        st.memory().append(user(text)),
        st.memory().append(assistant_call("run", {"password": "hunter2-Qx7", "text": text, "list": ["a", text]})),
    ):
        start, _ = _read_start(entry, Redactor(), ENTRY_CHARS)

        assert start[:ENTRY_CHARS] == _read_text(entry, Redactor())[:ENTRY_CHARS]


async def test_errors_are_redacted(session: Session) -> None:
    async with connect() as client:
        missing = await client.call_tool("read_path", {"session": "cache", "place": KEY})
        with pytest.raises(Exception, match="redacted") as raised:
            await client.read_resource(f"sessiontree://sessions/{KEY}")

    assert missing.is_error
    assert KEY not in get_text(missing) + str(raised.value)
    assert "[redacted token]" in get_text(missing)


async def test_the_client_of_fastmcp_reads_resources_and_compares(session: Session) -> None:
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport

    given = build_parameters()
    transport = StdioTransport(given.command, given.args, env=given.env, cwd=str(given.cwd))
    async with Client(transport) as client:
        listed = await client.list_resources()
        templates = await client.list_resource_templates()
        whole = await client.read_resource(f"sessiontree://sessions/{session.id}")
        entry = await client.read_resource(f"sessiontree://sessions/{session.id}/entries/{session.head.leaf}")
        compared = await client.call_tool(
            "compare_branches", {"session": "@", "places": ["main", "redis"], "metric": "entries"}
        )
        branches = await client.call_tool("list_branches", {"session": session.id[-8:]})

    assert f"sessiontree://sessions/{session.id}" in {str(resource.uri) for resource in listed}
    assert len(templates) == 2
    assert "How do I cache the parser?" in whole[0].text
    assert KEY not in whole[0].text
    assert "Try something else" in entry[0].text
    assert [item["name"] for item in compared.structured_content["branches"]] == ["main", "redis"]
    assert [item["name"] for item in branches.structured_content["branches"]] == ["main", "redis"]
    assert branches.structured_content["labels"][0]["label"] == "start"


async def test_sessions_of_other_folders_exist_only_with_all(session: Session, foreign_session: str) -> None:
    async with connect() as client:
        hidden = await client.call_tool("read_path", {"session": foreign_session})
        as_path = await client.call_tool("read_path", {"session": str(session.file)})
    async with connect("--all") as client:
        shown = await client.call_tool("read_path", {"session": foreign_session})
        found = await client.call_tool("search_sessions", {"query": "cache"})

    assert hidden.is_error
    assert "not found; list_sessions shows the sessions in this folder" in get_text(hidden)
    assert as_path.is_error
    assert "A cache in another folder" in get_text(shown)
    assert foreign_session in {item["session"] for item in found.structured_content["matches"]}


async def test_writing_needs_the_option_and_two_clients_write_at_once(session: Session) -> None:
    before = session.store.read_end()
    async with connect() as client:
        refused = await client.call_tool("append_note", {"session": "cache", "text": "no"})
        assert refused.is_error
        assert session.store.read_end() == before
    async with connect("--allow-write") as one, connect("--allow-write") as two:
        assert [tool.name for tool in (await one.list_tools()).tools] == READING + WRITING
        for number in range(3):
            for client in (one, two):
                done = await client.call_tool("append_note", {"session": "cache", "text": f"note {number}"})
                assert not done.is_error, get_text(done)
        labelled = await two.call_tool("label_entry", {"session": "cache", "place": "HEAD", "label": "end"})
        forked = await one.call_tool("fork_session", {"session": "cache", "place": "start", "name": "again"})

    session.refresh()
    texts = [entry.body.content for entry in session.head.path() if entry.type == "custom_message"]  # type: ignore[attr-defined]
    assert texts == [f"note {number}" for number in range(3) for _ in "ab"]
    assert labelled.structured_content["label"] == "end"
    with st.open(forked.structured_content["session"]) as copy:
        assert copy.name == "again"
        assert len([entry for entry in copy.head.path() if entry.type == "message"]) == 2


@contextmanager
def run_raw(*lines: str) -> Iterator[tuple[list[str], int]]:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "sessiontree", "mcp", "serve"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    yield done.stdout.splitlines(), done.returncode


def test_rubbish_on_standard_input_is_an_error_and_the_server_ends_with_its_input(session: Session) -> None:
    with run_raw("rubbish", '{"jsonrpc": "2.0", "id": 1, "method": "nope"}') as (answers, code):
        assert code == 0
        assert all(line.startswith("{") for line in answers)
        assert any('"id":1' in line and '"error"' in line for line in answers)


async def test_a_session_with_invalid_unicode_ends_neither_the_server_nor_the_search(session: Session) -> None:
    assert session.file is not None
    hostile = write_hostile_files(Path(session.file).parent, Path.cwd())
    found: set[str] = set()
    async with connect() as client:
        for offset in range(0, len(hostile) + 1, 50):
            page = await client.call_tool("list_sessions", {"limit": 50, "offset": offset})
            found |= {item["session"] for item in page.structured_content["sessions"]}
        assert session.id in found
        assert len(found) > 100
        matches = await client.call_tool("search_sessions", {"query": "redis OR hello", "limit": 50})
        assert not matches.is_error
        for name in sorted(found)[:: times(8, torture=1)]:
            for tool, arguments in (("read_path", {}), ("list_branches", {}), ("read_entry", {"entry": "HEAD"})):
                assert get_text(await client.call_tool(tool, {"session": name, **arguments}))
        assert (await client.list_resources()).resources


def test_an_import_stands_for_its_original(project: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    shutil.copytree(FIXTURES / "claude/rewind/projects", home / ".claude/projects")
    (home / ".sessiontree").mkdir()
    (home / ".sessiontree/config.toml").write_text('[sources]\nshow = ["claude"]\n')
    access = SessionAccess(str(project), everywhere=True, can_write=True)
    [original] = access.list_sessions()["sessions"]
    with pytest.raises(ReadOnly):
        access.append_note(original["session"], "Remember")

    list(import_sessions("claude"))
    found = access.search("question")["matches"]
    access.append_note(original["session"], "Remember")

    assert (original["program"], len({match["entry"] for match in found})) == ("claude", len(found))
    assert access.read_path(original["session"])["entries"][-1]["text"] == "Remember"
