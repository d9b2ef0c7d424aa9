"""The configuration: `config.toml` in the home of sessiontree, read into frozen values.

A file that is not there means the defaults; one that is wrong is a `ConfigError`, never half of it taken.
Nothing here knows what the settings do, and nothing is ever written.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct

from sessiontree.core.messages import is_list, is_object
from sessiontree.core.validation import describe_validation_error
from sessiontree.errors import SessionTreeError
from sessiontree.home import CONFIG_NAME, get_home
from sessiontree.regular_file import read_regular_file

ThinkingLevel: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh"]
DoubleEscape: TypeAlias = Literal["tree", "fork", "none"]
PermissionMode: TypeAlias = Literal["read-only", "ask", "allow-edits", "allow-all"]
"""From the strictest to the most lenient."""

CHOICES = {
    "thinking": get_args(ThinkingLevel),
    "double_escape": get_args(DoubleEscape),
    "mode": get_args(PermissionMode),
    "permissions.mode": get_args(PermissionMode),
}

DEFAULT_ANSWER_LIMIT = 128 << 20
"""Bytes of one answer: far more than any model writes, so a stream that goes on has no end."""

Count: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 40)]
Price: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Url: TypeAlias = Annotated[str, Meta(pattern="^https?://")]
Variable: TypeAlias = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
RuleText: TypeAlias = Annotated[str, Meta(pattern=r"^[^\s:]+(:[\s\S]+)?$")]
"""`TOOL` or `TOOL:PATTERN`."""
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=3600)]


PROVIDER_KEY_VARIABLES = frozenset(
    f"{name}_API_KEY"
    for name in (
        *("ANTHROPIC", "OPENAI", "GOOGLE", "GEMINI", "OPENROUTER", "XAI", "MISTRAL", "DEEPSEEK", "MOONSHOTAI"),
        *("MOONSHOT", "ZAI", "GROQ", "CEREBRAS", "TOGETHER", "FIREWORKS"),
    )
)
"""Environment variables with the keys of providers, as `model/providers.py` has them."""
DATABASE_SECRET_VARIABLES = frozenset({"PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE", "DATABASE_URL"})
"""Environment variables that let their reader into a database."""


class ConfigError(SessionTreeError):
    """The configuration says something that cannot be understood."""

    def __init__(self, file: str, key: str | None, reason: str) -> None:
        super().__init__(f"{file}: {reason}" if key is None else f"{file}: {key}: {reason}")
        self.file = file
        self.key = key
        """With dots, as in `compaction.enabled`; `None` where the file as a whole is wrong."""
        self.reason = reason


class Prices(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In dollars for a million tokens."""

    input: Price = 0
    output: Price = 0
    cache_read: Price = 0
    cache_write: Price = 0


class CompactionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = True
    """Whether a context that grows too long is compacted without being asked."""
    reserve_tokens: Count | None = None
    """Room kept for the answer; by default it scales with the model's window."""
    keep_recent_tokens: Count | None = None
    """How much of the newest messages stays as it is; by default it scales with the model's window."""


