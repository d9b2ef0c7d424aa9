"""Structured output: let the model answer with a value of a given type.

The model gets one more tool, whose arguments are the answer. If it writes JSON as text instead, that is accepted too. A
wrong answer is returned to the model once, with the problem.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput
from sessiontree.agent.typed_values import InvalidValue, build_check, get_type_name
from sessiontree.core.entries import CustomMessage
from sessiontree.core.messages import is_object
from sessiontree.errors import SessionTreeError

TOOL_NAME = "final_answer"
CUSTOM_TYPE = "output_request"
"""The type of the message that asks the model to answer again."""
MAX_WRONG_ANSWERS = 2
"""The run ends with an error at this number of wrong answers."""


class InvalidOutput(SessionTreeError):
    """The model did not answer with a value of the expected type."""

    def __init__(self, expected: str, problem: str) -> None:
        super().__init__(f"the answer is not of the type {expected}: {problem}")
        self.expected = expected
        self.problem = problem


class _OutputTool(Tool):
    """Leaves the check of its arguments to `run`, which counts wrong answers."""

    def parse(self, arguments: Any) -> Any:
        return arguments


class StructuredOutput:
    """The expected type of one run, and the answer once the model has given it."""

    def __init__(self, kind: Any) -> None:
        """Raises `InvalidOperation` if the type has no JSON schema."""
        self._name = get_type_name(kind)
        self._check = build_check(kind, f"{self._name} cannot be an output type")
        self._is_object = self._check.schema.get("type") == "object"
        self.value: Any = UNSET
        self._wrong_answers = 0
        self._problem = "the model gave no answer"
        schema = self._check.schema
        self.tool: Tool = _OutputTool(
            name=TOOL_NAME,
            description="Give your final answer with this tool. Call it once, when you are done.",
            parameters=schema if self._is_object else _wrap_schema(schema),
            run=self._accept,
            does="reads",
        )

    @property
    def is_over(self) -> bool:
        """Whether there is an answer, or there were too many wrong ones."""
        return self.value is not UNSET or self._wrong_answers >= MAX_WRONG_ANSWERS

    def build_error(self) -> InvalidOutput | None:
        """Return the error of a run that ended without an answer."""
        return None if self.value is not UNSET else InvalidOutput(self._name, self._problem)

    async def _accept(self, context: ToolContext) -> ToolOutput:
        self._parse(context.arguments)
        return ToolOutput(content="Done.")

    def _parse(self, given: Any) -> None:
        """Keep the answer. Raises `ToolError` with the problem if it is wrong."""
        if not self._is_object and is_object(given) and list(given) == ["value"]:
            given = given["value"]
        try:
            self.value = self._check.parse(given)
        except InvalidValue as error:
            self._wrong_answers += 1
            self._problem = str(error)
            raise ToolError(f"the answer is not of the type {self._name}: {error}") from error

    def read_text(self, text: str) -> CustomMessage | None:
        """Read an answer that is JSON as text. Return the message that asks for another answer if it is wrong."""
        try:
            given = msgspec.json.decode(_strip_fence(text))
        except (msgspec.DecodeError, UnicodeEncodeError):
            self._wrong_answers += 1
            self._problem = "the model answered with text"
            problem = "Your answer was not given with the tool."
        else:
            try:
                self._parse(given)
                return None
            except ToolError as error:
                problem = f"{str(error)[:1].upper()}{str(error)[1:]}."
        if self.is_over:
            return None
        request = f"{problem} Call the tool {TOOL_NAME} with your final answer."
        return CustomMessage(custom_type=CUSTOM_TYPE, content=request, display=False)


def _wrap_schema(schema: Any) -> Any:
    """Return the schema of an object that holds the value: arguments of a tool are always an object."""
    return {"type": "object", "properties": {"value": schema}, "required": ["value"], "additionalProperties": False}


def _strip_fence(text: str) -> str:
    """Return the text without the Markdown fence that models put around JSON."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```"):
        return stripped.removesuffix("```").partition("\n")[2]
    return stripped
