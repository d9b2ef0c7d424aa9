"""Commands that compare and show information, and that set the model, the thinking level and the permission mode."""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec.structs import replace

from sessiontree.agent.permission_rules import PERMISSION_MODES
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.run_writer import save_messages
from sessiontree.branch_comparison import BranchStats, Comparison, Diff, format_usage
from sessiontree.config import PermissionMode
from sessiontree.core.call_lookup import CallLookup
from sessiontree.core.entries import Message
from sessiontree.core.entry_text import format_entry_row
from sessiontree.core.messages import extract_text, get_role
from sessiontree.core.number_text import format_count, format_dollars
from sessiontree.errors import InvalidOperation, StoreError
from sessiontree.ops.compare_files import describe_files
from sessiontree.session import compare, diff
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.formatting import format_id, format_mcp_status, format_table, make_excerpt
from sessiontree.slash_commands.models import ConfiguredModels
from sessiontree.slash_commands.registry import (
    FILE,
    LEVELS,
    PLACE,
    Argument,
    Command,
    CommandOutcome,
    complete_commands,
    complete_levels,
    complete_models,
    complete_modes,
    complete_servers,
)

WORDS = Argument(name="SERVER", complete=complete_servers, repeated=True)


def diff_places(controller: SessionController, args: Sequence[str]) -> Diff:
    """Return the difference of the two places that `/diff` was given."""
    a, b = ("HEAD", args[0]) if len(args) == 1 else (args[0], args[1])
    return diff(controller.session, controller.qualify_place(a), controller.qualify_place(b))


