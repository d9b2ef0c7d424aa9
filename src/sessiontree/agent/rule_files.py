"""Files of rules: `permissions.toml` in the user's home, which the program writes, and in a project, which it reads.

The user's has rules for every folder, and tables of rules for one folder: an answer for always adds to one of these.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from sessiontree.agent.permission_rules import PermissionRule, RuleSet
from sessiontree.config import ConfigError, PermissionMode, PermissionSettings, RuleText, convert_setting, parse_toml
from sessiontree.errors import StoreError
from sessiontree.store.files import format_os_error, make_private_directory, write_private
from sessiontree.store.lock_wait import lock_file

RULES_FILE = "permissions.toml"
MAX_RULES_BYTES = 1 << 20
RULES_HEADING = """\
# Rules about what agents may do, for all folders and by folder. Answers of "always" are added here.
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
    """By the absolute path of a session's folder."""


def read_user_rules(home: str) -> UserRules:
    """The user's rules. Raises `ConfigError`."""
    path = os.path.join(home, RULES_FILE)
    raw = _read_rules_file(path)
    return UserRules() if raw is None else convert_setting(path, UserRules, parse_toml(path, raw))


def read_folder_rules(home: str, cwd: str) -> RuleSet:
    """The user's rules for a folder: those for all, and its own. Raises `ConfigError`."""
    said = read_user_rules(home)
    own = said.folders.get(os.path.realpath(cwd))
    return said.rules if own is None else said.rules + own.rules


def parse_project_rules(path: str, raw: bytes) -> tuple[PermissionMode | None, RuleSet, bool]:
    """The mode and rules of a project, and whether it wanted to allow something. Raises `ConfigError`."""
    said: PermissionSettings = convert_setting(path, PermissionSettings, parse_toml(path, raw))
    return said.mode, RuleSet.from_settings(said), bool(said.allow)


def can_save_rule(rule: PermissionRule, cwd: str) -> bool:
    """Whether a rule for a folder can be written to a file: both must be text."""
    try:
        f"{rule}{os.path.realpath(cwd)}".encode()
    except UnicodeEncodeError:
        return False
    return True


def add_allow_rule(home: str, cwd: str, rule: PermissionRule) -> None:
    """Allow something in a folder from now on. Raises `ConfigError` or `StoreError`."""
    make_private_directory(home)
    path, folder = os.path.join(home, RULES_FILE), os.path.realpath(cwd)
    try:
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(path, format_os_error(error)) from error
    try:
        lock_file(fd, path)  # two answers at the same time are both kept
        before = read_user_rules(home)
        own = before.folders.get(folder, FolderRules())
        if str(rule) not in own.allow:
            own = msgspec.structs.replace(own, allow=(*own.allow, str(rule)))
            after = msgspec.structs.replace(before, folders={**before.folders, folder: own})
            write_private(path, _format_toml(after).encode())
    finally:
        os.close(fd)


def _read_rules_file(path: str) -> bytes | None:
    """What a file holds; `None` where there is none. Nothing but a plain file is waited for."""
    import stat

    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(path, None, f"it cannot be read: {format_os_error(error)}") from error
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigError(path, None, "it is no plain file")
        raw = file.read(MAX_RULES_BYTES + 1)
    if len(raw) > MAX_RULES_BYTES:
        raise ConfigError(path, None, f"it is larger than {MAX_RULES_BYTES >> 20} MiB")
    return raw


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
    """A string of TOML: as JSON has it, but for one letter."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
