"""The adapter to model providers. Only this package imports pydantic_ai.

Import it lazily: it takes long. This module holds the model class. `conversion` converts messages and events,
and `error_mapping` converts exceptions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model as PydanticModel
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.settings import ModelSettings as RequestSettings

from sessiontree.config import ModelSettings
from sessiontree.model.adapter.conversion import (
    EventConverter,
    build_message,
    build_messages,
    build_tool_definition,
    is_complete,
)
from sessiontree.model.adapter.error_mapping import clean_sentence, convert_error
from sessiontree.model.base import (
    DEFAULT_WINDOW,
    Finished,
    ModelError,
    ModelEvent,
    ModelInfo,
    Request,
    build_cut_off_error,
)
from sessiontree.model.providers import ApiKind, ModelTarget, find_limits

OWN_PROTOCOL_PROVIDERS = frozenset({"anthropic", "google", "groq", "mistral", "ollama"})
"""Providers that keep their own protocol at another URL. At another URL, all others are treated as
OpenAI-compatible."""

IMAGE_PROVIDERS = frozenset({"openai", "anthropic", "google", "xai", "x-ai"})
"""Providers whose model profiles are right about image input. For all others, image input must be configured."""

TIMEOUT = httpx2.Timeout(600, connect=5)
"""Seconds. The defaults of pydantic_ai."""


class ProviderModel:
    """A provider's model behind the `Model` protocol."""

    def __init__(self, target: ModelTarget, settings: ModelSettings | None = None) -> None:
        self._target = target
        self._settings = ModelSettings() if settings is None else settings
        # A connection belongs to the event loop that opened it.
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[PydanticModel, AsyncGenerator[None]]] = {}
        """For each loop, the model and the generator that closes its connections."""
        self._unused: _NewModel | None = _create_model(target, self._settings)
        self._info = _build_info(target, self._settings, self._unused.model)

    @property
    def info(self) -> ModelInfo:
        return self._info

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        model, has_started = await self._get_loop_model(), False
        try:
            async with model_request_stream(
                model,
                build_messages(request, self._info, model),
                model_settings=self._build_request_settings(request),
                model_request_parameters=ModelRequestParameters(
                    function_tools=[*map(build_tool_definition, request.tools)]
                ),
            ) as stream:
                incoming = EventConverter()
                async for event in stream:
                    for ours in incoming.convert(event):
                        has_started = True
                        yield ours
                response = stream.get()
        except Exception as error:
            raise convert_error(self._target, error, self._settings.key_variable, has_started=has_started) from error
        if not is_complete(response, self._info.api):
            raise build_cut_off_error(self._info.name)
        yield Finished(build_message(response, self._info))

    def _build_request_settings(self, request: Request) -> RequestSettings:
        info = self._info
        settings = RequestSettings(max_retries=0)  # `model.retry` does the retries
        limits = [limit for limit in (request.max_tokens, info.output_limit) if limit is not None]
        # Without a requested or configured limit, the provider chooses a better one.
        if limits and (request.max_tokens or self._settings.output_limit):
            settings["max_tokens"] = min(limits)
        if info.thinking:
            settings["thinking"] = False if request.thinking == "off" else request.thinking  # pyright: ignore[reportGeneralTypeIssues]
        if info.api == ApiKind.ANTHROPIC:
            settings["cache"] = True  # other providers cache by default
        return settings

    async def _get_loop_model(self) -> PydanticModel:
        loop = asyncio.get_running_loop()
        if loop in self._by_loop:
            return self._by_loop[loop][0]
        for other in [*self._by_loop]:
            if other.is_closed():
                self._by_loop.pop(other, None)
        new = self._unused or _create_model(self._target, self._settings)
        self._unused = None
        connections = _keep_connections(new)
        self._by_loop[loop] = new.model, connections
        await anext(connections)
        return new.model


class _NewModel(NamedTuple):
    model: PydanticModel
    client: httpx2.AsyncClient | None
    """The client for a server on this machine, which the provider does not close."""


async def _keep_connections(new: _NewModel) -> AsyncGenerator[None]:
    """Close the connections of a model at the end.

    An event loop closes a generator when the loop ends, and when the generator is garbage collected.
    """
    async with new.model, contextlib.AsyncExitStack() as stack:
        if new.client is not None:
            stack.push_async_callback(new.client.aclose)
        yield


def _create_model(target: ModelTarget, settings: ModelSettings) -> _NewModel:
    name = target.provider
    client = _create_local_client(target)
    options: Any = {} if target.base_url is None else {"base_url": target.base_url}
    if client is not None:
        options["http_client"] = client
    try:
        if (
            target.api == ApiKind.OPENAI_COMPATIBLE
            and target.base_url is not None
            and name not in OWN_PROTOCOL_PROVIDERS
        ):
            return _NewModel(_create_compatible_model(target, settings, options), client)

        def build_provider(_: str) -> Provider[Any]:
            provider_class: Any = infer_provider_class(name)
            return provider_class(api_key=target.key, **options)

        return _NewModel(infer_model(f"{name}:{target.model}", build_provider), client)
    except (ImportError, ValueError, UserError) as error:
        raise ModelError(f"{name}:{target.model}", "unavailable", clean_sentence(str(error))) from error


def _create_compatible_model(target: ModelTarget, settings: ModelSettings, options: Any) -> PydanticModel:
    """Create a model for a server that supports OpenAI chat completions."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    provider = OpenAICompatibleProvider(target.provider, api_key=target.key or "none", **options)
    profile: Any = {"openai_chat_supports_max_completion_tokens": target.provider == "openai"}
    if settings.thinking is not None:
        profile["supports_thinking"] = settings.thinking
    return OpenAIChatModel(target.model, provider=provider, profile=profile)


def _create_local_client(target: ModelTarget) -> httpx2.AsyncClient | None:
    """Create a client that sends requests to a server on this machine without a proxy; `None` for other servers."""
    if target.base_url is None or target.provider in ("anthropic", "google", "groq", "mistral"):
        return None
    return httpx2.AsyncClient(trust_env=False, timeout=TIMEOUT) if _is_local_address(target.base_url) else None


def _is_local_address(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _build_info(target: ModelTarget, settings: ModelSettings, model: PydanticModel) -> ModelInfo:
    profile, limits = model.profile, find_limits(target.model)
    family = target.model.partition("/")[0] if target.provider == "openrouter" else target.provider
    images = (
        family in IMAGE_PROVIDERS and bool(profile.get("supports_image_input", True)) and "gpt-oss" not in target.model
    )
    thinking = bool(profile.get("supports_thinking", False))
    return ModelInfo(
        provider=target.provider,
        model=target.model,
        api=target.api,
        context_window=settings.context_window or profile.get("context_window") or limits.window or DEFAULT_WINDOW,
        output_limit=settings.output_limit or limits.output,
        images=images if settings.images is None else settings.images,
        thinking=thinking if settings.thinking is None else settings.thinking,
        prices=settings.prices,
    )
