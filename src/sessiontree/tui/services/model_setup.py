"""Connect a model from inside the app: an API key, a server at an address, or the small local model."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sessiontree.config_editing import set_setting
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.model.local_model import NAME, download_weights, find_missing, is_installed
from sessiontree.model.providers import PROVIDERS, list_served_models, requires_key
from sessiontree.model.selection import list_favorites, toggle_favorite
from sessiontree.model.stored_keys import check_key, get_keys_path, read_stored_keys, remove_key, store_key
from sessiontree.tui.screens.dialogs import InputDialog
from sessiontree.tui.screens.model_dialog import CONNECT, ModelDialog

if TYPE_CHECKING:
    from sessiontree.tui.app import SessionApp  # cycle: the app calls this module

SETUP_QUESTION = "Connect a model"
ENTER_KEY = "Enter an API key of a provider"
USE_SERVER = "Use a server at an address (vLLM, LM Studio, llama.cpp, …)"
USE_LOCAL = "Download a small local model (100 MB, to try things out)"
NOT_NOW = "Not now"


async def choose_model(app: SessionApp) -> str | None:
    """Let the user choose a model, or connect another one. Return its name; `None` if they cancel."""
    controller = app.controller
    assert controller is not None
    names = await asyncio.to_thread(controller.models.list_names)
    if not names:
        return await connect_model(app)
    current = None if controller.model is None else controller.model.info.name
    dialog = ModelDialog(names, current=current, favorites=list_favorites(), toggle_favorite=toggle_favorite)
    chosen = await app.ui.ask(dialog)
    return await connect_model(app) if chosen == CONNECT else chosen


async def connect_model(app: SessionApp) -> str | None:
    """Ask how to connect a model, and return its name; `None` if the user cancels."""
    chosen = await app.ui.select(SETUP_QUESTION, [ENTER_KEY, USE_SERVER, USE_LOCAL, NOT_NOW])
    steps = {ENTER_KEY: enter_key, USE_SERVER: add_server, USE_LOCAL: _download_local}
    step = steps.get(chosen or NOT_NOW)
    return None if step is None else await step(app)


async def enter_key(app: SessionApp, provider: str | None = None) -> str | None:
    """Ask for the key of a provider, store it, and return the provider's default model."""
    if provider is None:
        stored = read_stored_keys()
        rows = {f"{name}{'  (key stored)' if name in stored else ''}": name for name in PROVIDERS}
        chosen = await app.ui.select("Provider", list(rows))
        provider = None if chosen is None else rows[chosen]
    if provider is None:
        return None
    if provider not in PROVIDERS and provider not in app.options.settings.servers:
        raise NotFound("provider", provider, f"providers: {', '.join([*PROVIDERS, *app.options.settings.servers])}")
    key = await _ask_for_key(app, f"API key for {provider} · stored in {get_keys_path()}")
    if key is None:
        return None
    store_key(provider, key)
    if provider in PROVIDERS:
        return f"{provider}:{PROVIDERS[provider].default}"
    return await _choose_served(app, provider, app.options.settings.servers[provider].base_url, key)


async def _ask_for_key(app: SessionApp, title: str) -> str | None:
    typed = await app.ui.ask(InputDialog(title, is_secret=True))
    try:
        return None if typed is None else check_key(typed)
    except ValueError as error:
        raise InvalidOperation(str(error)) from error


async def add_server(app: SessionApp) -> str | None:
    """Ask for the address of a server, add it to the configuration, and return one of its models."""
    title, text, url, key = "Address of the server", "", "", None
    models: Sequence[str] | None = None
    while not models:
        typed = await app.ui.ask(InputDialog(title, placeholder="http://127.0.0.1:8000/v1", text=text))
        if typed is None or not typed.strip():
            return None
        text = typed.strip()
        url = _normalize_url(text)
        if await asyncio.to_thread(requires_key, url):
            key = await _ask_for_key(app, f"API key for {url} · stored in {get_keys_path()}")
            if key is None:
                return None
        models = await asyncio.to_thread(list_served_models, url, key)
        problem = "no server answers there" if models is None else "the server has no models"
        title = f"Address of the server · {problem}; try again"
    name = _name_server(url, app)
    set_setting(("servers", name, "base_url"), url)
    if key is not None:
        store_key(name, key)
    app.reload_settings()
    return await _choose_served(app, name, url, key)


async def _choose_served(app: SessionApp, name: str, url: str, key: str | None) -> str | None:
    models = await asyncio.to_thread(list_served_models, url, key)
    if not models:
        raise InvalidOperation(f"the server at {url} lists no models; check its address and its key")
    if len(models) == 1:
        return f"{name}:{models[0]}"
    return await app.ui.select("Model", [f"{name}:{model}" for model in models])


def _normalize_url(text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidOperation(f"{text!r} is not an address; it looks like http://127.0.0.1:8000/v1")
    return url.rstrip("/") if parts.path.strip("/") else f"{url.rstrip('/')}/v1"


def _name_server(url: str, app: SessionApp) -> str:
    """Return the name of the server with this address, or a free one made of its host."""
    servers = app.options.settings.servers
    same = next((name for name, server in servers.items() if server.base_url == url), None)
    if same is not None:
        return same
    host = urlsplit(url).hostname or ""
    is_address = bool(re.fullmatch(r"[\d.:a-f]+", host))
    stem = "server" if is_address else re.sub(r"[^A-Za-z0-9_-]", "-", host.split(".")[0]) or "server"
    taken, number, name = {*servers, *PROVIDERS}, 2, stem
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


async def _download_local(app: SessionApp) -> str | None:
    if not is_installed():
        raise InvalidOperation("the local model needs `pip install 'sessiontree[local]'`; install it and start again")
    app.chat.show_activity("downloading the local model")
    try:
        await asyncio.to_thread(download_weights)
    finally:
        app.chat.show_activity("")
    missing = find_missing()
    if missing is not None:
        raise InvalidOperation(missing)
    return NAME


async def log_out(app: SessionApp, provider: str | None) -> str:
    """Remove a stored key, and say what is left. Ask for the provider if none is named."""
    stored = read_stored_keys()
    if not stored:
        raise InvalidOperation("no keys are stored; keys in environment variables are not affected by /logout")
    if provider is None:
        provider = await app.ui.select("Remove the key of which provider?", list(stored))
    if provider is None:
        return ""
    if not remove_key(provider):
        raise NotFound("stored key", provider, f"stored: {', '.join(stored)}")
    variables = PROVIDERS[provider].keys if provider in PROVIDERS else ()
    variable = next((name for name in variables if os.environ.get(name)), None)
    left = f"; {variable} is still set in the environment" if variable else ""
    return f"Removed the key of {provider}{left}."
