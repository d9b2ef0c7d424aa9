"""The providers of models: what each is called, where its key is looked for, and which of its models is the default.

Facts alone, so that a listing needs nothing else. Names of models age: what is not in these tables works all the same.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec

from msgspec import Struct


class ApiKind:
    """How a provider is spoken to, as peers name it in messages."""

    OPENAI_COMPATIBLE = "openai-completions"
    """OpenAI's chat completions, which most servers speak."""
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic-messages"
    GOOGLE = "google-generative-ai"
    MISTRAL = "mistral-conversations"


class Provider(Struct, frozen=True, kw_only=True):
    name: str
    default: str
    """The model to use where none is named."""
    keys: tuple[str, ...]
    """The environment variables with its key, the usual one first."""
    api: str = ApiKind.OPENAI_COMPATIBLE
    base_url: str | None = None
    """Its address, where pydantic_ai does not know it."""
    url_variable: str | None = None
    """The environment variable with another address."""


PROVIDERS = {  # in the order in which they are used when several have a key
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
    """A model and how it is reached."""

    provider: str
    model: str
    api: str
    key: str | None = None
    base_url: str | None = None
    """An address other than the one that pydantic_ai knows."""


class TokenLimits(Struct, frozen=True):
    """How many tokens a model takes in all, and how many it writes at most; `None` where that is not known."""

    window: int | None = None
    output: int | None = None


_LIMITS = (
    # Where the list of prices that comes with pydantic_ai has no window, or a model writes unusually little.
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
"""How the list calls a provider, where it does not call it as we do."""
MODEL_PREFIXES = {"fireworks": "accounts/fireworks/models/"}
"""What stands before the names of the list in requests."""
OWN_MODELS = {"google": re.compile("gemini|gemma")}
"""Which models of the list are the provider's own, where it has others that are reached in another way."""
NON_CHAT_MODELS = re.compile(
    r"-\Z|\A(ft:|ada\b|babbage|curie|davinci|text-)|embed|whisper|\btts\b|transcribe|audio|realtime|image|moderation|ocr"
    r"|imagen|veo|\blive\b|guard|orpheus|computer-use|voice|speech|rerank|instruct-v0|translate",
    re.IGNORECASE,
)
"""Models that do not answer in a conversation."""


@cache
def list_known_models(provider: str) -> tuple[str, ...]:
    """The chat models that a provider is known to have, none where nothing is known of it. The first call is slow."""
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
