"""The configuration: `config.toml` in the home folder, as frozen values.

Without the file, the defaults apply. An invalid file raises `ConfigError`, and none of it is used. `config_editing`
changes it.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct

from sessiontree.core.messages import is_list, is_object
from sessiontree.errors import SessionTreeError, describe_validation_error
from sessiontree.format.nesting import NESTING_LIMIT, is_deep
from sessiontree.home import CONFIG_NAME, get_home
from sessiontree.regular_file import read_regular_file

ThinkingLevel: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh"]
DoubleEscape: TypeAlias = Literal["tree", "fork", "none"]
SourceName: TypeAlias = Literal["pi", "omp", "claude", "codex", "gemini", "opencode"]
ThemeName: TypeAlias = Literal["auto", "dark", "light", "night", "paper", "dusk", "colorblind"]
PermissionMode: TypeAlias = Literal["read-only", "ask", "allow-edits", "allow-all"]
"""From the strictest to the most permissive."""

CHOICES = {
    "thinking": get_args(ThinkingLevel),
    "double_escape": get_args(DoubleEscape),
    "app.theme": get_args(ThemeName),
    "mode": get_args(PermissionMode),
    "permissions.mode": get_args(PermissionMode),
}

DEFAULT_ANSWER_LIMIT = 128 << 20
"""Bytes of one answer. No model writes that much; it stops an endless stream."""

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
"""Environment variables with the API keys of the providers in `model/providers.py`."""
DATABASE_SECRET_VARIABLES = frozenset({"PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE", "DATABASE_URL"})
"""Environment variables with credentials of a database."""


class ConfigError(SessionTreeError):
    """The configuration is invalid."""

    def __init__(self, file: str, key: str | None, reason: str) -> None:
        super().__init__(f"{file}: {reason}" if key is None else f"{file}: {key}: {reason}")
        self.file = file
        self.key = key
        """The dotted key, such as `compaction.enabled`; `None` if the file as a whole is invalid."""
        self.reason = reason


class Prices(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices in dollars per million tokens."""

    input: Price = 0
    output: Price = 0
    cache_read: Price = 0
    cache_write: Price = 0


class CompactionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the context is compacted, and how much of it is kept."""

    enabled: bool = True
    """Whether a context that grows too long is compacted automatically."""
    reserve_tokens: Count | None = None
    """Tokens reserved for the answer; by default a share of the model's context window."""
    keep_recent_tokens: Count | None = None
    """Tokens of the newest messages that are not summarized; by default a share of the context window."""


