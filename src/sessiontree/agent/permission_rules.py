"""Permission rules: parse them, decide about a tool call, and read and write `permissions.toml`.

`decide` depends only on the call, the rules and the mode; it reads the file system only to resolve links. Asking the
user is in `permissions`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec
from msgspec import Struct

from sessiontree.agent import command_patterns
from sessiontree.agent.tool import Tool, ToolEffect
from sessiontree.agent.tools.file_access import compile_glob
from sessiontree.agent.tools.output_limits import is_full_output
from sessiontree.config import ConfigError, PermissionMode, PermissionSettings, RuleText, convert_setting, parse_toml
from sessiontree.errors import StoreError
from sessiontree.home import get_home, is_below
from sessiontree.regular_file import read_regular_file
from sessiontree.store.file_operations import format_os_error, make_private_directory, write_private
from sessiontree.store.lock import lock_file

Decision: TypeAlias = Literal["allow", "ask", "deny"]

PERMISSION_MODES: tuple[PermissionMode, ...] = ("read-only", "ask", "allow-edits", "allow-all")
ANY_ENDING = "*"
GUARDED_FOLDERS = (".git", ".sessiontree")
"""Files in these folders can run commands later, so editing them counts as running a command."""


class PermissionRule(NamedTuple):
    tool: str
    """The name of a tool, or its start and `*`, such as `mcp__github__*`."""
    pattern: str | None = None
    """A pattern for the command or the path; `None` matches every call."""

    def __str__(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}:{self.pattern}"


def parse_rule(text: str) -> PermissionRule:
    """Parse `TOOL` or `TOOL:PATTERN`. Whitespace after the colon is ignored."""
    tool, colon, pattern = text.partition(":")
    return PermissionRule(tool.strip(), (pattern.lstrip(command_patterns.BLANKS) or pattern) if colon else None)


class RuleSet(Struct, frozen=True):
    """A set of rules. `deny` takes precedence over `ask`, and `ask` over `allow`."""

    allow: tuple[PermissionRule, ...] = ()
    ask: tuple[PermissionRule, ...] = ()
    deny: tuple[PermissionRule, ...] = ()

    @classmethod
    def from_settings(cls, settings: PermissionSettings) -> RuleSet:
        parsed = (tuple(map(parse_rule, texts)) for texts in (settings.allow, settings.ask, settings.deny))
        return cls(*parsed)

    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(self.allow + other.allow, self.ask + other.ask, self.deny + other.deny)


class CallPath(NamedTuple):
    """A path in the arguments of a call."""

    real: str
    """The absolute path, with links resolved."""
    relative: str | None
    """The path relative to the session's folder; `None` outside of it."""
    named: str
    """The relative path with links not resolved; `ask` and `deny` rules match it too."""


class PermissionCall(NamedTuple):
    """A tool call as the rules see it."""

    tool: str
    does: ToolEffect
    command: str | None
    paths: tuple[CallPath, ...]
    texts: tuple[str, ...]
    """All strings in its arguments, for tools that declare neither a command nor paths."""

    @property
    def outside_paths(self) -> list[str]:
        """The paths outside of the session's folder. Files with the full output of a tool may be read."""
        reads = self.does == "reads"
        return [path.real for path in self.paths if path.relative is None and not (reads and is_full_output(path.real))]


class PermissionVerdict(NamedTuple):
    decision: Decision
    reason: str
    """A clause that follows the title of the call and a colon."""
    by_rule: bool = False
    """Whether a rule or an answer of the user decided."""


def describe_call(tool: Tool, arguments: Mapping[str, Any], folder: str) -> PermissionCall:
    """Describe a call; paths are relative to `folder`."""
    command = None if tool.command is None else arguments.get(tool.command)
    named = [path for name in tool.paths for path in _collect_texts(arguments.get(name))]
    paths = tuple(found for path in named for found in _resolve_call_paths(path, folder))
    texts = tuple(_collect_texts(dict(arguments)))
    return PermissionCall(tool.name, tool.does, command if isinstance(command, str) else None, paths, texts)


