"""The SQLite sessions of the OpenAI Agents SDK."""

import json

from sessiontree.export.snapshot import read_snapshot
from sessiontree.interop import openai_agents
from sessiontree.interop.base import FileHead, MemoryFile
from tests.interop.conformance import FIXTURES, describe_branch, detect, read_file

SESSIONS = FIXTURES / "openai-agents" / "sessions.sql"
BRANCHES = FIXTURES / "openai-agents" / "branches.sql"


def test_every_session_of_a_database_is_read() -> None:
    assert detect(SESSIONS) is openai_agents.FORMAT
    plain, chat = read_file(SESSIONS)

    assert (plain.id, chat.id) == ("plain-1", "chat-2")
    assert plain.problems == chat.problems == []
    messages = describe_branch(read_snapshot(plain.lines), "main")
    assert [message["role"] for message in messages].count("tool") == 4
    assert messages[9]["thinking"] == "I weigh it."
    assert messages[-2] == {"role": "user", "text": "What is this?", "images": 1}
    talk = describe_branch(read_snapshot(chat.lines), "main")
    assert [message.get("text") for message in talk][-2:] == ["Bye", "Answer to: Bye"]


def test_results_name_the_tool_and_the_stored_call() -> None:
    snapshot = read_snapshot(read_file(SESSIONS)[0].lines)

    results = [entry.message.raw for entry in snapshot.get_path() if entry.message and entry.role == "toolResult"]
    assert {result["toolName"] for result in results} == {"bash"}
    assert snapshot.problems == ()  # every call is answered


def test_the_model_of_a_chat_answer_is_kept() -> None:
    snapshot = read_snapshot(read_file(SESSIONS)[1].lines)

    answer = snapshot.get_path()[-1]
    assert answer.message is not None
    assert answer.message.raw["model"] == "loop"


def test_branches_share_the_messages_before_they_part() -> None:
    [conversation] = read_file(BRANCHES)
    snapshot = read_snapshot(conversation.lines)

    assert list(snapshot.heads.heads) == ["main", "second-try"]
    main, other = (snapshot.tree.path(snapshot.heads.heads[name]) for name in ("main", "second-try"))
    assert [entry.id for entry in main[:2]] == [entry.id for entry in other[:2]]
    assert other[2].text == "Question two, second try"
    assert snapshot.heads.current == "main"


def test_the_usage_of_a_turn_is_on_its_last_answer() -> None:
    [conversation] = read_file(BRANCHES)
    snapshot = read_snapshot(conversation.lines)

    totals = [entry.usage.total for entry in snapshot.get_path() if entry.usage and entry.usage.total]
    assert totals == [31, 259, 228]


def test_an_item_that_cannot_be_read_is_kept() -> None:
    items = [{"role": "user", "content": "hi"}, {"type": 3}, {"role": "user", "content": "still there"}]
    tables = {
        "agent_sessions": [{"session_id": "s"}],
        "agent_messages": [
            {"id": number, "session_id": "s", "message_data": json.dumps(item)} for number, item in enumerate(items)
        ],
    }

    [conversation] = openai_agents.read(MemoryFile("s.db", tables=tables), [])

    texts = [message["text"] for message in describe_branch(read_snapshot(conversation.lines), "main")]
    assert texts == ["hi", "still there"]
    assert [problem.kind for problem in conversation.problems] == ["unsent"]


def test_other_databases_are_not_detected() -> None:
    assert not openai_agents.detect(FileHead(name="a.db", tables={"agent_sessions": ["session_id"]}))


def test_the_original_of_a_session_is_its_own_rows() -> None:
    original = json.loads(read_file(SESSIONS)[1].original or b"")

    assert [row["session_id"] for row in original["agent_sessions"]] == ["chat-2"]
    assert {row["session_id"] for row in original["agent_messages"]} == {"chat-2"}
