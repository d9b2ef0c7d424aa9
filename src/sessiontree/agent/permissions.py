"""Permissions: decide whether a tool call may run, and ask the user if the rules require it.

Every tool call of every agent is checked here right before it runs. Front ends choose the mode, provide an asker and
show denied calls. Rules and rule files are in `permission_rules`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from sessiontree.agent.permission_rules import (
    PermissionCall,
    PermissionRule,
    PermissionVerdict,
    RuleSet,
    add_allow_rule,
    build_rule,
    can_save_rule,
    decide,
    describe_call,
    parse_rule,
    pick_strictest,
    read_folder_rules,
    read_user_rules,
)
from sessiontree.agent.tool import Tool, ToolEffect
from sessiontree.config import Config, PermissionMode, PermissionSettings
from sessiontree.core.messages import ToolCall
from sessiontree.errors import SessionTreeError

Scope: TypeAlias = Literal["once", "session", "always", "no"]
SCOPES: tuple[Scope, ...] = ("once", "session", "always", "no")

REPLACEMENT = {"old_text": "-", "new_text": "+"}
"""Arguments for a text and its replacement, with the sign of their lines."""
MAX_TITLE_CHARS = 200
"""Longer commands and paths are cut off in titles."""

MAX_DENIALS = 1000
"""Further denials are not recorded."""


class PermissionQuestion(Struct, frozen=True, kw_only=True):
    """A question to the user about a tool call."""

    tool: str
    does: ToolEffect
    title: str
    """The tool and its command or path, in one line."""
    detail: str
    """All arguments of the call."""
    why: str
    """The reason for the question."""
    rule: str | None
    """The rule that the answers `session` and `always` add; `None` if there is none."""
    scopes: tuple[Scope, ...]
    """The possible answers."""
    call: ToolCall


class PermissionAnswer(Struct, frozen=True, kw_only=True):
    scope: Scope
    reason: str | None = None
    """With `no`: a reason for the model."""


Asker: TypeAlias = Callable[[PermissionQuestion], Awaitable[PermissionAnswer | None]]
"""Asks the user; `None` means no answer. Cancelling the call withdraws the question."""


class Denial(Struct, frozen=True, kw_only=True):
    """A denied call."""

    call: ToolCall
    title: str
    reason: str
    rule: str | None
    """The value of `--allow` that would allow the call; `None` if no rule would."""

    @property
    def message(self) -> str:
        """The message to the model."""
        return f"Permission denied: {self.title} was not run: {self.reason}."


Restriction: TypeAlias = tuple[PermissionMode | None, RuleSet]
"""The mode and the rules of a project."""


@dataclass
class _SharedState:
    """The state that all agents of a session share."""

    rules_folder: str | None = None
    """The folder of `permissions.toml`; `None` means that `always` is not offered."""
    restrictions: list[Restriction] = field(default_factory=list[Restriction])
    granted: list[PermissionRule] = field(default_factory=list[PermissionRule])
    denials: list[Denial] = field(default_factory=list[Denial])
    """The first denials; limited, because a model may retry forever."""
    question_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the user is asked. Waiting calls check the rules again after an answer."""


