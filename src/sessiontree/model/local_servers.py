"""Model servers on this machine: the addresses of Ollama and llama.cpp, and the models that they serve.

Each server is queried once with a short timeout. A server that does not answer in time counts as absent.
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
    listed = _fetch_json(f"{url.rstrip('/').removesuffix('/v1')}/v1/models", key).get("data")
    if not is_list(listed):
        return None
    names = [coerce_string(model.get("id")) for model in filter(is_object, listed)]
    return tuple(name for name in names if name and "embed" not in name.lower())


def _fetch_json(url: str, key: str | None = None) -> dict[str, Any]:
    """Return the JSON object at a URL, or an empty one if the request fails."""
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


SERVERS = {
    server.name: server
    for server in (
        LocalServer(name="ollama", get_address=_get_ollama_address, query_window=_get_ollama_window),
        LocalServer(name="llamacpp", get_address=_get_llamacpp_address, query_window=_query_llamacpp_window),
    )
}
