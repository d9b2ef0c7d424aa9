"""The todo tool: what the model may send, and what the user sees."""

from __future__ import annotations

import pytest

import sessiontree as st
from sessiontree.agent.tools.todo_tool import format_item, read_items, todo
from sessiontree.core.messages import ToolCall
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Session

ITEMS = [{"text": "Read", "status": "done"}, {"text": "Write\nit", "status": "in_progress"}, {"text": "Test"}]


async def test_a_call_returns_the_list_without_a_question() -> None:
    session = st.memory()
    model = ScriptedModel([[ToolCall("c", "todo", {"items": ITEMS})], "Done."])

    await st.Agent(session.head, model, [todo]).run("Go")

    assert read_result(session) == "☑ Read\n▶ Write it\n☐ Test"
    assert todo.does == "reads"


async def test_a_wrong_call_is_refused() -> None:
    session = st.memory()
    model = ScriptedModel([[ToolCall("c", "todo", {"items": [{"text": "a", "status": "maybe"}]})], "Sorry."])

    await st.Agent(session.head, model, [todo]).run("Go")

    assert "invalid arguments for todo" in read_result(session)


def read_result(session: Session) -> str:
    [result] = [entry.text for entry in session.head.path() if "'role': 'toolResult'" in str(entry.body)]
    return result


@pytest.mark.parametrize("arguments", [None, {}, {"items": "x"}, {"items": [{"status": "done"}]}, [1]])
def test_an_invalid_stored_call_has_no_items(arguments: object) -> None:
    assert read_items(arguments) == []


def test_items_are_one_line_each() -> None:
    [first, second, third] = read_items({"items": ITEMS})

    assert [format_item(item) for item in (first, second, third)] == ["☑ Read", "▶ Write it", "☐ Test"]
