"""Outgoing: a conversation in wire form as the messages that providers take."""

from __future__ import annotations

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model as PydanticModel
from pydantic_ai.tools import ToolDefinition

from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import blocks, is_object, role, string, text
from sessiontree.model.adapter.parts import parts_of
from sessiontree.model.base import ModelInfo, Request, ToolSpec
from sessiontree.model.cleaning import CallIds, Image, Images, clean_json, clean_name, clean_text
from sessiontree.model.providers import Api

TELLS_FAILURES = frozenset({Api.ANTHROPIC, Api.GOOGLE})
"""Protocols with a way to say that a tool failed; elsewhere its words say so better than JSON round them."""


def tool_definition(tool: ToolSpec) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name, description=clean_text(tool.description), parameters_json_schema=clean_json(tool.parameters)
    )


def outgoing(request: Request, info: ModelInfo, model: PydanticModel) -> list[ModelMessage]:
    images, ids = Images(request.messages, taken=info.images), CallIds()
    sent: list[ModelMessage] = []

    def ask(part: ModelRequestPart) -> None:
        if sent and isinstance(sent[-1], ModelRequest):
            sent[-1].parts = [*sent[-1].parts, part]
        else:
            sent.append(ModelRequest(parts=[part]))

    if request.system.strip():
        ask(SystemPromptPart(clean_text(request.system)))
    for message in request.messages:
        match role(message):
            case "assistant":
                parts = parts_of(message, info, model.system, ids)
                if parts:
                    sent.append(
                        ModelResponse(
                            parts=parts,
                            model_name=info.model,
                            provider_name=model.system,
                            provider_url=model.base_url,
                            canonical_system=model.canonical_system,
                        )
                    )
            case "toolResult":
                ask(_tool_return(message, images, ids, info.api))
            case "system":
                words = _system_text(message)
                if words.strip():
                    ask(SystemPromptPart(words))
            case _:
                ask(UserPromptPart(_content(message, images)))
    return sent


def _content(message: JsonObject, images: Images) -> str | list[UserContent]:
    """Text, and images where there are any; never nothing, which no provider takes."""
    made: list[UserContent] = []
    for block in blocks(message.get("content")):
        if block.get("type") == "image":
            image = images.sent(block)
            made.append(BinaryContent(image.data, media_type=image.media_type) if isinstance(image, Image) else image)
        elif block.get("type") == "text" and string(block.get("text")).strip():
            made.append(clean_text(string(block.get("text"))))
    if all(isinstance(item, str) for item in made):
        return "\n".join(map(str, made)) or "(nothing)"
    return made


def _tool_return(message: JsonObject, images: Images, ids: CallIds, api: str) -> ToolReturnPart:
    failed = message.get("isError") is True and api in TELLS_FAILURES
    return ToolReturnPart(
        tool_name=clean_name(string(message.get("toolName"))),
        content=_content(message, images),
        tool_call_id=ids.answered(string(message.get("toolCallId")).partition("|")[0]),
        outcome="failed" if failed else "success",
    )


def _system_text(message: JsonObject) -> str:
    sections = message.get("sections")
    said = [text(message.get("content")), *(map(string, sections.values()) if is_object(sections) else ())]
    return clean_text("\n\n".join(words for words in said if words))
