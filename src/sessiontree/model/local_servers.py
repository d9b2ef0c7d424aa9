"""Model servers on this machine: Ollama and llama.cpp, where they listen and what they serve.

They are asked once, with a short patience: one that does not answer at once is not there.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from sessiontree.core.messages import coerce_string, is_list, is_object

TIMEOUT = 0.5
"""Seconds."""

OLLAMA_WINDOW = 4096
"""What Ollama gives a model where nothing else is set. It cuts longer conversations without a word, so it is not
guessed higher."""


class ServedModels(Struct, frozen=True):
    models: tuple[str, ...]
    window: int | None = None
    """The context that the server was started with, where it says so."""


class LocalServer(Struct, frozen=True, kw_only=True):
    name: str
    get_address: Callable[[], str]
    """Its URL, as its own environment variables say."""
    query_window: Callable[[str], int | None]


def query_server(server: LocalServer, url: str | None = None) -> ServedModels | None:
    """What a server serves; `None` when there is none at its address."""
    base = (url or server.get_address()).rstrip("/").removesuffix("/v1")
    models = list_served_models(base)
    return None if models is None else ServedModels(models, server.query_window(base))


def list_served_models(url: str, key: str | None = None) -> tuple[str, ...] | None:
    """The models that a server lists; `None` when there is none at this address."""
    listed = _fetch_json(f"{url.rstrip('/').removesuffix('/v1')}/v1/models", key).get("data")
    if not is_list(listed):
        return None
    names = [coerce_string(model.get("id")) for model in filter(is_object, listed)]
    return tuple(name for name in names if name and "embed" not in name.lower())


def _fetch_json(url: str, key: str | None = None) -> dict[str, Any]:
    """The JSON object at a URL; an empty one when there is none."""
    try:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT)
        try:
            authorized = {} if key is None else {"Authorization": f"Bearer {key}"}
            connection.request("GET", parts.path, headers={"Accept": "application/json", **authorized})
            response = connection.getresponse()
            value = json.loads(response.read(1 << 20)) if response.status == 200 else None
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    return value if is_object(value) else {}


def _get_ollama_address() -> str:
    said = os.environ.get("OLLAMA_HOST", "").strip().rstrip("/")
    url = said if "://" in said else f"http://{said or '127.0.0.1'}"
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 11434)
    except ValueError:
        return url  # nobody answers there, and the listing shows it
    host = "127.0.0.1" if parts.hostname in (None, "", "0.0.0.0", "::") else parts.hostname
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _get_ollama_window(base: str) -> int | None:
    said = os.environ.get("OLLAMA_CONTEXT_LENGTH", "")
    return int(said) if said.isdecimal() and int(said) > 0 else OLLAMA_WINDOW


def _get_llamacpp_address() -> str:
    host = os.environ.get("LLAMA_ARG_HOST", "") or "127.0.0.1"
    port = os.environ.get("LLAMA_ARG_PORT", "")
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port if port.isdecimal() else 8080}"


def _query_llamacpp_window(base: str) -> int | None:
    settings = _fetch_json(f"{base}/props").get("default_generation_settings")
    window = settings.get("n_ctx") if is_object(settings) else None
    return window if isinstance(window, int) and window > 0 else None


SERVERS = {
    server.name: server
    for server in (
        LocalServer(name="ollama", get_address=_get_ollama_address, query_window=_get_ollama_window),
        LocalServer(name="llamacpp", get_address=_get_llamacpp_address, query_window=_query_llamacpp_window),
    )
}
