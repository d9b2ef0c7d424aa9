"""Asking for what a command still needs: one that is typed without an argument has it chosen from what there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sessiontree.commands.arguments import complete_branches, complete_places, complete_prompts
from sessiontree.commands.controller import SessionController
from sessiontree.commands.formatting import format_id, make_excerpt
from sessiontree.commands.registry import Argument, Command, ParsedLine, WordReader, parse_line, quote_word
from sessiontree.core.entries import EntryId
from sessiontree.core.entry_text import format_entry, format_entry_row
from sessiontree.core.number_text import pluralize
from sessiontree.errors import InvalidOperation

ChooseEntry = Callable[[str], Awaitable[EntryId | None]]
"""Has an entry chosen in the tree, to answer a question."""


async def complete_command(desk: SessionController, line: str, choose_entry: ChooseEntry) -> str | None:
    """A command with what it needs; `None` when the person did not say."""
    called = parse_line(line)
    if called is None:
        return line
    command = desk.commands.find(called.name)
    if not called.text.strip():
        return await _prompt_for_arguments(desk, command, choose_entry)
    return await _prompt_for_required(desk, command, called, choose_entry)


async def _prompt_for_arguments(desk: SessionController, command: Command, choose_entry: ChooseEntry) -> str | None:
    match command.name:
        case "fork" | "branch" if desk.settings.double_escape == "tree":
            return _format_command(command, await choose_entry(f"/{command.name}: from which entry?"))
        case "pop":
            return _format_command(command, await _choose_prompt(desk, "Go back to which message, with a summary?"))
        case "branches":
            return await _choose_branch(desk)
        case "compare":
            return await _choose_branches_to_compare(desk)
        case _:
            return await _prompt_for_required(desk, command, ParsedLine(command.name, ""), choose_entry)


async def _prompt_for_required(
    desk: SessionController, command: Command, called: ParsedLine, choose_entry: ChooseEntry
) -> str | None:
    words = list(WordReader(called.text))
    missing = [argument for argument in command.arguments if argument.required][len(words) :]
    line = f"/{called.name} {called.text}".rstrip()
    for argument in missing:
        given = await _prompt_for_argument(desk, command, argument, choose_entry)
        if not given:
            return None
        line = f"{line} {given if argument.rest else quote_word(given)}"
    return line


async def _prompt_for_argument(
    desk: SessionController, command: Command, argument: Argument, choose_entry: ChooseEntry
) -> str | None:
    title = f"/{command.name}: {argument.name.lower()}?"
    if argument.complete is complete_places:
        return await choose_entry(title)
    if argument.complete is not None:
        choices = list(await asyncio.to_thread(lambda: list(argument.complete(desk, "")) if argument.complete else []))
        others = [choice for choice in choices if choice != desk.branch.name]
        if others:
            return await desk.ui.select(title, others)
    return await desk.ui.input(title)


async def _choose_prompt(desk: SessionController, title: str) -> EntryId | None:
    tree = desk.session.tree
    shown = {f"{format_id(id)}  {make_excerpt(format_entry(tree[id]))}": id for id in complete_prompts(desk, "")}
    if not shown:
        return await desk.ui.input(title)
    chosen = await desk.ui.select(title, list(shown))
    return None if chosen is None else shown[chosen]


async def _choose_branch(desk: SessionController) -> str | None:
    """Branches are listed to go to one."""
    session = desk.session
    shown: dict[str, str] = {}
    infos = [info for info in session.branches if not info.archived]
    width = max(len(info.name) for info in infos)
    for info in infos:
        head = session.tree[info.head] if info.head is not None and info.head in session.tree else None
        last = "(empty)" if head is None else make_excerpt(format_entry_row(head), 60)
        mark = "●" if info.name == desk.branch.name else " "
        entries = pluralize(info.entry_count, "entry", "entries")
        shown[f"{mark} {info.name.ljust(width)}  {format_id(info.head)}  {entries:>13}  {last}"] = info.name
    chosen = await desk.ui.select("Which branch?", list(shown))
    return None if chosen is None else f"/switch {quote_word(shown[chosen])}"


async def _choose_branches_to_compare(desk: SessionController) -> str | None:
    """This branch is compared with one that is chosen, or with all; with the only other one without a question."""
    own = desk.branch.name
    others = [name for name in complete_branches(desk, "") if name != own]
    if not others:
        raise InvalidOperation("there is no other branch to compare with: /branch-here makes one")
    everything = f"all of them: {', '.join([own, *others])}"
    offered = [*others, everything] if len(others) > 1 else []
    chosen = await desk.ui.select(f"Compare {own} with which branch?", offered) if offered else others[0]
    if chosen is None:
        return None
    names = [own, *others] if chosen == everything else [own, chosen]
    return f"/compare {' '.join(map(quote_word, names))}"


def _format_command(command: Command, given: str | None) -> str | None:
    return None if given is None else f"/{command.name} {quote_word(given)}"