class Permissions:
    """The permission rules for the agents of one session, and the asker."""

    def __init__(
        self,
        mode: PermissionMode | None = None,
        *,
        allow: Iterable[str] = (),
        ask: Iterable[str] = (),
        deny: Iterable[str] = (),
        asker: Asker | None = None,
        home: str | None = None,
    ) -> None:
        """Rules have the form `TOOL` or `TOOL:PATTERN`. Without an asker, calls that need an answer are denied.

        `home` is the folder of the user's `permissions.toml`. Its rules apply too, and `always` adds rules to it.
        """
        self.mode: PermissionMode = mode or "ask"
        self.asker = asker
        self._rules = RuleSet.from_settings(PermissionSettings(allow=tuple(allow), ask=tuple(ask), deny=tuple(deny)))
        self._shared = _SharedState(rules_folder=home)

    @classmethod
    def load_user(
        cls,
        settings: Config,
        home: str,
        *,
        mode: PermissionMode | None = None,
        allow: Iterable[str] = (),
        asker: Asker | None = None,
    ) -> Permissions:
        """Load the rules of the user: from the configuration, `permissions.toml` and the arguments.

        Raises `ConfigError` if `permissions.toml` is invalid.
        """
        read_user_rules(home)
        rules = settings.permissions
        return cls(
            mode or rules.mode,
            allow=(*rules.allow, *allow),
            ask=rules.ask,
            deny=rules.deny,
            asker=asker,
            home=home,
        )

    def copy_with_asker(self, asker: Asker | None, mode: PermissionMode | None = None) -> Permissions:
        """Return permissions with the same rules and answers, but another asker or mode."""
        other = Permissions(mode or self.mode, asker=asker)
        other._rules, other._shared = self._rules, self._shared
        return other

    def copy_without_grants(self) -> Permissions:
        """Return permissions with the same rules that do not share the answers of the user."""
        other = Permissions(self.mode, asker=self.asker)
        other._rules = self._rules
        other._shared = _SharedState(rules_folder=self._shared.rules_folder, restrictions=self._shared.restrictions)
        return other

    @property
    def effective_mode(self) -> PermissionMode:
        """The stricter of the user's mode and the project's mode."""
        modes: list[PermissionMode | None] = [mode for mode, _ in self._shared.restrictions]
        return pick_strictest(self.mode, *modes)

    @property
    def rules(self) -> RuleSet:
        """The rules of the user's configuration and of the project."""
        return sum((rules for _, rules in self._shared.restrictions), self._rules)

    def collect_rules(self, cwd: str) -> RuleSet:
        """Return all rules for a folder, including those in `permissions.toml`. Raises `ConfigError`."""
        folder = self._shared.rules_folder
        return self.rules if folder is None else self.rules + read_folder_rules(folder, cwd)

    @property
    def granted(self) -> tuple[PermissionRule, ...]:
        """The rules that the user has allowed for this session."""
        return tuple(self._shared.granted)

    @property
    def denials(self) -> tuple[Denial, ...]:
        """The denied calls of all agents with these permissions."""
        return tuple(self._shared.denials)

    @property
    def may_allow_changes(self) -> bool:
        """Whether any call that changes something can be allowed: by the mode, by a rule, or by an answer."""
        mode = self.effective_mode
        if mode == "read-only":
            return False
        return mode != "ask" or self.asker is not None or bool(self._rules.allow or self._shared.granted)

    def restrict(self, mode: PermissionMode | None, rules: RuleSet) -> Callable[[], None]:
        """Add the rules of a project, which can only restrict. Return a function that removes them."""
        restriction = mode, RuleSet(ask=rules.ask, deny=rules.deny)
        self._shared.restrictions.append(restriction)

        def remove() -> None:
            self._shared.restrictions[:] = [one for one in self._shared.restrictions if one is not restriction]

        return remove

    def forget_grants(self) -> None:
        """Forget the rules that the user allowed for the session."""
        self._shared.granted.clear()

    # Checking a call

    async def check(
        self, tool: Tool, call: ToolCall, arguments: Any, cwd: str, warn: Callable[[str], None] = lambda text: None
    ) -> Denial | None:
        """Return `None` if a call is allowed, otherwise the denial. Ask the user if the rules require it.

        `warn` receives warnings for the user.
        """
        about = describe_call(tool, _map_arguments(call, arguments), cwd)
        verdict = self._decide(about, cwd)
        if verdict.decision == "ask" and self.asker is not None:
            async with self._shared.question_lock:
                verdict = self._decide(about, cwd)  # an answer to another call may cover this one
                if verdict.decision == "ask":
                    verdict = await self._ask(about, call, verdict, cwd, warn)
        elif verdict.decision == "ask":
            verdict = PermissionVerdict("deny", f"{verdict.reason}, and no user is present to approve it")
        if verdict.decision == "allow":
            return None
        rule = None if verdict.by_rule or self.effective_mode == "read-only" else build_rule(about)
        denial = Denial(
            call=call, title=_format_title(about), reason=verdict.reason, rule=None if rule is None else str(rule)
        )
        if len(self._shared.denials) < MAX_DENIALS:
            self._shared.denials.append(denial)
        return denial

    def _decide(self, about: PermissionCall, cwd: str) -> PermissionVerdict:
        try:
            rules = self.collect_rules(cwd)
        except SessionTreeError as error:  # the unreadable file may contain a deny rule
            return PermissionVerdict("deny", f"cannot read the permission rules: {error}", by_rule=True)
        return decide(about, rules, self.effective_mode, self._shared.granted)

    async def _ask(
        self, about: PermissionCall, call: ToolCall, verdict: PermissionVerdict, cwd: str, warn: Callable[[str], None]
    ) -> PermissionVerdict:
        assert self.asker is not None
        question = self._build_question(about, call, verdict, cwd)
        answer = await self.asker(question)
        if answer is None:
            return PermissionVerdict("deny", f"{verdict.reason}, and the question was not answered")
        if answer.scope not in question.scopes or answer.scope == "no":
            reason = (answer.reason or "").strip().rstrip(".")
            return PermissionVerdict(
                "deny", f"denied by the user: {reason}" if reason else "denied by the user", by_rule=True
            )
        rule = build_rule(about)
        if answer.scope != "once" and rule is not None:
            self._shared.granted.append(rule)
            if answer.scope == "always" and self._shared.rules_folder is not None:
                try:
                    await asyncio.to_thread(add_allow_rule, self._shared.rules_folder, cwd, rule)
                except SessionTreeError as error:
                    warn(f"the rule applies to this session only: {error}")
        return PermissionVerdict("allow", "the user allowed it")

    def _build_question(
        self, about: PermissionCall, call: ToolCall, verdict: PermissionVerdict, cwd: str
    ) -> PermissionQuestion:
        rule = build_rule(about)
        scopes: list[Scope] = ["once"]
        if rule is not None:
            scopes.append("session")
            if self._shared.rules_folder is not None and not verdict.by_rule and can_save_rule(rule, cwd):
                scopes.append("always")  # an ask rule would take precedence over the new allow rule
        return PermissionQuestion(
            tool=about.tool,
            does=about.does,
            title=_format_title(about),
            detail=_format_detail(about, call),
            why=verdict.reason,
            rule=None if rule is None else str(rule),
            scopes=(*scopes, "no"),
            call=call,
        )


