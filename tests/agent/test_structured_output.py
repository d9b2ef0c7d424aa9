"""Typed answers: the model answers with a value of the type that the caller asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel, Field

import sessiontree as st
from sessiontree.agent.structured_output import InvalidOutput
from sessiontree.config import PermissionMode
from sessiontree.errors import InvalidOperation
from sessiontree.model.scripted import ScriptedModel
from tests.agent.conftest import format_messages, get_scripted_model


class City(BaseModel):
    name: str
    people: int = Field(ge=1)


@dataclass
class Point:
    x: int
    y: int


class Pair(msgspec.Struct):
    left: Point
    right: Point


def answer(**arguments: Any) -> st.ToolCall:
    return st.ToolCall("c1", "final_answer", arguments)


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (City, {"name": "Rome", "people": 3}, City(name="Rome", people=3)),
        (Point, {"x": 1, "y": 2}, Point(1, 2)),
        (Pair, {"left": {"x": 1, "y": 2}, "right": {"x": 3, "y": 4}}, Pair(Point(1, 2), Point(3, 4))),
        (int, {"value": 5}, 5),
        (bool, {"value": False}, False),
        (list[City], {"value": [{"name": "Rome", "people": 3}]}, [City(name="Rome", people=3)]),
        (Point | None, {"value": None}, None),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Annotated[int, Field(ge=1)], {"value": 1}, 1),
    ],
)
def test_the_answer_is_a_value_of_the_type(kind: Any, given: dict[str, Any], value: Any) -> None:
    agent = st.Agent(model=ScriptedModel([answer(**given)]))
    result = agent.run_sync("Go", output=kind)

    assert result.ok
    assert result.output == value
    assert type(result.output) is type(value)
    assert format_messages(agent.branch)[-1] == "toolResult: Done."


def test_the_model_gets_the_schema_only_in_this_run() -> None:
    agent = st.Agent(model=ScriptedModel([answer(name="Rome", people=3), "Yes."]))
    agent.run_sync("Go", output=City)
    agent.run_sync("And now?")

    first, second = get_scripted_model(agent).requests
    assert [tool.name for tool in first.tools] == ["final_answer"]
    assert first.tools[0].parameters["properties"]["people"] == {"minimum": 1, "type": "integer"}
    assert second.tools == ()


def test_a_wrong_answer_is_returned_to_the_model_once() -> None:
    agent = st.Agent(model=ScriptedModel([answer(name="Rome", people=0), answer(name="Rome", people=3)]))

    assert agent.run_sync("Go", output=City).output == City(name="Rome", people=3)
    assert format_messages(agent.branch)[2] == (
        "toolResult: the answer is not of the type City: Input should be greater than or equal to 1 - at `people`"
    )


def test_a_second_wrong_answer_ends_the_run_with_an_error() -> None:
    agent = st.Agent(model=ScriptedModel([answer(), answer(name="Rome"), "Never."]))
    result = agent.run_sync("Go", output=City)

    assert isinstance(result.error, InvalidOutput)
    assert str(result.error) == "the answer is not of the type City: Field required - at `people`"
    with pytest.raises(InvalidOutput):
        result.output  # noqa: B018
    assert len(get_scripted_model(agent).requests) == 2


@pytest.mark.parametrize("text", ['{"name": "Rome", "people": 3}', '```json\n{"name": "Rome", "people": 3}\n```'])
def test_json_as_text_is_an_answer_too(text: str) -> None:
    assert st.Agent(model=ScriptedModel([text])).run_sync("Go", output=City).output == City(name="Rome", people=3)


def test_a_model_that_answers_with_text_is_asked_again() -> None:
    agent = st.Agent(model=ScriptedModel(["It is Rome.", answer(name="Rome", people=3)]))

    assert agent.run_sync("Go", output=City).output.name == "Rome"
    (request,) = [entry.body for entry in agent.branch.path() if entry.type == "custom_message"]
    assert isinstance(request, st.CustomMessage)
    assert (
        request.content == "Your answer was not given with the tool. Call the tool final_answer with your final answer."
    )


def test_a_model_that_only_answers_with_text_fails() -> None:
    result = st.Agent(model=ScriptedModel(["It is Rome.", "Rome."])).run_sync("Go", output=City)

    assert str(result.error) == "the answer is not of the type City: the model answered with text"
    assert result.text == "Rome."


def test_other_tools_run_before_the_answer() -> None:
    def look(name: str) -> int:
        """Count people."""
        return 3

    calls = [st.ToolCall("c0", "look", {"name": "Rome"}), answer(name="Rome", people=3)]
    agent = st.Agent(model=ScriptedModel(calls), tools=[look])

    assert agent.run_sync("Go", output=City).output.people == 3


@pytest.mark.parametrize("mode", ["read-only", "ask", "allow-edits", "allow-all"])
def test_permissions_do_not_deny_the_answer(mode: PermissionMode) -> None:
    permissions = st.Permissions(mode=mode)
    agent = st.Agent(model=ScriptedModel([answer(value=5)]), permissions=permissions)

    assert agent.run_sync("Go", output=int).output == 5


def test_text_as_output_type_is_the_text() -> None:
    assert st.Agent(model=ScriptedModel(["Hello."])).run_sync("Go", output=str).output == "Hello."


def test_a_type_without_a_schema_is_refused() -> None:
    class Plain:
        pass

    with pytest.raises(InvalidOperation, match=r"^Plain cannot be an output type: "):
        st.Agent(model=ScriptedModel([])).run_sync("Go", output=Plain)
