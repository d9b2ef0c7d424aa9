"""Finds a model by name, and chooses one if no name is given.

The default is the first of these that is available: the model that the user chose last, the configured model, the
default model of the first provider whose API key is set, a model that Ollama or llama.cpp serves on this machine, the
local model if it is downloaded, and a model that the configuration describes. An API key that was entered in the app
takes precedence over one in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sessiontree import config
from sessiontree.config import Config, ModelSettings
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError, StoreError
from sessiontree.home import get_home
from sessiontree.model import local_model
from sessiontree.model.base import Model, ModelError
from sessiontree.model.providers import (
    LOCAL_SERVERS,
    PROVIDERS,
    ApiKind,
    LocalServer,
    ModelTarget,
    Provider,
    list_known_models,
    list_served_models,
    query_server,
)
from sessiontree.model.stored_keys import read_stored_keys
from sessiontree.regular_file import read_regular_file
from sessiontree.store.file_operations import make_private_directory, write_private

LOCAL = "local"
"""A short name of the local model."""
MAX_STATE_BYTES = 1 << 16
"""The maximum size of the file with the last choice, in bytes. A longer file is ignored."""


class NoModel(SessionTreeError):
    """The named model, or any model if no name was given, is unavailable."""

    def __init__(self, name: str | None, reason: str) -> None:
        super().__init__(f"no model is available: {reason}" if name is None else f"{name} is not available: {reason}")
        self.name = name
        self.reason = reason


class ModelCandidate(Struct, frozen=True, kw_only=True):
    """A model and whether it is available."""

    name: str
    usable: bool
    reason: str
    """The reason why the model is available or not."""
    default: bool = False
    """Whether it is used if no model is named."""


def find_model(name: str | None = None, settings: Config | None = None) -> Model:
    """Return the model of that name, or the default model.

    A name is `provider:model`, or a provider's name alone for its default model. Raises `NoModel`, `NotFound` or
    `ConfigError`.
    """
    if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOperation(f'a model is given by its name, such as "openai:gpt-5.5", not by {type(name).__name__}')
    configured = config.load_config() if settings is None else settings
    if name is None and (chosen_last := recall_model(configured.model)) is not None:
        with suppress(NoModel, NotFound):  # unavailable by now; `list_candidates` gives the reason
            return find_model(chosen_last, configured)
    wanted = name or configured.model or _find_default(configured)
    if wanted is None:
        raise NoModel(None, _explain_setup())
    wanted = _complete_name(wanted)
    provider, _, model = wanted.partition(":")
    if provider == LOCAL:
        return _load_local(wanted)
    server = LOCAL_SERVERS.get(provider)
    if server is not None:
        return _load_served(server, model, configured)
    return _create_model(_build_target(provider, model, configured), configured.get_model_settings(wanted))


def list_candidates(settings: Config | None = None) -> list[ModelCandidate]:
    """List the configured models, the default models of the providers, the models of local servers, and the local
    model."""
    configured = config.load_config() if settings is None else settings
    chosen = [_complete_name(configured.model)] if configured.model else []
    last = [_complete_name(name) for name in (recall_model(configured.model),) if name]
    named = [
        _check_configured(name, configured)
        for name in sorted({*map(_complete_name, configured.models), *chosen, *last})
    ]
    others = list(_list_unconfigured())
    usable_last = _find_first_usable(candidate for candidate in named if candidate.name in last)
    default = usable_last or (chosen[0] if chosen else _find_first_usable([*others, *named]))
    listed = {candidate.name: candidate for candidate in (*others, *named)}
    return [replace(candidate, default=candidate.name == default) for candidate in listed.values()]


def list_model_names(settings: Config | None = None) -> list[str]:
    """List the names of all available models, the default first.

    These are the available candidates and all known models of the providers whose API key is set. Servers, and
    providers with another URL, are asked for their models.
    """
    configured = config.load_config() if settings is None else settings
    usable = [candidate for candidate in list_candidates(configured) if candidate.usable]
    usable.sort(key=lambda candidate: not candidate.default)
    listed = [candidate.name for candidate in usable]
    for provider in dict.fromkeys(name.partition(":")[0] for name in listed):
        if (
            provider in PROVIDERS
            and not configured.get_model_settings(f"{provider}:{PROVIDERS[provider].default}").base_url
        ):
            listed += (f"{provider}:{model}" for model in _list_provider_models(PROVIDERS[provider]))
    for name in configured.servers:
        listed += (f"{name}:{model}" for model in list_server_models(name, configured))
    return list(dict.fromkeys(listed))


def list_server_models(name: str, configured: Config) -> tuple[str, ...]:
    """List the models of a server of the configuration; none if it does not answer."""
    server = configured.servers[name]
    found = _find_provider_key(name)
    key = os.environ.get(server.key_variable) if server.key_variable is not None else found and found.value
    return list_served_models(server.base_url, key) or ()


def list_models(settings: Config | None = None) -> list[ModelCandidate]:
    """List all available models, then the unavailable candidates with the reason."""
    configured = config.load_config() if settings is None else settings
    known = {candidate.name: candidate for candidate in list_candidates(configured)}
    reasons = {candidate.name.partition(":")[0]: candidate.reason for candidate in known.values() if candidate.usable}
    reasons |= {name: f"served at {server.base_url}" for name, server in configured.servers.items()}
    usable = {
        name: known.get(name) or ModelCandidate(name=name, usable=True, reason=reasons[name.partition(":")[0]])
        for name in list_model_names(configured)
    }
    return list({**usable, **known}.values())


def _list_provider_models(provider: Provider) -> Sequence[str]:
    url = provider.url_variable and os.environ.get(provider.url_variable)
    if not url:
        return list_known_models(provider.name)
    found = _find_provider_key(provider.name)
    return list_served_models(url, found and found.value) or ()


def _complete_name(name: str) -> str:
    """Return `provider:model`, also for the name of a provider alone."""
    if name == LOCAL:
        return local_model.NAME
    return f"{name}:{PROVIDERS[name].default}" if name in PROVIDERS else name


def _find_default(configured: Config) -> str | None:
    named = (_check_configured(name, configured) for name in sorted(configured.models))
    return _find_first_usable(chain(_list_unconfigured(), named))


def _find_first_usable(candidates: Iterable[ModelCandidate]) -> str | None:
    return next((candidate.name for candidate in candidates if candidate.usable), None)


def _check_configured(name: str, configured: Config) -> ModelCandidate:
    provider, _, model = name.partition(":")
    try:
        if provider == LOCAL:
            _load_local(name)
            return ModelCandidate(name=name, usable=True, reason=_RUNS_LOCALLY)
        server = LOCAL_SERVERS.get(provider)
        if server is None:
            target = _build_target(provider, model, configured)
            return _check_installed(
                ModelCandidate(
                    name=name, usable=True, reason=f"at {target.base_url}" if target.base_url else "configured"
                )
            )
        url = configured.get_model_settings(name).base_url or server.get_address()
        served = query_server(server, url)
        if served is not None and (model in served.models or not model):
            return _check_installed(ModelCandidate(name=name, usable=True, reason=f"served at {url}"))
        return ModelCandidate(name=name, usable=False, reason=f"no server with this model answers at {url}")
    except (NoModel, NotFound) as error:
        return ModelCandidate(
            name=name, usable=False, reason=error.reason if isinstance(error, NoModel) else str(error)
        )


def _list_unconfigured() -> Iterator[ModelCandidate]:
    """Yield the models that need no configuration, in order of preference."""
    for provider in PROVIDERS.values():
        found = _find_provider_key(provider.name)
        name = f"{provider.name}:{provider.default}"
        if found is None:
            yield ModelCandidate(name=name, usable=False, reason=f"{provider.keys[0]} is not set")
        else:
            yield _check_installed(ModelCandidate(name=name, usable=True, reason=found.reason))
    for server in LOCAL_SERVERS.values():
        served = query_server(server)
        if served is None:
            yield ModelCandidate(name=server.name, usable=False, reason=f"no server answers at {server.get_address()}")
        elif not served.models:
            yield ModelCandidate(
                name=server.name, usable=False, reason=f"the server at {server.get_address()} has no models"
            )
        for model in () if served is None else served.models:
            candidate = ModelCandidate(
                name=f"{server.name}:{model}", usable=True, reason=f"served at {server.get_address()}"
            )
            yield _check_installed(candidate)
    reason = local_model.find_missing()
    yield ModelCandidate(name=local_model.NAME, usable=reason is None, reason=reason or _RUNS_LOCALLY)


def _check_installed(candidate: ModelCandidate) -> ModelCandidate:
    return candidate if find_spec("pydantic_ai") else replace(candidate, usable=False, reason=_NOT_INSTALLED)


_RUNS_LOCALLY = "runs locally, without a network"
_NOT_INSTALLED = "it needs `pip install 'sessiontree[agent]'`"


def _explain_setup() -> str:
    if find_spec("pydantic_ai") is None:
        return "run `pip install 'sessiontree[agent]'`"
    return (
        "set an API key, such as ANTHROPIC_API_KEY or OPENAI_API_KEY, or enter one with /login in the app; "
        "start Ollama or llama.cpp; "
        "or download a small local model with `sessiontree models get local`; `sessiontree models` lists all models"
    )


# One function for each kind of model


def _load_local(wanted: str) -> Model:
    if wanted != local_model.NAME:
        raise NotFound("model", wanted, f"the local model is {local_model.NAME}")
    reason = local_model.find_missing()
    if reason is not None:
        raise NoModel(local_model.NAME, reason)
    return local_model.LocalModel()


def _load_served(server: LocalServer, model: str, configured: Config) -> Model:
    settings = configured.get_model_settings(f"{server.name}:{model}")
    url = (settings.base_url or server.get_address()).rstrip("/").removesuffix("/v1")
    served = query_server(server, url)
    if not model:
        if served is None or not served.models:
            raise NoModel(server.name, f"no server with a model answers at {url}")
        model = served.models[0]
        settings = configured.get_model_settings(f"{server.name}:{model}")
    if settings.context_window is None:
        settings = replace(settings, context_window=served.window if served else server.query_window(url))
    target = ModelTarget(provider=server.name, model=model, api=ApiKind.OPENAI_COMPATIBLE, base_url=f"{url}/v1")
    return _create_model(target, settings)


def _build_target(provider: str, model: str, configured: Config) -> ModelTarget:
    name = f"{provider}:{model}"
    settings = configured.get_model_settings(name)
    known = PROVIDERS.get(provider)
    url = settings.base_url or (known and known.url_variable and os.environ.get(known.url_variable)) or None
    if known is None and url is None:
        described = sorted(other for other, its in configured.models.items() if its.base_url)
        of_provider = [other for other in described if other.partition(":")[0] == provider]
        if of_provider:
            raise NotFound("model", name, f"the configuration has a base_url for {', '.join(of_provider)}")
        own = [*(other.partition(":")[0] for other in described), *configured.servers]
        names = ", ".join(dict.fromkeys([*PROVIDERS, *LOCAL_SERVERS, LOCAL, *own]))
        hint = f"use provider:model; providers: {names}; any other provider needs a base_url in the configuration"
        raise NotFound("provider", provider, hint)
    if not model:
        raise NotFound("model", name, "use provider:model")
    key = _find_key(name, known, settings, needed=url is None)
    if known is None:
        return ModelTarget(
            provider=provider,
            model=model,
            api=ApiKind.OPENAI_COMPATIBLE,
            key=key.value,
            base_url=url,
            has_stored_key=key.is_stored,
        )
    api = (
        ApiKind.OPENAI_COMPATIBLE
        if provider == "openai" and url and urlsplit(url).hostname != "api.openai.com"
        else known.api
    )
    return ModelTarget(
        provider=provider,
        model=model,
        api=api,
        key=key.value,
        base_url=url or known.base_url,
        has_stored_key=key.is_stored,
    )


def _find_key(name: str, known: Provider | None, settings: ModelSettings, *, needed: bool) -> FoundKey:
    if settings.key_variable is not None:
        key = os.environ.get(settings.key_variable)
        if not key:
            raise NoModel(name, f"{settings.key_variable} is not set")
        return FoundKey(key)
    found = _find_provider_key(name.partition(":")[0])
    if found is None and known is not None and needed:
        raise NoModel(name, f"{known.keys[0]} is not set")
    return found or FoundKey(None)


class FoundKey(Struct, frozen=True):
    value: str | None
    """`None` for a server that needs no key."""
    variable: str = ""
    """The environment variable that holds it, if it was found there."""
    is_stored: bool = False

    @property
    def reason(self) -> str:
        return "its key is stored" if self.is_stored else f"{self.variable} is set"


def _find_provider_key(name: str) -> FoundKey | None:
    """Return the key of a provider: the stored one, or the one in the environment."""
    with suppress(StoreError):  # `/login` reports a damaged file
        if stored := read_stored_keys().get(name):
            return FoundKey(stored, is_stored=True)
    provider = PROVIDERS.get(name)
    variables = () if provider is None else provider.keys
    variable = next((variable for variable in variables if os.environ.get(variable)), None)
    return None if variable is None else FoundKey(os.environ[variable], variable)


def _create_model(target: ModelTarget, settings: ModelSettings) -> Model:
    name = f"{target.provider}:{target.model}"
    if find_spec("pydantic_ai") is None:
        raise NoModel(name, _NOT_INSTALLED)
    from sessiontree.model.adapter import ProviderModel

    try:
        return ProviderModel(target, settings)
    except ModelError as error:
        raise NoModel(name, error.reason) from error


# The model that the user chose last, and the favorites. They are in `state.json`, not in the configuration.


class _StoredChoice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    model: str = ""
    configured: str | None = None
    """The configured model at the time of the choice."""
    favorites: tuple[str, ...] = ()


def remember_model(model: str, configured: str | None) -> None:
    """Store the model that the user chose, together with the configured model. Raises `StoreError`."""
    _write_choice(replace(_read_choice(), model=model, configured=configured))


def recall_model(configured: str | None) -> str | None:
    """Return the model that the user chose last; `None` if there is none, or the configured model has changed since."""
    choice = _read_choice()
    return choice.model if choice.configured == configured and choice.model else None


def list_favorites() -> tuple[str, ...]:
    return _read_choice().favorites


def toggle_favorite(model: str) -> tuple[str, ...]:
    """Add a model to the favorites or remove it, and return all of them. Raises `StoreError`."""
    choice = _read_choice()
    others = tuple(name for name in choice.favorites if name != model)
    changed = replace(choice, favorites=others if model in choice.favorites else (*others, model))
    _write_choice(changed)
    return changed.favorites


def _read_choice() -> _StoredChoice:
    try:
        return msgspec.json.decode(read_regular_file(_get_state_path(), MAX_STATE_BYTES), type=_StoredChoice)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return _StoredChoice()


def _write_choice(choice: _StoredChoice) -> None:
    make_private_directory(get_home())
    write_private(_get_state_path(), msgspec.json.encode(choice) + b"\n")


def _get_state_path() -> str:
    return os.path.join(get_home(), "state.json")