def find_invalid_rules(texts: Iterable[str]) -> list[str]:
    """Return the texts that are not valid rules."""
    return [text for text in texts if not (rule := parse_rule(text)).tool or rule.pattern == "" or " " in rule.tool]


def _map_arguments(call: ToolCall, arguments: Any) -> Mapping[str, Any]:
    """Return the arguments by name, with defaults."""
    if isinstance(arguments, Mapping):
        return arguments  # pyright: ignore[reportUnknownVariableType]
    if isinstance(arguments, Struct):
        return {name: getattr(arguments, name) for name in arguments.__struct_fields__}
    return call.arguments


def _format_title(about: PermissionCall) -> str:
    subject = about.command
    if subject is None and about.paths:
        first = about.paths[0]
        subject = first.relative or first.real
    if subject is None:
        return about.tool
    line = " ".join(subject.split())
    return f"{about.tool}: {line if len(line) <= MAX_TITLE_CHARS else f'{line[:MAX_TITLE_CHARS]}…'}"


def _format_detail(about: PermissionCall, call: ToolCall) -> str:
    """Format all arguments; a text of several lines starts on a new line, and a replacement is a diff."""
    if about.command is not None and len(call.arguments) == 1:
        return about.command
    is_replacement = all(isinstance(call.arguments.get(name), str) for name in REPLACEMENT)
    lines: list[str] = []
    for name, value in call.arguments.items():
        text = value if isinstance(value, str) else repr(value)
        if is_replacement and name in REPLACEMENT:
            lines += [f"{REPLACEMENT[name]} {line}" for line in text.split("\n")]
        else:
            lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines)
