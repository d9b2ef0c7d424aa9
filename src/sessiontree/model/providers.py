"""Model providers: names, API keys, default models, token limits, and the model servers on this machine.

The tables may be out of date: models that are not listed work too. Local servers, such as Ollama, are asked for their
models.
"""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from sessiontree.convert.base import ApiKind as ApiKind
from sessiontree.core.messages import coerce_string, is_list, is_object


class Provider(Struct, frozen=True, kw_only=True):
    name: str
    default: str
    """The model to use if none is named."""
    keys: tuple[str, ...]
    """The environment variables that may hold the API key, in order of preference."""
    api: str = ApiKind.OPENAI_COMPATIBLE
    base_url: str | None = None
    """The provider's URL, if pydantic_ai does not know it."""
    url_variable: str | None = None
    """The environment variable that overrides the URL."""


PROVIDERS = {  # in order of preference when several API keys are set
    provider.name: provider
    for provider in (
        Provider(
            name="anthropic",
            default="claude-sonnet-5-5",
            keys=("ANTHROPIC_API_KEY",),
            api=ApiKind.ANTHROPIC,
            url_variable="ANTHROPIC_BASE_URL",
        ),
        Provider(
            name="openai",
            default="gpt-5.5",
            keys=("OPENAI_API_KEY",),
            api=ApiKind.OPENAI_RESPONSES,
            url_variable="OPENAI_BASE_URL",
        ),
        Provider(
            name="google",
            default="gemini-3.8-flash",
            keys=("GOOGLE_API_KEY", "GEMINI_API_KEY"),
            api=ApiKind.GOOGLE,
        ),
        Provider(name="openrouter", default="anthropic/claude-sonnet-5.5", keys=("OPENROUTER_API_KEY",)),
        Provider(name="xai", default="grok-4.7", keys=("XAI_API_KEY",), base_url="https://api.x.ai/v1"),
        Provider(name="mistral", default="mistral-large-latest", keys=("MISTRAL_API_KEY",), api=ApiKind.MISTRAL),
        Provider(name="deepseek", default="deepseek-v4-flash", keys=("DEEPSEEK_API_KEY",)),
        Provider(
            name="moonshotai",
            default="kimi-k3",
            keys=("MOONSHOTAI_API_KEY", "MOONSHOT_API_KEY"),
            url_variable="MOONSHOTAI_BASE_URL",
        ),
        Provider(name="zai", default="glm-5.3", keys=("ZAI_API_KEY",)),
        Provider(name="groq", default="openai/gpt-oss-120b", keys=("GROQ_API_KEY",), url_variable="GROQ_BASE_URL"),
        Provider(name="cerebras", default="gpt-oss-120b", keys=("CEREBRAS_API_KEY",)),
        Provider(name="together", default="openai/gpt-oss-120b", keys=("TOGETHER_API_KEY",)),
        Provider(name="fireworks", default="accounts/fireworks/models/gpt-oss-120b", keys=("FIREWORKS_API_KEY",)),
    )
}


class ModelTarget(Struct, frozen=True, kw_only=True):
    """A model and how to reach it."""

    provider: str
    model: str
    api: str
    key: str | None = None
    base_url: str | None = None
    """The URL, if it differs from the one that pydantic_ai uses."""
    has_stored_key: bool = False
    """Whether the key was entered in the app."""


class TokenLimits(Struct, frozen=True):
    """The context window and the maximum output of a model, in tokens. `None` if unknown."""

    window: int | None = None
    output: int | None = None


_LIMITS = (
    # Models whose window is missing from pydantic_ai's price list, or whose output is unusually short.
    (r"llama-?3\.[123]", TokenLimits(131_072)),
    (r"gemini-(flash|pro|2\.5|3)", TokenLimits(1_000_000, 65_536)),
    (r"(mistral-(large|medium|small)|codestral)", TokenLimits(131_072)),
    (r"gpt-4o", TokenLimits(128_000, 16_384)),
    (r"gpt-4-turbo", TokenLimits(128_000, 4_096)),
    (r"gpt-3\.5", TokenLimits(16_385, 4_096)),
    (r"claude-3-(haiku|opus|sonnet)", TokenLimits(200_000, 4_096)),
    (r"claude-3[-.]5", TokenLimits(200_000, 8_192)),
    (r"deepseek-chat", TokenLimits(None, 8_192)),
)


def find_limits(model: str) -> TokenLimits:
    return next((limits for pattern, limits in _LIMITS if re.search(pattern, model, re.IGNORECASE)), TokenLimits())


PRICE_LIST_IDS = {"xai": "x-ai"}
"""Provider ids of the price list, where they differ from ours."""
MODEL_PREFIXES = {"fireworks": "accounts/fireworks/models/"}
"""Prefixes that requests need before the model names of the price list."""
OWN_MODELS = {"google": re.compile("gemini|gemma")}
"""The provider's own models, where the price list also has models that need another account."""
NON_CHAT_MODELS = re.compile(
    r"-\Z|\A(ft:|ada\b|babbage|curie|davinci|text-)|embed|whisper|\btts\b|transcribe|audio|realtime|image|moderation|ocr"
    r"|imagen|veo|\blive\b|guard|orpheus|computer-use|voice|speech|rerank|instruct-v0|translate",
    re.IGNORECASE,
)
"""Models that are not chat models."""


