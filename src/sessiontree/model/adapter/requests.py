"""Converts a conversation in wire form to the messages of pydantic_ai."""

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
from sessiontree.core.messages import coerce_string, extract_text, get_role, is_object, iter_blocks
from sessiontree.model.adapter.message_parts import build_parts
from sessiontree.model.base import ModelInfo, Request, ToolSpec
from sessiontree.model.providers import ApiKind
from sessiontree.model.request_cleanup import CallIds, Image, ImageFilter, clean_json, clean_name, clean_text

REPORTS_TOOL_FAILURES = frozenset({ApiKind.ANTHROPIC, ApiKind.GOOGLE})
"""Protocols that can mark a tool result as failed. With the others, the text of the result is clearer than JSON around
it."""


def build_tool_definition(tool: ToolSpec) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name, description=clean_text(tool.description), parameters_json_schema=clean_json(tool.parameters)
    )


def build_messages(request: Request, info: ModelInfo, model: PydanticModel) -> list[ModelMessage]:
    images, ids = ImageFilter(request.messages, accepts_images=info.images), CallIds()
    sent: list[ModelMessage] = []

    def add_request_part(part: ModelRequestPart) -> None:
        if sent and isinstance(sent[-1], ModelRequest):
            sent[-1].parts = [*sent[-1].parts, part]
        else:
            sent.append(ModelRequest(parts=[part]))

    if request.system.strip():
        add_request_part(SystemPromptPart(clean_text(request.system)))
    for message in request.messages:
        match get_role(message):
            case "assistant":
                parts = build_parts(message, info, model.system, ids)
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
                add_request_part(_build_tool_return(message, images, ids, info.api))
            case "system":
                words = _build_system_text(message)
                if words.strip():
                    add_request_part(SystemPromptPart(words))
            case _:
                add_request_part(UserPromptPart(_build_content(message, images)))
    return sent


def _build_content(message: JsonObject, images: ImageFilter) -> str | list[UserContent]:
    """Return the text, and the images if there are any. The content is never empty, because providers reject that."""
    content: list[UserContent] = []
    for block in iter_blocks(message.get("content")):
        if block.get("type") == "image":
            image = images.prepare(block)
            content.append(
                BinaryContent(image.data, media_type=image.media_type) if isinstance(image, Image) else image
            )
        elif block.get("type") == "text" and coerce_string(block.get("text")).strip():
            content.append(clean_text(coerce_string(block.get("text"))))
    if all(isinstance(item, str) for item in content):
        return "\n".join(map(str, content)) or "(nothing)"
    return content


def _build_tool_return(message: JsonObject, images: ImageFilter, ids: CallIds, api: str) -> ToolReturnPart:
    failed = message.get("isError") is True and api in REPORTS_TOOL_FAILURES
    return ToolReturnPart(
        tool_name=clean_name(coerce_string(message.get("toolName"))),
        content=_build_content(message, images),
        tool_call_id=ids.match_result(coerce_string(message.get("toolCallId")).partition("|")[0]),
        outcome="failed" if failed else "success",
    )


def _build_system_text(message: JsonObject) -> str:
    sections = message.get("sections")
    texts = [
        extract_text(message.get("content")),
        *(map(coerce_string, sections.values()) if is_object(sections) else ()),
    ]
    return clean_text("\n\n".join(words for words in texts if words))
