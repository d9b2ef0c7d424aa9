"""Known models: what a provider has, by the list of prices that comes with pydantic_ai. Names alone, of chat models."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec

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