def _collect_texts(value: Any) -> Iterable[str]:
    if isinstance(value, str | os.PathLike):
        yield os.fspath(cast("str", value))
    elif isinstance(value, Mapping):
        for item in cast("Mapping[Any, Any]", value).values():
            yield from _collect_texts(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in cast("Iterable[Any]", value):
            yield from _collect_texts(item)


def _resolve_call_paths(path: str, folder: str) -> Iterable[CallPath]:
    # Tools that only read ignore a leading `@` if that finds a file, so both paths are checked.
    for spelled in (path, path[1:]) if path.startswith("@") else (path,):
        if spelled and "\0" not in spelled:  # tools reject other paths
            full = os.path.join(folder, os.path.expanduser(spelled))
            real = os.path.realpath(full)
            yield CallPath(real, _make_relative(real, folder), os.path.relpath(full, folder))


def _make_relative(real: str, folder: str) -> str | None:
    """Return the path relative to the session's folder; `None` outside of it and for files of sessiontree itself."""
    root, own = os.path.realpath(folder), os.path.realpath(get_home())
    if not is_below(real, root) or (is_below(real, own) and not is_below(root, own)):
        return None
    return os.path.relpath(real, root)


# Deciding


def decide(
    call: PermissionCall, rules: RuleSet, mode: PermissionMode, granted: Sequence[PermissionRule] = ()
) -> PermissionVerdict:
    """Decide about a call. `granted` are the rules that the user has allowed for this session."""
    for rule in rules.deny:
        if _restricts_call(rule, call):
            return PermissionVerdict("deny", f"denied by the rule {str(rule)!r}", by_rule=True)
    if mode == "read-only" and call.does != "reads":
        return PermissionVerdict("deny", "the permission mode is read-only")
    if _is_allowed(call, granted):
        return PermissionVerdict("allow", "allowed for this session")
    for rule in rules.ask:
        if _restricts_call(rule, call):
            return PermissionVerdict("ask", f"the rule {str(rule)!r} requires approval", by_rule=True)
    if _is_allowed(call, rules.allow):
        return PermissionVerdict("allow", "allowed by a rule", by_rule=True)
    outside = call.outside_paths
    if outside:
        return PermissionVerdict("ask", f"{outside[0]} is outside of the session's folder")
    if mode == "allow-all" or call.does == "reads":
        return PermissionVerdict("allow", f"the permission mode is {mode}")
    if mode == "allow-edits" and call.does == "edits":
        guarded = [path.relative for path in call.paths if path.relative and _is_guarded(path.relative)]
        if not guarded:
            return PermissionVerdict("allow", "the permission mode is allow-edits")
        return PermissionVerdict("ask", f"{guarded[0]} can run commands later")
    return PermissionVerdict("ask", "it edits files" if call.does == "edits" else "it can change anything")


def pick_strictest(*modes: PermissionMode | None) -> PermissionMode:
    """Return the strictest mode; `ask` if none is given."""
    given = {mode for mode in modes if mode is not None} or {"ask"}
    return PERMISSION_MODES[min(PERMISSION_MODES.index(mode) for mode in given)]


def _is_guarded(relative: str) -> bool:
    return any(part.casefold() in GUARDED_FOLDERS for part in relative.split(os.sep))  # case may not matter


def _matches_tool(rule: PermissionRule, call: PermissionCall) -> bool:
    if rule.tool.endswith(ANY_ENDING):
        return call.tool.startswith(rule.tool.removesuffix(ANY_ENDING))
    return rule.tool == call.tool


def _is_allowed(call: PermissionCall, rules: Iterable[PermissionRule]) -> bool:
    """Return whether allow rules cover the whole call."""
    named = [rule for rule in rules if _matches_tool(rule, call)]
    if not named:
        return False
    patterns = [rule.pattern for rule in named if rule.pattern is not None]
    if call.command is not None:
        if call.outside_paths:
            return False  # command rules do not cover paths outside of the folder
        allows_all = any(rule.pattern is None for rule in named)
        return allows_all or (bool(patterns) and command_patterns.allows(patterns[0], call.command, patterns[1:]))
    if call.paths:
        outside = call.outside_paths
        return all(_is_path_allowed(path, named, call.does, outside=path.real in outside) for path in call.paths)
    return any(rule.pattern is None for rule in named)


def _is_path_allowed(path: CallPath, rules: Iterable[PermissionRule], does: ToolEffect, *, outside: bool) -> bool:
    if outside:  # needs a rule with an absolute path
        return any(rule.pattern is not None and _matches_absolute(rule.pattern, path) for rule in rules)
    if does != "reads" and path.relative is not None and _is_guarded(path.relative):
        rules = [rule for rule in rules if rule.pattern is not None and _is_guarded(rule.pattern)]
    return any(rule.pattern is None or _matches_path(rule.pattern, path) for rule in rules)


def _restricts_call(rule: PermissionRule, call: PermissionCall) -> bool:
    """Return whether an ask or deny rule matches any part of a call."""
    if not _matches_tool(rule, call):
        return False
    if rule.pattern is None:
        return True
    if call.command is not None and command_patterns.restricts(rule.pattern, call.command):
        return True
    if call.command is not None or call.paths:
        return any(_restricts_path(rule.pattern, path) for path in call.paths)
    return any(command_patterns.restricts(rule.pattern, text) for text in call.texts)


def _restricts_path(pattern: str, path: CallPath) -> bool:
    by_name = "/" not in pattern and _matches_glob(pattern, path.real)  # a file name, in any folder
    return by_name or _matches_path(pattern, path) or _matches_relative(pattern, path._replace(relative=path.named))


def _matches_path(pattern: str, path: CallPath) -> bool:
    return _matches_relative(pattern, path) or _matches_absolute(pattern, path)


def _matches_relative(pattern: str, path: CallPath) -> bool:
    if path.relative is None or _is_absolute(pattern):
        return False
    if pattern in ("**", "./**"):
        return True
    anchored = f"/{pattern[2:]}" if pattern.startswith("./") else pattern
    return _matches_glob(anchored, path.relative)


def _matches_absolute(pattern: str, path: CallPath) -> bool:
    return _is_absolute(pattern) and _matches_glob(os.path.expanduser(pattern), path.real)


def _matches_glob(pattern: str, path: str) -> bool:
    """Return whether a path matches a pattern. `folder/**` also matches the folder itself."""
    inside = path.replace(os.sep, "/").strip("/")
    if pattern.endswith("/**") and compile_glob(pattern.removesuffix("/**") or "/").fullmatch(inside):
        return True
    return compile_glob(pattern).fullmatch(inside) is not None


def _is_absolute(pattern: str) -> bool:
    return pattern.startswith(("/", "~"))


# Rules from answers


def build_rule(call: PermissionCall) -> PermissionRule | None:
    """Return the rule that `session` and `always` add; `None` if no rule would cover the call."""
    outside = call.outside_paths
    if call.command is not None:
        return None if outside else PermissionRule(call.tool, command_patterns.escape(call.command))
    if outside:
        if len(set(outside)) > 1:
            return None
        below = "/**" if os.path.isdir(outside[0]) else ""
        return PermissionRule(call.tool, escape_path(outside[0]) + below)
    guarded = {path.relative for path in call.paths if path.relative is not None and _is_guarded(path.relative)}
    if guarded and call.does != "reads":
        return PermissionRule(call.tool, f"./{escape_path(guarded.pop())}") if len(guarded) == 1 else None
    return PermissionRule(call.tool, "**" if call.paths else None)


def escape_path(path: str) -> str:
    """Return a pattern that matches only this path."""
    return re.sub(r"[*?\[{},]", lambda found: f"[{found[0]}]", path)


RULES_FILE = "permissions.toml"
MAX_RULES_BYTES = 1 << 20
RULES_HEADING = """\
# What agents may do, in all folders and in single folders. The answer "always" adds a rule here.
"""


class FolderRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    allow: tuple[RuleText, ...] = ()
    ask: tuple[RuleText, ...] = ()
    deny: tuple[RuleText, ...] = ()

    @property
    def rules(self) -> RuleSet:
        return RuleSet.from_settings(PermissionSettings(allow=self.allow, ask=self.ask, deny=self.deny))


class UserRules(FolderRules, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    folders: dict[str, FolderRules] = {}
    """By the absolute path of the session's folder."""


def read_user_rules(home: str) -> UserRules:
    """Read the user's `permissions.toml`. Raises `ConfigError`."""
    path = os.path.join(home, RULES_FILE)
    try:
        raw = read_regular_file(path, MAX_RULES_BYTES)
    except FileNotFoundError:
        return UserRules()
    except OSError as error:
        raise ConfigError(path, None, f"cannot be read: {error.strerror or error}") from error
    return convert_setting(path, UserRules, parse_toml(path, raw))


def read_folder_rules(home: str, cwd: str) -> RuleSet:
    """Read the user's rules for all folders and for this one. Raises `ConfigError`."""
    user = read_user_rules(home)
    own = user.folders.get(os.path.realpath(cwd))
    return user.rules if own is None else user.rules + own.rules


def parse_project_rules(path: str, raw: bytes) -> tuple[PermissionMode | None, RuleSet, bool]:
    """Return the mode and rules of a project, and whether it has allow rules. Raises `ConfigError`."""
    settings: PermissionSettings = convert_setting(path, PermissionSettings, parse_toml(path, raw))
    return settings.mode, RuleSet.from_settings(settings), bool(settings.allow)


def can_save_rule(rule: PermissionRule, cwd: str) -> bool:
    """Return whether the rule and the folder can be written as UTF-8."""
    try:
        f"{rule}{os.path.realpath(cwd)}".encode()
    except UnicodeEncodeError:
        return False
    return True


def add_allow_rule(home: str, cwd: str, rule: PermissionRule) -> None:
    """Add an allow rule for a folder to `permissions.toml`. Raises `ConfigError` or `StoreError`."""
    make_private_directory(home)
    path, folder = os.path.join(home, RULES_FILE), os.path.realpath(cwd)
    try:
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(path, format_os_error(error)) from error
    try:
        lock_file(fd, path)  # two processes may add rules at the same time
        before = read_user_rules(home)
        own = before.folders.get(folder, FolderRules())
        if str(rule) not in own.allow:
            own = msgspec.structs.replace(own, allow=(*own.allow, str(rule)))
            after = msgspec.structs.replace(before, folders={**before.folders, folder: own})
            write_private(path, _format_toml(after).encode())
    finally:
        os.close(fd)


def _format_toml(rules: UserRules) -> str:
    parts = [RULES_HEADING, *_format_rule_lists(rules)]
    for folder, own in rules.folders.items():
        parts += [f"\n[folders.{_quote(folder)}]\n", *_format_rule_lists(own)]
    return "".join(parts)


def _format_rule_lists(rules: FolderRules) -> Iterable[str]:
    for name in ("allow", "ask", "deny"):
        texts: tuple[str, ...] = getattr(rules, name)
        if texts:
            yield "".join([f"{name} = [\n", *(f"    {_quote(text)},\n" for text in texts), "]\n"])


def _quote(text: str) -> str:
    """Return a TOML string. It is a JSON string, except for one character."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
