"""Model providers: their names, the environment variables of their API keys, their default models and token limits.

The tables hold data only, and a listing needs no other import. They may be out of date: models that are not listed
work too.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec

from msgspec import Struct


class ApiKind:
    """The protocols of providers, by the names that other programs write in messages."""

    OPENAI_COMPATIBLE = "openai-completions"
    """OpenAI chat completions, which most servers support."""
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic-messages"
    GOOGLE = "google-generative-ai"
    MISTRAL = "mistral-conversations"


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
        Provider(name="moonshotai", default="kimi-k3", keys=("MOONSHOTAI_API_KEY", "MOONSHOT_API_KEY")),
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
"""The provider's own models, for providers whose list also has models with another access."""
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
