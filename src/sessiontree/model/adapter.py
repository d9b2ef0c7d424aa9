"""The adapter to model providers: the one module that imports pydantic_ai.

It is imported when a provider's model is first asked for, because that takes long. Messages go out of wire form and
answers come back into it; what identifies a thought, a text or a call to its provider is kept as peers keep it, and
given back to the same model only.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from pydantic_ai import exceptions as failures
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model as PydanticModel
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.settings import ModelSettings as RequestSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from sessiontree.config import ModelSettings, Prices
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import ToolCall, blocks, full_usage, is_object, role, string, text
from sessiontree.model.base import (
    UNKNOWN_WINDOW,
    Failure,
    Finished,
    ModelError,
    ModelEvent,
    ModelInfo,
    Request,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from sessiontree.model.cleaning import Image, Images, clean_id, clean_json, clean_name, clean_text
from sessiontree.model.providers import COMPATIBLE, Target, known_limits

OWN_ADDRESS = frozenset({"anthropic", "google", "groq", "mistral", "ollama"})
"""Providers with a protocol of their own, at whatever address; at another address the rest are OpenAI-compatible."""

TAKES_IMAGES = frozenset({"openai", "anthropic", "google", "xai", "x-ai"})
"""Whose word that a model takes images is trusted; of the rest nothing is known, so it takes to be said."""

STOPS = {"stop": "stop", "length": "length", "tool_call": "toolUse", "content_filter": "error", "error": "error"}


class ProviderModel:
    """A model of a provider, as sessiontree asks it."""

    def __init__(self, target: Target, settings: ModelSettings | None = None) -> None:
        self._target = target
        self._settings = ModelSettings() if settings is None else settings
        # Connections belong to the loop that opened them.
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, PydanticModel] = WeakKeyDictionary()
        self._unused: PydanticModel | None = _made(target, self._settings)
        self._info = _info(target, self._settings, self._unused)

    @property
    def info(self) -> ModelInfo:
        return self._info

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        model = self._here()
        try:
            async with model_request_stream(
                model,
                _outgoing(request, self._info, model),
                model_settings=self._request_settings(request),
                model_request_parameters=ModelRequestParameters(function_tools=[*map(_tool, request.tools)]),
            ) as stream:
                incoming = _Incoming()
                async for event in stream:
                    for ours in incoming.events(event):
                        yield ours
                response = stream.get()
        except Exception as error:
            raise failure(self._info.name, error) from error
        if not _is_whole(response, self._info.api):
            raise ModelError(self._info.name, "network", "the answer ended before it was whole")
        yield Finished(answer(response, self._info))

    def _request_settings(self, request: Request) -> RequestSettings:
        info = self._info
        settings = RequestSettings(max_retries=0)  # trying again is the business of `retry`
        limits = [limit for limit in (request.max_tokens, info.output_limit) if limit is not None]
        if limits and (request.max_tokens or self._settings.output_limit):  # unasked, a provider knows better
            settings["max_tokens"] = min(limits)
        if info.thinking:
            settings["thinking"] = False if request.thinking == "off" else request.thinking  # pyright: ignore[reportGeneralTypeIssues]
        if info.api == "anthropic-messages":
            settings["cache"] = True  # others do it unasked
        return settings

    def _here(self) -> PydanticModel:
        loop = asyncio.get_running_loop()
        model = self._by_loop.get(loop)
        if model is None:
            model = self._by_loop[loop] = self._unused or _made(self._target, self._settings)
            self._unused = None
        return model


def _made(target: Target, settings: ModelSettings) -> PydanticModel:
    name, key, url = target.provider, target.key, target.base_url
    try:
        if target.api == COMPATIBLE and url is not None and name not in OWN_ADDRESS:
            from pydantic_ai.models.openai import OpenAIChatModel
            from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

            compatible = OpenAICompatibleProvider(name, base_url=url, api_key=key or "none")
            profile: Any = None if settings.thinking is None else {"supports_thinking": settings.thinking}
            return OpenAIChatModel(target.model, provider=compatible, profile=profile)

        def provider(_: str) -> Provider[Any]:
            made: Any = infer_provider_class(name)
            return made(api_key=key) if url is None else made(api_key=key, base_url=url)

        return infer_model(f"{name}:{target.model}", provider)
    except (ImportError, ValueError, failures.UserError) as error:
        raise ModelError(f"{name}:{target.model}", "unavailable", _sentence(str(error))) from error


def _info(target: Target, settings: ModelSettings, model: PydanticModel) -> ModelInfo:
    profile, limits = model.profile, known_limits(target.model)
    family = target.model.partition("/")[0] if "/" in target.model else target.provider
    images = family in TAKES_IMAGES and bool(profile.get("supports_image_input", True))
    thinking = bool(profile.get("supports_thinking", False))
    return ModelInfo(
        provider=target.provider,
        model=target.model,
        api=target.api,
        context_window=settings.context_window or profile.get("context_window") or limits.window or UNKNOWN_WINDOW,
        output_limit=settings.output_limit or limits.output,
        images=images if settings.images is None else settings.images,
        thinking=thinking if settings.thinking is None else settings.thinking,
        prices=settings.prices,
    )


# What goes out


def _tool(tool: Any) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name, description=clean_text(tool.description), parameters_json_schema=clean_json(tool.parameters)
    )


def _outgoing(request: Request, info: ModelInfo, model: PydanticModel) -> list[ModelMessage]:
    images = Images(request.messages, taken=info.images)
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
                parts = list(response_parts(message, info, model.system))
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
                ask(_tool_return(message, images))
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


def _tool_return(message: JsonObject, images: Images) -> ToolReturnPart:
    return ToolReturnPart(
        tool_name=clean_name(string(message.get("toolName"))),
        content=_content(message, images),
        tool_call_id=clean_id(string(message.get("toolCallId")).partition("|")[0]),
        outcome="failed" if message.get("isError") is True else "success",
    )


def _system_text(message: JsonObject) -> str:
    sections = message.get("sections")
    said = [text(message.get("content")), *(map(string, sections.values()) if is_object(sections) else ())]
    return clean_text("\n\n".join(words for words in said if words))


def response_parts(message: JsonObject, info: ModelInfo, system: str) -> Iterator[ModelResponsePart]:
    same = all(message.get(key) == getattr(info, key) for key in ("provider", "model", "api"))
    for block in blocks(message.get("content")):
        match block.get("type"):
            case "text" if string(block.get("text")).strip():
                signature = string(block.get("textSignature")) if same else ""
                yield TextPart(clean_text(string(block["text"])), **_identity(signature, info.api, system))
            case "thinking" if same and string(block.get("thinkingSignature")):
                yield _thought(block, info.api, system)
            case "toolCall":
                call, _, item = string(block.get("id")).partition("|")
                signature = (item or string(block.get("thoughtSignature"))) if same else ""
                arguments = block.get("arguments")
                yield ToolCallPart(
                    clean_name(string(block.get("name"))),
                    clean_json(arguments) if is_object(arguments) else {"unreadable": clean_json(arguments)},
                    clean_id(call),
                    **_identity(signature, info.api, system),
                )
            case _:
                pass


def _identity(signature: str, api: str, system: str) -> Any:
    """What a text or a call is known by to the provider that made it."""
    if not signature:
        return {}
    if api == "google-generative-ai":
        return {"provider_name": system, "provider_details": {"thought_signature": signature}}
    return {"provider_name": system, "id": signature} if api == "openai-responses" else {}


def _thought(block: JsonObject, api: str, system: str) -> ThinkingPart:
    words, signature = clean_text(string(block.get("thinking"))), string(block.get("thinkingSignature"))
    if block.get("redacted") is True:
        return ThinkingPart("", id="redacted_thinking", signature=signature, provider_name=system)
    match api:
        case "openai-completions":  # the field that it came in
            return ThinkingPart(words, id=signature, provider_name=system)
        case "openai-responses":  # the item that it came as
            item = _object(signature)
            encrypted = string(item.get("encrypted_content")) or None
            return ThinkingPart(words, id=string(item.get("id")) or None, signature=encrypted, provider_name=system)
        case _:
            return ThinkingPart(words, signature=signature, provider_name=system)


def _object(raw: str) -> JsonObject:
    try:
        value = json.loads(raw)
    except ValueError:
        return {}
    return value if is_object(value) else {}


# What comes back


class _Incoming:
    """The events of one answer."""

    def __init__(self) -> None:
        self._calls: dict[int, str] = {}

    def events(self, event: Any) -> Iterator[ModelEvent]:
        match event:
            case (
                PartStartEvent(part=TextPart(content=words)) | PartDeltaEvent(delta=TextPartDelta(content_delta=words))
            ) if words:
                yield TextDelta(words)
            case (
                PartStartEvent(part=ThinkingPart(content=words))
                | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(words)))
            ) if words:
                yield ThinkingDelta(words)
            case PartStartEvent(index=index, part=ToolCallPart() as part):
                id = self._calls[index] = _call_id(part)
                yield ToolCallStart(id, part.tool_name)
                yield from _arguments(id, part.args)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=arguments)):
                yield from _arguments(self._calls.get(index, ""), arguments)
            case PartEndEvent(part=ToolCallPart() as part):
                yield ToolCallEnd(ToolCall(_call_id(part), part.tool_name, _read_arguments(part)))
            case _:
                pass


def _call_id(part: ToolCallPart) -> str:
    """As peers write it: with the id of its item where it has one of its own."""
    return f"{part.tool_call_id}|{part.id}" if part.id else part.tool_call_id


def _arguments(id: str, arguments: Any) -> Iterator[ToolCallDelta]:
    if arguments:
        yield ToolCallDelta(id, arguments if isinstance(arguments, str) else json.dumps(arguments))


def _read_arguments(part: ToolCallPart) -> Any:
    """An object; or the text as it came, where that is no JSON object."""
    if not part.args:
        return {}
    if isinstance(part.args, dict):
        return part.args
    try:
        value = json.loads(part.args)
    except (ValueError, RecursionError):
        return part.args
    return value if is_object(value) else part.args


def _is_whole(response: ModelResponse, api: str) -> bool:
    """Whether an answer came to its end."""
    if api != COMPATIBLE:
        return response.finish_reason is not None
    # Some servers do not say why they stop, for which a reason is made up; but then they say what was used.
    return "finish_reason" in (response.provider_details or {}) or not response.usage.unmeasured_requests


def answer(response: ModelResponse, info: ModelInfo) -> JsonObject:
    """A whole response as an assistant message in wire form."""
    content = [block for part in response.parts for block in _blocks(part, info.api)]
    reason = STOPS.get(response.finish_reason or "", "stop")
    if reason == "stop" and any(block["type"] == "toolCall" for block in content):
        reason = "toolUse"
    message: JsonObject = {
        "role": "assistant",
        "content": content,
        "api": info.api,
        "provider": info.provider,
        "model": info.model,
        "usage": usage(response, info.prices),
        "stopReason": reason,
    }
    if response.provider_response_id:
        message["responseId"] = response.provider_response_id
    if reason == "error":
        filtered = response.finish_reason == "content_filter"
        message["errorMessage"] = "the provider's content filter stopped the answer" if filtered else "the model failed"
    return message


def _blocks(part: ModelResponsePart, api: str) -> Iterable[JsonObject]:
    match part:
        case TextPart():
            signature = part.id if api == "openai-responses" else _signature(part)
            yield {"type": "text", "text": part.content, **({"textSignature": signature} if signature else {})}
        case ThinkingPart():
            signature = _thinking_signature(part, api)
            block: JsonObject = {"type": "thinking", "thinking": part.content}
            if signature:
                block["thinkingSignature"] = signature
            if part.id == "redacted_thinking":
                block["redacted"] = True
            if part.content or signature:
                yield block
        case ToolCallPart():
            signature = _signature(part)
            yield {
                "type": "toolCall",
                "id": _call_id(part),
                "name": part.tool_name,
                "arguments": _read_arguments(part),
                **({"thoughtSignature": signature} if signature else {}),
            }
        case FilePart(content=file) if file.is_image:
            yield {"type": "image", "data": file.base64, "mimeType": file.media_type}
        case _:
            pass


def _signature(part: TextPart | ToolCallPart) -> str:
    return string((part.provider_details or {}).get("thought_signature"))


def _thinking_signature(part: ThinkingPart, api: str) -> str | None:
    match api:
        case "openai-completions":
            return part.id
        case "openai-responses" if part.id:
            item: JsonObject = {"type": "reasoning", "id": part.id, "summary": []}
            if part.content:
                item["summary"] = [{"type": "summary_text", "text": part.content}]
            if part.signature:
                item["encrypted_content"] = part.signature
            return json.dumps(item)
        case _:
            return part.signature


# Usage and cost


def usage(response: ModelResponse, prices: Prices | None) -> JsonObject:
    """Tokens and cost of a response in wire form; what nobody knows is 0."""
    used = response.usage
    read, written = used.cache_read_tokens, used.cache_write_tokens
    counts = {
        "input": max(0, used.input_tokens - read - written),
        "output": used.output_tokens,
        "cacheRead": read,
        "cacheWrite": written,
    }
    cost = _looked_up(response) if prices is None else _by_hand(counts, prices)
    return full_usage({**counts, "cost": cost})


def _by_hand(counts: dict[str, int], prices: Prices) -> JsonObject:
    each = (prices.input, prices.output, prices.cache_read, prices.cache_write)
    return {key: count * price / 1_000_000 for (key, count), price in zip(counts.items(), each, strict=True)}


def _looked_up(response: ModelResponse) -> JsonObject:
    used = response.usage
    try:
        price = response.cost()
        # Prices are known of all input together; what the cached part of it costs is asked by itself.
        cached, stored = used.cache_read_tokens, used.cache_write_tokens
        read = _input_cost(response, RequestUsage(input_tokens=cached, cache_read_tokens=cached))
        written = _input_cost(response, RequestUsage(input_tokens=stored, cache_write_tokens=stored))
    except (LookupError, ValueError, AssertionError):  # nobody knows this model, or what it used
        return {}
    whole = float(price.input_price)
    return {
        "input": max(0.0, whole - read - written),
        "output": float(price.output_price),
        "cacheRead": read,
        "cacheWrite": written,
        "total": float(price.total_price),
    }


def _input_cost(response: ModelResponse, part: RequestUsage) -> float:
    return float(dataclasses.replace(response, usage=part).cost().input_price) if part.input_tokens else 0.0


# Failures

OVERFLOW = re.compile(
    r"context.{0,12}(length|window|size)|maximum.{0,20}(context|tokens)|prompt is too long|input.{0,20}too long"
    r"|too many (input )?tokens|exceeds.{0,40}(tokens|token limit)|reduce the length|token limit exceeded",
    re.IGNORECASE,
)
"""How servers say that a conversation is too long for the model."""

KINDS: tuple[tuple[type[Exception], Failure], ...] = (
    (failures.ModelContextWindowExceededError, "overflow"),
    (failures.ModelAuthenticationError, "auth"),
    (failures.ModelQuotaExceededError, "rejected"),
    (failures.ModelRateLimitError, "rate"),
    (failures.ModelUnavailableError, "server"),
    (failures.ModelServerError, "server"),
    (failures.ModelTimeoutError, "timeout"),
    (failures.ModelRequestTimeout, "timeout"),
    (failures.ModelConnectionError, "network"),
    (failures.ModelRequestRejectedError, "rejected"),
    (failures.UnexpectedModelBehavior, "server"),
    (failures.UserError, "rejected"),
    (TimeoutError, "timeout"),
    (OSError, "network"),
)


TRANSPORTS = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "h11", "anyio"})
"""Libraries whose errors come through as they are."""


def failure(model: str, error: Exception) -> ModelError:
    """What went wrong, told as a `ModelError`."""
    if isinstance(error, ModelError):
        return error
    status = getattr(error, "status_code", None)
    reason = _reason(error)
    known: list[Failure] = [kind for raised, kind in KINDS if isinstance(error, raised)]
    kind = known[0] if known else _by_status(status, error)
    if kind in ("rejected", "server") and status != 429 and OVERFLOW.search(reason):
        kind = "overflow"
    said = reason if status is None else f"{reason} ({status})"
    return ModelError(model, kind, said, status=status, retry_after=getattr(error, "retry_after", None))


def _by_status(status: int | None, error: Exception) -> Failure:
    match status:
        case None:
            return "network" if type(error).__module__.partition(".")[0] in TRANSPORTS else "rejected"
        case 401 | 403:
            return "auth"
        case 408 | 504:
            return "timeout"
        case 413:
            return "overflow"
        case 429:
            return "rate"
        case int():
            return "server" if status >= 500 else "rejected"


def _reason(error: Exception) -> str:
    """What the provider says, in one line, without the wrapping."""
    body: Any = getattr(error, "body", None)
    while is_object(body) and is_object(body.get("error")):
        body = body["error"]
    for said in (body.get("message"), body.get("detail"), body.get("error")) if is_object(body) else (body,):
        if isinstance(said, str) and said.strip():
            return _sentence(said)
    cause = error.__cause__
    deepest = str(cause.__cause__ or cause) if cause is not None else ""
    return _sentence(f"{error} {deepest if deepest not in str(error) else ''}") or type(error).__name__


def _sentence(said: str) -> str:
    return clean_text(" ".join(said.split()))[:500].rstrip(".")