class CompactionOverride(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Compaction settings of one model. Unset values come from the settings of all models."""

    enabled: bool | None = None
    reserve_tokens: Count | None = None
    keep_recent_tokens: Count | None = None


class SummarySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for summaries of abandoned branches."""

    reserve_tokens: Count | None = None
    """Tokens reserved for the summary; by default a share of the model's context window."""
    skip_prompt: bool = False
    """Whether navigation skips the question about a summary."""


class RetrySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    attempts: Annotated[int, Meta(ge=1, le=100)] = 4
    """The number of attempts in total; 1 never retries."""
    base_delay: Seconds = 2.0
    """Seconds before the second attempt. The delay doubles with every further attempt."""


class ToolSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    environment: tuple[Variable, ...] = ()
    """Environment variables that commands get in addition to the usual ones; never API keys."""
    user: Annotated[str, Meta(min_length=1)] | None = None
    """The user that runs the commands of the server's agents, if the server runs as root."""


class FileSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Snapshots of the files that an agent works on."""

    snapshots: bool = True
    """Whether snapshots are taken before and after tool calls that may change files."""
    max_file_bytes: Count = 5 << 20
    """Larger files are left out, in bytes."""
    max_files: Count = 100_000
    """A folder with more files than this that are not ignored has no snapshots."""
    private_folders: bool = True
    """Whether agents of fan-outs, experiments and swarms that may change files work in private folders."""
    copied_folders: tuple[str, ...] = (".venv", "node_modules")
    """Folders at the top of the project that are ignored but needed. They are copied into private folders."""


class PermissionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tool calls are allowed."""

    mode: PermissionMode | None = None
    """The mode for calls without a matching rule: `ask` by default."""
    allow: tuple[RuleText, ...] = ()
    ask: tuple[RuleText, ...] = ()
    deny: tuple[RuleText, ...] = ()


class SourceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions of other programs in listings."""

    show: tuple[SourceName, ...] = ()
    """The programs whose sessions `ls`, `search` and the app list together with your own."""


class McpServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach one MCP server: a `command` that runs it, or the `url` of one that runs already.

    In `env`, `args`, `url` and `headers`, `${NAME}` is replaced by an environment variable, and `${NAME:-text}` by
    `text` if it is not set.
    """

    command: Annotated[str, Meta(min_length=1)] | None = None
    """The program of a server that speaks over its standard input and output."""
    args: tuple[str, ...] = ()
    env: dict[Variable, str] = {}
    """Variables of the server, in addition to the clean environment that commands of agents get."""
    cwd: str | None = None
    """The folder it runs in; by default the folder that the agent works in."""
    url: Url | None = None
    """The address of a server that speaks streamable HTTP."""
    headers: dict[str, str] = {}
    """Headers of every HTTP request, such as `Authorization`."""
    enabled: bool = True
    start_timeout: Annotated[float, Meta(gt=0, le=600)] = 30.0
    """Seconds until the server must have answered its first request."""
    timeout: Annotated[float, Meta(gt=0, le=86400)] = 300.0
    """Seconds that one tool call may take."""
    trust_read_only: bool = False
    """Whether tools that the server declares read-only run without a question, like our own that read."""


class McpSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    servers: dict[str, McpServerSettings] = {}
    """MCP servers whose tools agents may use, by name."""


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one model. They override the built-in data."""

    base_url: Url | None = None
    """The URL of an OpenAI-compatible server, or another URL of the provider."""
    key_variable: str | None = None
    """The environment variable with the API key."""
    context_window: Count | None = None
    output_limit: Count | None = None
    images: bool | None = None
    thinking: bool | None = None
    prices: Prices | None = None
    compaction: CompactionOverride = CompactionOverride()


class ProviderLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one provider for all workers that share a work database."""

    concurrent: Count | None = None
    """Calls of its models at the same time."""
    per_minute: Count | None = None
    """Calls of its models that begin within a minute."""


class AppSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the terminal app."""

    theme: ThemeName = "auto"
    """`auto` is dark or light, as the terminal is."""
    notify: bool = True
    """Whether the bell rings when a long run ends and the terminal is not focused."""
    vi_keys: bool = False
    """Whether the editor has the keys of vi."""


class ModelServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OpenAI-compatible server. Its models are named `NAME:MODEL`."""

    base_url: Url
    key_variable: str | None = None
    """The environment variable with the API key."""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration."""

    sessions: str | None = None
    """The folder of sessions; `None` is `sessions` in the home folder."""
    model: str | None = None
    """The default model, as `provider:model`."""
    thinking: ThinkingLevel = "off"
    double_escape: DoubleEscape = "tree"
    """What pressing Escape twice opens."""
    lock_timeout: Seconds = 30.0
    """Seconds to wait for a session or the index while another process holds its lock."""
    compaction: CompactionSettings = CompactionSettings()
    summary: SummarySettings = SummarySettings()
    retry: RetrySettings = RetrySettings()
    tools: ToolSettings = ToolSettings()
    files: FileSettings = FileSettings()
    answer_limit: Count = DEFAULT_ANSWER_LIMIT
    """The maximum size of one answer, in bytes. A longer one is cut off there and kept."""
    permissions: PermissionSettings = PermissionSettings()
    sources: SourceSettings = SourceSettings()
    mcp: McpSettings = McpSettings()
    models: dict[str, ModelSettings] = {}
    """Settings of models, by `provider:model`."""
    limits: dict[str, ProviderLimits] = {}
    """Limits of providers for all workers together, by the name of the provider."""
    app: AppSettings = AppSettings()
    servers: dict[str, ModelServerSettings] = {}
    """Model servers by name. `/login` adds them."""
    keys: dict[str, str | list[str]] = {}
    """Key bindings: the key or keys of each action."""

    def get_model_settings(self, name: str) -> ModelSettings:
        """Return the settings of the model `provider:model`, with the address of its server."""
        found = self.models.get(name) or ModelSettings()
        server = self.servers.get(name.partition(":")[0])
        if server is None or found.base_url is not None:
            return found
        variable = found.key_variable or server.key_variable
        return msgspec.structs.replace(found, base_url=server.base_url, key_variable=variable)

    def find_secret_reason(self, name: str) -> str | None:
        """Return why commands never get the environment variable `name`; `None` if they may."""
        if name in PROVIDER_KEY_VARIABLES:
            return "it contains the API key of a provider"
        for model, settings in self.models.items():
            if name == settings.key_variable:
                return f'it contains the API key of models."{model}"'
        for server, settings in self.servers.items():
            if name == settings.key_variable:
                return f"it contains the API key of servers.{server}"
        if name.startswith("SESSIONTREE_") and name != "SESSIONTREE_HOME":
            return "it is reserved for sessiontree"
        return "it contains credentials of a database" if name in DATABASE_SECRET_VARIABLES else None

    def get_compaction_settings(self, name: str) -> CompactionSettings:
        """Return the compaction settings of the model `provider:model`."""
        override = msgspec.structs.asdict(self.get_model_settings(name).compaction)
        return msgspec.structs.replace(
            self.compaction, **{key: value for key, value in override.items() if value is not None}
        )


def load_config(file: str | os.PathLike[str] | None = None) -> Config:
    """Load the configuration from `file`, by default `config.toml` in the home folder. Raises `ConfigError`."""
    path = os.path.join(get_home(), CONFIG_NAME) if file is None else os.fspath(file)
    try:
        raw = read_regular_file(path)
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise ConfigError(path, None, f"cannot be read: {error.strerror or error}") from error
    config = build_config(path, parse_toml(path, raw))
    if config.sessions is None:
        return config
    folder = os.path.join(os.path.dirname(path), os.path.expanduser(config.sessions))
    return msgspec.structs.replace(config, sessions=os.path.abspath(folder))


_ENDLESS_KEY = re.compile(
    rb"""(?<![\w"'-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]{0,9}\.[ \t]{0,9}){%d}""" % (NESTING_LIMIT + 1)
)
"""A dotted key with more parts than values may be nested."""


def parse_toml(path: str, raw: bytes) -> dict[str, Any]:
    """Parse a TOML file. Raises `ConfigError`."""
    import tomllib

    if _ENDLESS_KEY.search(raw):  # `tomllib` takes quadratic time for it
        raise ConfigError(path, None, "nested too deeply")
    try:
        table = tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(path, None, "not valid UTF-8") from error
    except ValueError as error:  # from `tomllib`, and from Python for numbers with thousands of digits
        raise ConfigError(path, None, f"not valid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(path, None, "nested too deeply") from error
    if is_deep(table):  # dotted keys nest without limit, and the conversion recurses
        raise ConfigError(path, None, "nested too deeply")
    return table


def build_config(path: str, table: dict[str, Any]) -> Config:
    """Build the configuration from the content of a file. Raises `ConfigError`."""
    # Tables with free names are converted one by one: only then does an error message contain the name.
    table = dict(table)
    for name, kind in (
        ("models", ModelSettings),
        ("limits", ProviderLimits),
        ("servers", ModelServerSettings),
        ("keys", str | list[str]),
    ):
        named_tables = table.get(name)
        if is_object(named_tables):
            table[name] = {
                key: convert_setting(path, kind, value, f'{name}."{key}"') for key, value in named_tables.items()
            }
    servers = table["mcp"].get("servers") if is_object(table.get("mcp")) else None
    if is_object(servers):
        table["mcp"] = {
            **table["mcp"],
            "servers": {
                key: convert_setting(path, McpServerSettings, value, f"mcp.servers.{key}")
                for key, value in servers.items()
            },
        }
    _check_no_nul(path, table)
    config = convert_setting(path, Config, table)
    for name in config.models:
        provider, _, model = name.partition(":")
        if not (provider and model):
            raise ConfigError(path, f'models."{name}"', "the name of a model has the form provider:model")
    for name in config.servers:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise ConfigError(path, f'servers."{name}"', "the name of a server has letters, digits, `-`, `_` and `.`")
    for name, server in config.mcp.servers.items():
        check_mcp_server(path, f"mcp.servers.{name}", name, server)
        other = next(other for other in config.mcp.servers if normalize_mcp_name(other) == normalize_mcp_name(name))
        if other != name:
            raise ConfigError(path, f"mcp.servers.{name}", f"its tools have the same names as those of {other!r}")
    for name in config.tools.environment:
        reason = config.find_secret_reason(name)
        if reason is not None:
            raise ConfigError(path, "tools.environment", f"{name} is never passed to commands: {reason}")
    return config


MCP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
"""Valid names of MCP servers. They are part of the names of tools."""


def normalize_mcp_name(name: str) -> str:
    """Return a name as it appears in the names of tools."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def find_mcp_name_problem(name: str) -> str | None:
    """Return why a server cannot have this name, or `None`.

    With `__` or a last `_`, the rule `mcp__a__*` for a server `a` would also cover the tools of another server.
    """
    if not MCP_NAME.fullmatch(name):
        return "the name of a server has at most 40 letters, digits, `-`, `_` and `.`"
    plain = normalize_mcp_name(name)
    if "__" in plain or plain.endswith("_"):
        return "the name of a server has no two `_` or `.` in a row, and none at its end"
    return None


def check_mcp_server(path: str, key: str, name: str, server: McpServerSettings) -> None:
    """Raise `ConfigError` if the name or the settings of an MCP server cannot work."""
    problem = find_mcp_name_problem(name)
    if problem is not None:
        raise ConfigError(path, key, problem)
    if (server.command is None) == (server.url is None):
        raise ConfigError(path, key, "set either `command` or `url`")
    unused = ("headers",) if server.url is None else ("args", "env", "cwd")
    for field in unused:
        if getattr(server, field):
            raise ConfigError(path, f"{key}.{field}", f"not used with `{'command' if server.url is None else 'url'}`")


def _check_no_nul(path: str, table: dict[str, Any], prefix: str = "") -> None:
    """Raise `ConfigError` if a value contains a NUL, which the system accepts in no path, name or address."""
    for key, value in table.items():
        key = f'{prefix}."{key}"' if prefix == "models" else f"{prefix}.{key}" if prefix else key
        value = msgspec.to_builtins(value)
        if is_object(value):
            _check_no_nul(path, value, key)
        elif "\0" in "".join(text for text in (value if is_list(value) else [value]) if isinstance(text, str)):
            raise ConfigError(path, key, "must not contain a NUL character")


def convert_setting(path: str, kind: Any, value: Any, prefix: str = "") -> Any:
    """Convert a value at the key `prefix` of a file to a type. Raises `ConfigError`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        inside, reason = describe_validation_error(error, "setting")
        if inside in CHOICES and reason.startswith("invalid enum value"):
            reason = f"choose one of {', '.join(CHOICES[inside])}"
        raise ConfigError(path, ".".join(filter(None, (prefix, inside))) or None, reason) from error
