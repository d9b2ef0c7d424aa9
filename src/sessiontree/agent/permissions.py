"""Permissions: whether a tool call may be made, asked of the person where the rules say so.

The one place that decides, for every tool of every agent, right before a call is made. Front ends choose the mode, give
an asker and tell what was denied. The rules themselves are in `rules`, files of rules in `rule_files`.
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

MAX_TITLE_CHARS = 200
"""How much of a command or path one line shows, in characters."""

MAX_DENIALS = 1000
"""How many denials are remembered."""


class PermissionQuestion(Struct, frozen=True, kw_only=True):
    """What a person is asked about a tool call."""

    tool: str
    does: ToolEffect
    title: str
    """One line: the tool, and the command or the path."""
    detail: str
    """All that the call says."""
    why: str
    """Why it is asked."""
    rule: str | None
    """The rule that an answer for this session or for always adds; `None` where there is none."""
    scopes: tuple[Scope, ...]
    """The answers that can be given."""
    call: ToolCall


class PermissionAnswer(Struct, frozen=True, kw_only=True):
    scope: Scope
    reason: str | None = None
    """With `no`: what the model is told."""


Asker: TypeAlias = Callable[[PermissionQuestion], Awaitable[PermissionAnswer | None]]
"""Asks the person; `None` means that nobody answered. Cancelling it takes the question away."""


class Denial(Struct, frozen=True, kw_only=True):
    """A call that was not allowed."""

    call: ToolCall
    title: str
    reason: str
    """Why: a clause."""
    rule: str | None
    """What would have to be allowed for it, as `--allow` takes it; `None` where no such rule would help."""

    @property
    def message(self) -> str:
        """What the model is told."""
        return f"Permission denied: {self.title} was not run: {self.reason}."


Restriction: TypeAlias = tuple[PermissionMode | None, RuleSet]
"""What a project says."""


@dataclass
class _SharedState:
    """What all agents of a session have in common."""

    rules_folder: str | None = None
    """Where rules for always are kept; `None` keeps none."""
    restrictions: list[Restriction] = field(default_factory=list[Restriction])
    granted: list[PermissionRule] = field(default_factory=list[PermissionRule])
    denials: list[Denial] = field(default_factory=list[Denial])
    """The first ones: a model that never stops trying must not fill the memory."""
    question_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the person is asked: one question at a time, and an answer counts for those that wait."""


