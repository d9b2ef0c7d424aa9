"""Commands that show something, and those that set how the model answers."""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec.structs import replace

from sessiontree.agent.permissions import Permissions
from sessiontree.agent.rescue import save_messages
from sessiontree.agent.rules import MODES
from sessiontree.commands.arguments import BRANCH, FILE, LEVELS, PLACE, commands, levels, models, modes
from sessiontree.commands.command import Argument, Command, Done
from sessiontree.commands.desk import Desk
from sessiontree.commands.models import ConfiguredModels
from sessiontree.commands.text import excerpt, short, table
from sessiontree.comparison import Comparison, Diff, took
from sessiontree.config import PermissionMode
from sessiontree.core.context import explain
from sessiontree.core.entries import Message
from sessiontree.core.figures import dollars, short_count
from sessiontree.core.messages import role, text
from sessiontree.core.outline import Calls, row_text
from sessiontree.core.tokens import CHARACTERS_PER_TOKEN
from sessiontree.errors import InvalidOperation, StoreError
from sessiontree.session import compare, diff

FULL = "full"


async def _context(desk: Desk, args: Sequence[str]) -> Done:
    if args and args[0] != FULL:
        raise InvalidOperation(f"/context takes {FULL!r} or nothing")
    parts = desk.agent.system_parts() if desk.has_agent else []
    explanation = explain(desk.session.tree, desk.branch.leaf)
    if args:
        said = [f"--- {role(message)}\n{text(message.get('content'))}" for message in explanation.context.to_llm()]
        return Done(text="\n\n".join([*(f"--- system: {part.name}\n{part.text}" for part in parts), *said]))
    calls = Calls(desk.session.tree)
    rows = [["system", part.name, f"~{len(part.text) // CHARACTERS_PER_TOKEN}", ""] for part in parts]
    for item in explanation.entries:
        if item.reaches or item.represented_by is not None:
            stands = f"stood for by {short(item.represented_by)}" if item.represented_by else item.reason
            tokens = f"~{item.tokens}" if item.reaches else ""
            rows.append([short(item.entry.id), excerpt(row_text(item.entry, calls), 48), tokens, stands])
    unseen = sum(len(part.text) for part in parts) // CHARACTERS_PER_TOKEN
    window = f" of {short_count(desk.model.info.context_window)}" if desk.model is not None else ""
    total = f"~{short_count(explanation.tokens + unseen)}{window} tokens, estimated; /context {FULL} shows the texts"
    return Done(text="\n".join([*([table(rows)] if rows else []), total]))


def two_places(desk: Desk, args: Sequence[str]) -> Diff:
    """How the places that `/diff` was given differ."""
    a, b = ("HEAD", args[0]) if len(args) == 1 else (args[0], args[1])
    return diff(desk.session, desk.place(a), desk.place(b))


async def _diff(desk: Desk, args: Sequence[str]) -> Done:
    found = two_places(desk, args)
    calls = Calls(desk.session.tree)
    lines = [f"from where they part, {short(found.common_ancestor)}"]
    for sign, entries, stats in zip("-+", found.entries, found.stats, strict=True):
        lines.append(f"{sign * 3} {stats.name}  {', '.join(took(stats))}")
        lines += [f"{sign} {short(entry.id)} {excerpt(row_text(entry, calls))}" for entry in entries]
        lines += [f"  files: {', '.join(stats.files)}"] if stats.files else []
    return Done(text="\n".join(lines))


def compared(desk: Desk, args: Sequence[str]) -> Comparison:
    """What the branches that `/compare` was given took."""
    return compare(desk.session, list(args) if len(args) > 1 else [desk.branch.name, *args])


async def _compare(desk: Desk, args: Sequence[str]) -> Done:
    found = compared(desk, args)
    rows = [["branch", "entries", "tools", "errors", "tokens", "cost", "time"]]
    for stats in found.branches:
        tokens = short_count(stats.tokens) if "tokens" in stats.measured else "-"
        cost = dollars(stats.cost) if "cost" in stats.measured else "-"
        counts = map(str, (stats.entries, stats.tool_calls, stats.errors))
        rows.append([stats.name, *counts, tokens, cost, f"{stats.time / 1000:.1f}s"])
    ahead = f"ahead: {found.winner} ({found.reason})" if found.winner else f"none is ahead: {found.reason}"
    return Done(text=f"{table(rows)}\n{ahead}")


async def _copy(desk: Desk, args: Sequence[str]) -> Done:
    for entry in reversed(desk.branch.path()):
        if isinstance(entry.body, Message) and role(entry.body.message) == "assistant":
            words = text(entry.body.message.get("content"))
            if words:
                told = desk.host.copy(words)
                return Done(text=words if told is None else told)
    raise InvalidOperation("there is no answer to copy")


async def _save_unsaved(desk: Desk, args: Sequence[str]) -> Done:
    messages = desk.agent.unsaved if desk.has_agent else []
    if not messages:
        raise InvalidOperation("there is nothing unsaved: every answer is in the session")
    file = os.path.join(desk.cwd, os.path.expanduser(args[0]))
    save_messages(file, messages)
    return Done(text=f"saved in {file}")