async def _run_diff(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    found = diff_places(controller, args)
    calls = CallLookup(controller.session.tree)
    lines = [f"common ancestor: {format_id(found.common_ancestor)}"]
    for sign, entries, stats in zip("-+", found.entries, found.stats, strict=True):
        lines.append(f"{sign * 3} {stats.name}  {', '.join(format_usage(stats))}")
        lines += [f"{sign} {format_id(entry.id)} {make_excerpt(format_entry_row(entry, calls))}" for entry in entries]
        lines += [f"  files: {', '.join(stats.files)}"] if stats.files else []
    lines += await _describe_files(controller, *found.stats, with_diff=True)
    return CommandOutcome(text="\n".join(lines))


async def _describe_files(
    controller: SessionController, a: BranchStats, b: BranchStats, *, with_diff: bool = False
) -> list[str]:
    """Return how the files of two places differ, as lines; none if no agent changed files."""
    found = await controller.compare_files(a.leaf, b.leaf, with_diff=with_diff)
    return [] if found is None else list(describe_files(found, with_diff=with_diff))


def compare_branches(controller: SessionController, args: Sequence[str]) -> Comparison:
    """Return the comparison of the branches or places that `/compare` was given."""
    places = [controller.qualify_place(place) for place in args]
    if places == [controller.branch.name]:
        raise InvalidOperation(f"you are on branch {controller.branch.name!r}; name another branch to compare it with")
    return compare(controller.session, places if len(places) > 1 else [controller.branch, *places])


async def _run_compare(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    found = compare_branches(controller, args)
    rows = [["branch", "entries", "tools", "errors", "tokens", "cost", "time"]]
    for stats in found.branches:
        tokens = format_count(stats.tokens) if "tokens" in stats.measured else "-"
        cost = format_dollars(stats.cost) if "cost" in stats.measured else "-"
        counts = map(str, (stats.entries, stats.tool_calls, stats.errors))
        rows.append([stats.name, *counts, tokens, cost, f"{stats.seconds:.1f}s"])
    ahead = f"winner: {found.winner} ({found.reason})" if found.winner else f"no winner: {found.reason}"
    first, *others = found.branches
    lines = [format_table(rows), ahead]
    for stats in others:
        files = await _describe_files(controller, first, stats)
        lines += [f"{first.name} and {stats.name}:", *files] if files else []
    return CommandOutcome(text="\n".join(lines))


async def _run_copy(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    for entry in reversed(controller.branch.path()):
        if isinstance(entry.body, Message) and get_role(entry.body.message) == "assistant":
            words = extract_text(entry.body.message.get("content"))
            if words:
                message = controller.host.copy(words)
                return CommandOutcome(text=words if message is None else message)
    raise InvalidOperation("no answer to copy")


async def _run_mcp(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    pool = controller.options.mcp
    if pool is None or not pool.servers:
        raise InvalidOperation("no MCP servers: add one with `sessiontree mcp add`")
    match args:
        case []:
            return CommandOutcome(text="\n".join(format_mcp_status(status) for status in await pool.list_status()))
        case ["restart", name]:
            await pool.restart(name)
            return CommandOutcome(text=f"{name} starts again with the next request")
        case ["prompt", name, prompt, *rest]:
            pairs = [word.partition("=") for word in rest]
            if not all(key and equals for key, equals, _ in pairs):
                raise InvalidOperation("usage: /mcp prompt SERVER PROMPT [NAME=VALUE...]")
            values = {key: value for key, _, value in pairs}
            return CommandOutcome(prompt=await pool.read_prompt(name, prompt, values))
        case _:
            raise InvalidOperation("usage: /mcp [restart SERVER | prompt SERVER PROMPT [NAME=VALUE...]]")


async def _run_save_unsaved(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    messages = controller.agent.unsaved if controller.has_agent else []
    if not messages:
        raise InvalidOperation("no unsaved answers: everything is in the session")
    file = os.path.join(controller.cwd, os.path.expanduser(args[0]))
    save_messages(file, messages)
    return CommandOutcome(text=f"Saved to {file}.")


CURRENT_MARK = " (current)"
"""Marks the current model in a list."""


async def _choose_model(controller: SessionController, names: Sequence[str]) -> str | None:
    if controller.model is None:
        return await controller.ui.select("Model", names)
    current = controller.model.info.name
    marked = f"{current}{CURRENT_MARK}"
    options = [marked if name == current else name for name in dict.fromkeys([current, *names])]
    chosen = await controller.ui.select("Model", options, at=marked)
    return None if chosen is None else chosen.removesuffix(CURRENT_MARK)


async def _run_model(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    name = args[0] if args else None
    if name is None and controller.ui.has_person:
        import asyncio

        names = await asyncio.to_thread(controller.models.list_names)
        if not names:
            await asyncio.to_thread(controller.models.find)  # raises an error that explains how to get a model
        name = await _choose_model(controller, names)
    if name is not None:
        model = (await controller.set_model(name)).info.name
        if isinstance(controller.models, ConfiguredModels):
            try:
                controller.models.remember(model)
            except StoreError as error:
                controller.ui.notify(f"the choice applies to this session only: {error}", "warning")
        return CommandOutcome(text=f"Model: {model}")
    return CommandOutcome(text="No model." if controller.model is None else controller.model.info.name)


async def _run_thinking(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    level = args[0] if args else None
    if level is None and controller.ui.has_person:
        level = await controller.ui.select("Thinking level", LEVELS, at=controller.agent.thinking)
    if level is None:
        return CommandOutcome(text=controller.agent.thinking)
    if level not in LEVELS:
        raise InvalidOperation(f"no thinking level {level!r}: choose one of {', '.join(LEVELS)}")
    await controller.agent.set_thinking(level)
    return CommandOutcome(text=f"Thinking level: {level}")


async def _run_permissions(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    permissions = controller.permissions
    if permissions is None:
        raise InvalidOperation("permissions are off: the agent may use all of its tools")
    if not args:
        return CommandOutcome(text=_format_permissions(permissions, controller.cwd))
    chosen: PermissionMode | None = next((mode for mode in PERMISSION_MODES if mode == args[0]), None)
    if chosen is None:
        raise InvalidOperation(f"no permission mode {args[0]!r}: choose one of {', '.join(PERMISSION_MODES)}")
    permissions.mode = chosen
    if permissions.effective_mode != chosen:
        return CommandOutcome(text=f"Permission mode: {permissions.effective_mode} (restricted by the project)")
    return CommandOutcome(text=f"Permission mode: {chosen}")


def _format_permissions(permissions: Permissions, cwd: str) -> str:
    rules = permissions.collect_rules(cwd)
    rows = [["mode", permissions.effective_mode]]
    for decision in ("deny", "ask", "allow"):
        rows += [[decision, str(rule)] for rule in getattr(rules, decision)]
    rows += [["allow, this session", str(rule)] for rule in permissions.granted]
    return format_table(rows)


async def _run_help(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    if args:
        command = controller.commands.find(args[0].removeprefix("/"))
        return CommandOutcome(text=f"{command.usage}\n{command.help} (from {command.source})")
    return CommandOutcome(text=format_table([[command.usage, command.help] for command in controller.commands]))


async def _run_reload(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    if controller.reload is None:
        raise InvalidOperation("extensions cannot be reloaded here")
    controller.ensure_idle()
    loaded = await controller.reload()
    return CommandOutcome(text=f"Loaded: {', '.join(loaded)}" if loaded else "Nothing to load.")


COMMANDS = (
    Command(
        name="diff",
        help="Compare the entries of two places; A alone is compared with the current place",
        run=_run_diff,
        arguments=(replace(PLACE, name="A", required=True), replace(PLACE, name="B")),
    ),
    Command(
        name="compare",
        help="Compare the cost, tokens and time of branches or places; one alone is compared with this branch",
        run=_run_compare,
        arguments=(replace(PLACE, name="BRANCH|PLACE", required=True, repeated=True),),
    ),
    Command(name="copy", help="Copy the last answer to the clipboard", run=_run_copy),
    Command(
        name="save-unsaved",
        help="Save answers that could not be written to the session, as JSON lines",
        run=_run_save_unsaved,
        arguments=(replace(FILE, required=True),),
    ),
    Command(
        name="model",
        help="Show or change the model",
        run=_run_model,
        arguments=(Argument(name="PROVIDER:MODEL", complete=complete_models),),
    ),
    Command(
        name="thinking",
        help="Show or change the thinking level",
        run=_run_thinking,
        arguments=(Argument(name="LEVEL", complete=complete_levels),),
    ),
    Command(
        name="permissions",
        help="Show the permissions of the agent, or change the mode",
        run=_run_permissions,
        arguments=(Argument(name="MODE", complete=complete_modes),),
    ),
    Command(
        name="mcp",
        help="Show the MCP servers and their tools; restart one, or send one of its prompts",
        run=_run_mcp,
        arguments=(Argument(name="restart|prompt", complete=lambda controller, prefix: ["restart", "prompt"]), WORDS),
    ),
    Command(name="reload", help="Reload extensions and prompt files", run=_run_reload),
    Command(
        name="help",
        help="List all commands, or show the help of one",
        run=_run_help,
        arguments=(Argument(name="COMMAND", complete=complete_commands),),
    ),
)