class Permissions:
    """The rules that hold for the agents of one session, and who is asked."""

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
        """Rules are `TOOL` or `TOOL:PATTERN`. Without an asker, what would be asked is denied.

        `home` is the folder of the user's `permissions.toml`, whose rules count too and which takes those for always.
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
        """The rules of the user: the configuration, `permissions.toml`, and what was given for this run.

        Raises `ConfigError` if the file of rules is wrong.
        """
        read_user_rules(home)
        said = settings.permissions
        return cls(mode or said.mode, allow=(*said.allow, *allow), ask=said.ask, deny=said.deny, asker=asker, home=home)

    def copy_with_asker(self, asker: Asker | None, mode: PermissionMode | None = None) -> Permissions:
        """The same rules and answers, for a run that asks elsewhere or has another mode."""
        other = Permissions(mode or self.mode, asker=asker)
        other._rules, other._shared = self._rules, self._shared
        return other

    def copy_without_grants(self) -> Permissions:
        """The same rules, with answers of its own: what is allowed here does not count there, nor the reverse."""
        other = Permissions(self.mode, asker=self.asker)
        other._rules = self._rules
        other._shared = _SharedState(rules_folder=self._shared.rules_folder, restrictions=self._shared.restrictions)
        return other

    @property
    def effective_mode(self) -> PermissionMode:
        """The mode, made stricter where the project says so."""
        modes: list[PermissionMode | None] = [mode for mode, _ in self._shared.restrictions]
        return pick_strictest(self.mode, *modes)

    @property
    def rules(self) -> RuleSet:
        """The rules that were given, and those of the project."""
        return sum((rules for _, rules in self._shared.restrictions), self._rules)

    def collect_rules(self, cwd: str) -> RuleSet:
        """All rules that hold for a folder: those that were given, the project's and the user's file. Raises
        `ConfigError`."""
        folder = self._shared.rules_folder
        return self.rules if folder is None else self.rules + read_folder_rules(folder, cwd)

    @property
    def granted(self) -> tuple[PermissionRule, ...]:
        """What the person has allowed for this session."""
        return tuple(self._shared.granted)

    @property
    def denials(self) -> tuple[Denial, ...]:
        """What was denied so far, to any agent that has these permissions."""
        return tuple(self._shared.denials)

    def restrict(self, mode: PermissionMode | None, rules: RuleSet) -> Callable[[], None]:
        """Add the rules of a project, which can only restrict. Returns what takes them off again."""
        restriction = mode, RuleSet(ask=rules.ask, deny=rules.deny)
        self._shared.restrictions.append(restriction)

        def remove() -> None:
            self._shared.restrictions[:] = [one for one in self._shared.restrictions if one is not restriction]

        return remove

    def forget_grants(self) -> None:
        """Forget what was allowed for the session: it is another one now."""
        self._shared.granted.clear()

    # One call

    async def check(
        self, tool: Tool, call: ToolCall, arguments: Any, cwd: str, warn: Callable[[str], None] = lambda text: None
    ) -> Denial | None:
        """`None` if a call may be made; otherwise why not. Asks the person if the rules say so.

        `warn` takes what the person should know beside that.
        """
        about = describe_call(tool, _map_arguments(call, arguments), cwd)
        verdict = self._decide(about, cwd)
        if verdict.decision == "ask" and self.asker is not None:
            async with self._shared.question_lock:
                verdict = self._decide(about, cwd)  # an answer given meanwhile may cover it
                if verdict.decision == "ask":
                    verdict = await self._ask(about, call, verdict, cwd, warn)
        elif verdict.decision == "ask":
            verdict = PermissionVerdict("deny", f"{verdict.reason}, and nobody can be asked")
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
        except SessionTreeError as error:  # it may be what denies this
            return PermissionVerdict("deny", f"the rules cannot be read: {error}", by_rule=True)
        return decide(about, rules, self.effective_mode, self._shared.granted)

    async def _ask(
        self, about: PermissionCall, call: ToolCall, verdict: PermissionVerdict, cwd: str, warn: Callable[[str], None]
    ) -> PermissionVerdict:
        assert self.asker is not None
        question = self._build_question(about, call, verdict, cwd)
        answer = await self.asker(question)
        if answer is None:
            return PermissionVerdict("deny", f"{verdict.reason}, and nobody answered the question")
        if answer.scope not in question.scopes or answer.scope == "no":
            reason = (answer.reason or "").strip().rstrip(".")
            return PermissionVerdict(
                "deny", f"the user said no: {reason}" if reason else "the user said no", by_rule=True
            )
        rule = build_rule(about)
        if answer.scope != "once" and rule is not None:
            self._shared.granted.append(rule)
            if answer.scope == "always" and self._shared.rules_folder is not None:
                try:
                    await asyncio.to_thread(add_allow_rule, self._shared.rules_folder, cwd, rule)
                except SessionTreeError as error:
                    warn(f"the rule is kept for this session only: {error}")
        return PermissionVerdict("allow", "the user allowed it")

    def _build_question(
        self, about: PermissionCall, call: ToolCall, verdict: PermissionVerdict, cwd: str
    ) -> PermissionQuestion:
        rule = build_rule(about)
        scopes: list[Scope] = ["once"]
        if rule is not None:
            scopes.append("session")
            if self._shared.rules_folder is not None and not verdict.by_rule and can_save_rule(rule, cwd):
                scopes.append("always")  # a rule that asks would win over one that allows
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
    """What is wrong with rules that were given as text."""
    return [text for text in texts if not (rule := parse_rule(text)).tool or rule.pattern == "" or " " in rule.tool]


def _map_arguments(call: ToolCall, arguments: Any) -> Mapping[str, Any]:
    """The arguments by name, as the tool gets them: defaults included."""
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
    """All arguments, a long text on lines of its own."""
    if about.command is not None and len(call.arguments) == 1:
        return about.command
    lines: list[str] = []
    for name, value in call.arguments.items():
        text = value if isinstance(value, str) else repr(value)
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines)