CURRENT = " (current)"
"""Stands behind the name of the model that holds, where one is chosen."""


async def _choose_model(desk: Desk, names: Sequence[str]) -> str | None:
    if desk.model is None:
        return await desk.ui.select("Model", names)
    current = desk.model.info.name
    marked = f"{current}{CURRENT}"
    options = [marked if name == current else name for name in dict.fromkeys([current, *names])]
    chosen = await desk.ui.select("Model", options, at=marked)
    return None if chosen is None else chosen.removesuffix(CURRENT)


async def _model(desk: Desk, args: Sequence[str]) -> Done:
    name = args[0] if args else None
    if name is None and desk.ui.has_person:
        import asyncio

        names = await asyncio.to_thread(desk.models.names)
        if not names:
            await asyncio.to_thread(desk.models.find)  # says how to get one
        name = await _choose_model(desk, names)
    if name is not None:
        model = (await desk.set_model(name)).info.name
        if isinstance(desk.models, ConfiguredModels):
            try:
                desk.models.remember(model)
            except StoreError as error:
                desk.ui.notify(f"the choice holds for this session only: {error}", "warning")
        return Done(text=f"from here on: {model}")
    return Done(text="there is no model" if desk.model is None else desk.model.info.name)


async def _thinking(desk: Desk, args: Sequence[str]) -> Done:
    level = args[0] if args else None
    if level is None and desk.ui.has_person:
        level = await desk.ui.select("Thinking level", LEVELS, at=desk.agent.thinking)
    if level is None:
        return Done(text=desk.agent.thinking)
    if level not in LEVELS:
        raise InvalidOperation(f"no thinking level {level!r}: choose one of {', '.join(LEVELS)}")
    await desk.agent.set_thinking(level)
    return Done(text=f"from here on: {level}")


async def _permissions(desk: Desk, args: Sequence[str]) -> Done:
    permissions = desk.permissions
    if permissions is None:
        raise InvalidOperation("no permissions hold here: the agent may use all of its tools")
    if not args:
        return Done(text=_permission_table(permissions, desk.cwd))
    chosen: PermissionMode | None = next((mode for mode in MODES if mode == args[0]), None)
    if chosen is None:
        raise InvalidOperation(f"no permission mode {args[0]!r}: choose one of {', '.join(MODES)}")
    permissions.mode = chosen
    if permissions.effective_mode != chosen:
        return Done(text=f"permission mode: {permissions.effective_mode}, since the project restricts it")
    return Done(text=f"permission mode: {chosen}")


def _permission_table(permissions: Permissions, cwd: str) -> str:
    rules = permissions.rules_in(cwd)
    rows = [["mode", permissions.effective_mode]]
    for decision in ("deny", "ask", "allow"):
        rows += [[decision, str(rule)] for rule in getattr(rules, decision)]
    rows += [["allow, this session", str(rule)] for rule in permissions.granted]
    return table(rows)


async def _help(desk: Desk, args: Sequence[str]) -> Done:
    if args:
        command = desk.commands.find(args[0].removeprefix("/"))
        return Done(text=f"{command.usage}\n{command.help} (from {command.source})")
    return Done(text=table([[command.usage, command.help] for command in desk.commands]))


async def _reload(desk: Desk, args: Sequence[str]) -> Done:
    if desk.reload is None:
        raise InvalidOperation("nothing was loaded that could be loaded again")
    desk.at_rest()
    loaded = await desk.reload()
    return Done(text=f"loaded: {', '.join(loaded)}" if loaded else "nothing is loaded")


COMMANDS = (
    Command(
        name="context",
        help="Show what the model sees from here, the system prompt included, and how much that is",
        run=_context,
        arguments=(Argument(name=FULL, complete=lambda desk, begun: [FULL]),),
    ),
    Command(
        name="diff",
        help="Show how two places differ, from where their paths part; one of them is this one by default",
        run=_diff,
        arguments=(replace(PLACE, name="A", required=True), replace(PLACE, name="B")),
    ),
    Command(
        name="compare",
        help="Compare what branches took; this one with another by default",
        run=_compare,
        arguments=(replace(BRANCH, required=True, several=True),),
    ),
    Command(name="copy", help="Put the last answer on the clipboard", run=_copy),
    Command(
        name="save-unsaved",
        help="Write answers that the session could not take to another file, a message a line",
        run=_save_unsaved,
        arguments=(replace(FILE, required=True),),
    ),
    Command(
        name="model",
        help="Show the model, or go on with another",
        run=_model,
        arguments=(Argument(name="PROVIDER:MODEL", complete=models),),
    ),
    Command(
        name="thinking",
        help="Show how much the model thinks before it answers, or change it",
        run=_thinking,
        arguments=(Argument(name="LEVEL", complete=levels),),
    ),
    Command(
        name="permissions",
        help="Show what the agent may do without asking, or change the mode",
        run=_permissions,
        arguments=(Argument(name="MODE", complete=modes),),
    ),
    Command(name="reload", help="Load extensions and prompt files anew", run=_reload),
    Command(
        name="help",
        help="List the commands, or explain one",
        run=_help,
        arguments=(Argument(name="COMMAND", complete=commands),),
    ),
)