class CompactionOverride(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one model has otherwise; what is not set is as for all."""

    enabled: bool | None = None
    reserve_tokens: Count | None = None
    keep_recent_tokens: Count | None = None


class SummarySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of branches that are left."""

    reserve_tokens: Count | None = None
    """Room kept for the summary; by default it scales with the model's window."""
    skip_prompt: bool = False
    """Whether navigating goes on without asking for a summary."""


class RetrySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    attempts: Annotated[int, Meta(ge=1, le=100)] = 4
    """How often a request is made in all; 1 never tries again."""
    base_delay: Seconds = 2.0
    """Seconds before the second attempt; each further one waits twice as long."""


class ToolSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    environment: tuple[Variable, ...] = ()
    """Environment variables that commands get beside the usual ones; never the keys of models."""
    user: Annotated[str, Meta(min_length=1)] | None = None
    """The user that commands of the server's agents run as, where the server runs as root."""


class PermissionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tool calls may be made."""

    mode: PermissionMode | None = None
    """What holds where no rule says otherwise: `ask` by default."""
    allow: tuple[RuleText, ...] = ()
    ask: tuple[RuleText, ...] = ()
    deny: tuple[RuleText, ...] = ()


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of one model; it wins over what is known of it."""

    base_url: Url | None = None
    """An OpenAI-compatible server, or another address of the provider's own."""
    key_variable: str | None = None
    """The environment variable with its key."""
    context_window: Count | None = None
    output_limit: Count | None = None
    images: bool | None = None
    thinking: bool | None = None
    prices: Prices | None = None
    compaction: CompactionOverride = CompactionOverride()


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sessions: str | None = None
    """The folder where sessions live; `None` is `sessions` in the home."""
    model: str | None = None
    """The model to use where none is named, as `provider:model`."""
    thinking: ThinkingLevel = "off"
    double_escape: DoubleEscape = "tree"
    """What pressing escape twice opens."""
    lock_timeout: Seconds = 30.0
    """Seconds that a session or the index is waited for while another process has it locked."""
    compaction: CompactionSettings = CompactionSettings()
    summary: SummarySettings = SummarySettings()
    retry: RetrySettings = RetrySettings()
    tools: ToolSettings = ToolSettings()
    answer_limit: Count = DEFAULT_ANSWER_LIMIT
    """How many bytes one answer may have. A longer one is stopped there, and what has arrived is kept."""
    permissions: PermissionSettings = PermissionSettings()
    models: dict[str, ModelSettings] = {}
    """By `provider:model`."""
    keys: dict[str, str | list[str]] = {}
    """Key bindings: what is done, and the key or keys that do it."""

    def get_model_settings(self, name: str) -> ModelSettings:
        """What is said of the model `provider:model`."""
        return self.models.get(name) or ModelSettings()

    def find_secret_reason(self, name: str) -> str | None:
        """Say why commands never get the environment variable `name`; `None` where they may."""
        if name in PROVIDER_KEY_VARIABLES:
            return "it holds the key of a provider of models"
        for model, settings in self.models.items():
            if name == settings.key_variable:
                return f'it holds the key of models."{model}"'
        if name.startswith("SESSIONTREE_") and name != "SESSIONTREE_HOME":
            return "it is for sessiontree alone"
        return "it holds the password of a database" if name in DATABASE_SECRET_VARIABLES else None

    def get_compaction_settings(self, name: str) -> CompactionSettings:
        """How contexts of the model `provider:model` are compacted."""
        override = msgspec.structs.asdict(self.get_model_settings(name).compaction)
        return msgspec.structs.replace(
            self.compaction, **{key: value for key, value in override.items() if value is not None}
        )


def load(file: str | os.PathLike[str] | None = None) -> Config:
    """What `file` says, by default `config.toml` in the home. Raises `ConfigError`."""
    path = os.path.join(get_home(), CONFIG_NAME) if file is None else os.fspath(file)
    try:
        raw = read_regular_file(path)
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise ConfigError(path, None, f"it cannot be read: {error.strerror or error}") from error
    config = _build_config(path, parse_toml(path, raw))
    if config.sessions is None:
        return config
    folder = os.path.join(os.path.dirname(path), os.path.expanduser(config.sessions))
    return msgspec.structs.replace(config, sessions=os.path.abspath(folder))


def parse_toml(path: str, raw: bytes) -> dict[str, Any]:
    """The tables of a TOML file. Raises `ConfigError`."""
    import tomllib

    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(path, None, "it is no UTF-8") from error
    except ValueError as error:  # what `tomllib` raises, and Python for numbers of thousands of digits
        raise ConfigError(path, None, f"it is no TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(path, None, "it is too deeply nested") from error


def _build_config(path: str, table: dict[str, Any]) -> Config:
    # What is wrong inside a table of free names would be told without the name, so these go one by one.
    table = dict(table)
    for name, kind in (("models", ModelSettings), ("keys", str | list[str])):
        free = table.get(name)
        if is_object(free):
            table[name] = {key: convert_setting(path, kind, said, f'{name}."{key}"') for key, said in free.items()}
    _check_no_nul(path, table)
    config = convert_setting(path, Config, table)
    for name in config.models:
        provider, _, model = name.partition(":")
        if not (provider and model):
            raise ConfigError(path, f'models."{name}"', "a model is named provider:model")
    for name in config.tools.environment:
        reason = config.find_secret_reason(name)
        if reason is not None:
            raise ConfigError(path, "tools.environment", f"{name} is never given to commands: {reason}")
    return config


def _check_no_nul(path: str, table: dict[str, Any], prefix: str = "") -> None:
    """No path, name or address contains a NUL: the system refuses it, wherever it is used. Raises `ConfigError`."""
    for key, value in table.items():
        key = f'{prefix}."{key}"' if prefix == "models" else f"{prefix}.{key}" if prefix else key
        value = msgspec.to_builtins(value)
        if is_object(value):
            _check_no_nul(path, value, key)
        elif "\0" in "".join(text for text in (value if is_list(value) else [value]) if isinstance(text, str)):
            raise ConfigError(path, key, "it cannot contain a NUL character")


def convert_setting(path: str, kind: Any, value: Any, prefix: str = "") -> Any:
    """What a table of a file says, which is at `prefix` there. Raises `ConfigError`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        inside, reason = describe_validation_error(error, "setting")
        if inside in CHOICES and reason.startswith("invalid enum value"):
            reason = f"choose one of {', '.join(CHOICES[inside])}"
        raise ConfigError(path, ".".join(filter(None, (prefix, inside))) or None, reason) from error