@cache
def list_known_models(provider: str) -> tuple[str, ...]:
    """Return the chat models of a provider from pydantic_ai's price list, or nothing if the provider is unknown. The
    first call is slow."""
    if find_spec("genai_prices") is None:
        return ()
    from genai_prices.data_snapshot import get_snapshot

    id, prefix, own = PRICE_LIST_IDS.get(provider, provider), MODEL_PREFIXES.get(provider, ""), OWN_MODELS.get(provider)
    found = next((listed for listed in get_snapshot().providers if listed.id == id), None)
    names = [model.id for model in found.models if not model.deprecated] if found else []
    return tuple(
        name if "/" in name else f"{prefix}{name}"
        for name in names
        if not NON_CHAT_MODELS.search(name) and (own is None or own.search(name))
    )


# Servers on this machine

QUERY_TIMEOUT = 0.5
"""The time limit of a request to a server, in seconds. A server that does not answer in time counts as absent."""

OLLAMA_WINDOW = 4096
"""The context window that Ollama uses by default. Ollama truncates longer conversations silently, so do not assume
more."""


class ServedModels(Struct, frozen=True):
    models: tuple[str, ...]
    window: int | None = None
    """The context window that the server was started with, if it reports one."""


class LocalServer(Struct, frozen=True, kw_only=True):
    name: str
    get_address: Callable[[], str]
    """Returns the URL from the server's own environment variables."""
    query_window: Callable[[str], int | None]


def query_server(server: LocalServer, url: str | None = None) -> ServedModels | None:
    """Return the models of a server, or `None` if no server answers at its address."""
    base = (url or server.get_address()).rstrip("/").removesuffix("/v1")
    models = list_served_models(base)
    return None if models is None else ServedModels(models, server.query_window(base))


def list_served_models(url: str, key: str | None = None) -> tuple[str, ...] | None:
    """Return the models that a server lists, or `None` if no server answers at this address."""
    listed = _fetch_json(_get_models_url(url), key).get("data")
    if not is_list(listed):
        return None
    names = [coerce_string(model.get("id")) for model in filter(is_object, listed)]
    return tuple(name for name in names if name and "embed" not in name.lower())


def requires_key(url: str) -> bool:
    """Return whether a server answers at this address, but refuses to list its models without a key."""
    return _request(_get_models_url(url))[0] in (401, 403)


def _get_models_url(url: str) -> str:
    return f"{url.rstrip('/').removesuffix('/v1')}/v1/models"


def _fetch_json(url: str, key: str | None = None) -> dict[str, Any]:
    """Return the JSON object at a URL, or an empty one if the request fails."""
    status, value = _request(url, key)
    return value if status == 200 else {}


def _request(url: str, key: str | None = None) -> tuple[int | None, dict[str, Any]]:
    """Return the status and the JSON object at a URL; `None` and an empty object without an answer."""
    try:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=QUERY_TIMEOUT)
        try:
            authorized = {} if key is None else {"Authorization": f"Bearer {key}"}
            connection.request("GET", parts.path, headers={"Accept": "application/json", **authorized})
            response = connection.getresponse()
            value = json.loads(response.read(1 << 20)) if response.status == 200 else None
            return response.status, value if is_object(value) else {}
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError):
        return None, {}


def _get_ollama_address() -> str:
    host_variable = os.environ.get("OLLAMA_HOST", "").strip().rstrip("/")
    url = host_variable if "://" in host_variable else f"http://{host_variable or '127.0.0.1'}"
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 11434)
    except ValueError:
        return url  # an invalid URL; the request fails and the listing shows it
    host = "127.0.0.1" if parts.hostname in (None, "", "0.0.0.0", "::") else parts.hostname
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _get_ollama_window(base: str) -> int | None:
    length = os.environ.get("OLLAMA_CONTEXT_LENGTH", "")
    return int(length) if length.isdecimal() and int(length) > 0 else OLLAMA_WINDOW


def _get_llamacpp_address() -> str:
    host = os.environ.get("LLAMA_ARG_HOST", "") or "127.0.0.1"
    port = os.environ.get("LLAMA_ARG_PORT", "")
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port if port.isdecimal() else 8080}"


def _query_llamacpp_window(base: str) -> int | None:
    settings = _fetch_json(f"{base}/props").get("default_generation_settings")
    window = settings.get("n_ctx") if is_object(settings) else None
    return window if isinstance(window, int) and window > 0 else None


LOCAL_SERVERS = {
    server.name: server
    for server in (
        LocalServer(name="ollama", get_address=_get_ollama_address, query_window=_get_ollama_window),
        LocalServer(name="llamacpp", get_address=_get_llamacpp_address, query_window=_query_llamacpp_window),
    )
}
