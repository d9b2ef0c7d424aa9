"""`/context` and `/cost`: where the tokens of the next request are, and where tokens and money went, as bars."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sessiontree.core.call_lookup import CallLookup
from sessiontree.core.context_explanation import UNCHANGED, ExplainedEntry, explain
from sessiontree.core.entries import BranchSummary, Compaction, Entry, Message
from sessiontree.core.entry_text import format_entry_row
from sessiontree.core.messages import (
    CHARACTERS_PER_TOKEN,
    UsageSum,
    coerce_string,
    extract_text,
    get_role,
    list_usages,
    sum_usage,
)
from sessiontree.core.number_text import format_cost, format_count
from sessiontree.errors import InvalidOperation
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.formatting import format_id, format_table, make_excerpt
from sessiontree.slash_commands.registry import Argument, Command, CommandOutcome

FULL = "full"
BAR_WIDTH = 16
MAX_TURNS = 12
"""How many of the most expensive turns are listed."""
LABEL_WIDTH = 28


def draw_bar(share: float) -> str:
    """Draw a share from 0 to 1 as a bar. Anything above 0 is visible."""
    filled = min(max(round(share * BAR_WIDTH), 1 if share > 0 else 0), BAR_WIDTH)
    return "█" * filled + "░" * (BAR_WIDTH - filled)


# The context


async def _run_context(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    if args and args[0] != FULL:
        raise InvalidOperation(f"usage: /context [{FULL}]")
    parts = controller.agent.build_system_parts() if controller.has_agent else []
    explanation = explain(controller.session.tree, controller.branch.leaf)
    if args:
        messages = [
            f"--- {get_role(message)}\n{extract_text(message.get('content'))}"
            for message in explanation.context.to_llm()
        ]
        return CommandOutcome(
            text="\n\n".join([*(f"--- system: {part.name}\n{part.text}" for part in parts), *messages])
        )
    calls = CallLookup(controller.session.tree)
    rows = [["system", part.name, f"~{len(part.text) // CHARACTERS_PER_TOKEN}", ""] for part in parts]
    for item in explanation.entries:
        if item.reaches_model or item.represented_by is not None:
            reason = "" if item.reason == UNCHANGED else item.reason
            stands = f"replaced by {format_id(item.represented_by)}" if item.represented_by else reason
            tokens = f"~{item.tokens}" if item.reaches_model else ""
            rows.append(
                [format_id(item.entry.id), make_excerpt(format_entry_row(item.entry, calls), 48), tokens, stands]
            )
    system = sum(len(part.text) for part in parts) // CHARACTERS_PER_TOKEN
    window = 0 if controller.model is None else controller.model.info.context_window
    by_kind = {"system prompt": float(system)} if system else {}
    for item in explanation.entries:
        if item.reaches_model and item.tokens:
            kind = _name_kind(item)
            by_kind[kind] = by_kind.get(kind, 0) + item.tokens
    shown = f" of {format_count(window)}" if window else ""
    total = explanation.tokens + system
    ending = f"~{format_count(total)}{shown} tokens (estimated); /context {FULL} shows the text"
    sections = [_draw_context(by_kind, window), format_table(rows) if rows else ""]
    return CommandOutcome(text="\n\n".join(filter(None, [*sections, ending])))


def _name_kind(item: ExplainedEntry) -> str:
    match item.entry.body:
        case Message(message) if get_role(message) == "user":
            return "your messages"
        case Message(message) if get_role(message) == "assistant":
            return "answers"
        case Message(message) if get_role(message) == "toolResult":
            return f"results of {coerce_string(message.get('toolName')) or 'tools'}"
        case Compaction() | BranchSummary():
            return "summaries"
        case _:
            return "other"


def _draw_context(by_kind: Mapping[str, float], window: int) -> str:
    """Draw what fills the window, and the free part; without a known window, what fills the request."""
    used = sum(by_kind.values())
    whole = max(window, used)
    free = {"free": float(window - used)} if window > used else {}
    kinds = sorted(by_kind.items(), key=lambda item: -item[1])
    rows = [
        [make_excerpt(kind, LABEL_WIDTH), draw_bar(tokens / whole), f"~{format_count(tokens)}", f"{tokens / whole:.0%}"]
        for kind, tokens in [*kinds, *free.items()]
    ]
    return format_table(rows) if used else ""


# Costs


async def _run_cost(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    tree = controller.session.tree
    branches, tools = defaultdict[str, UsageSum](_build_zero), defaultdict[str, UsageSum](_build_zero)
    total = _build_zero()
    for entry in tree:
        used = _sum_entry(entry)
        if used is None:
            continue
        total = _add(total, used)
        name = entry.branch if isinstance(entry.branch, str) else "(no branch)"
        branches[name] = _add(branches[name], used)
        tool = _name_purpose(entry)
        tools[tool] = _add(tools[tool], used)
    if not total.tokens and not total.cost:
        return CommandOutcome(text="Nothing was spent in this session.")
    turns = _sum_turns(controller.branch.path())
    dearest = dict(sorted(turns.items(), key=lambda item: _weigh(item[1]), reverse=True)[:MAX_TURNS])
    sections = {
        f"Turns of {controller.branch.name}": {name: used for name, used in turns.items() if name in dearest},
        "Branches": branches,
        "Answers by the tools they called": tools,
    }
    lines = [f"Total: {_format_usage(total)}"]
    for title, sums in sections.items():
        if sums:
            lines += ["", title, _draw_sums(sums, total)]
    return CommandOutcome(text="\n".join(lines))


def _build_zero() -> UsageSum:
    return UsageSum(0, 0)


def _add(a: UsageSum, b: UsageSum) -> UsageSum:
    return UsageSum(a.tokens + b.tokens, a.cost + b.cost)


def _weigh(used: UsageSum) -> tuple[float, float]:
    return used.cost, used.tokens


def _sum_entry(entry: Entry) -> UsageSum | None:
    sums = [found for usage in list_usages(entry.decode()) if (found := sum_usage(usage)) is not None]
    return UsageSum(sum(one.tokens for one in sums), sum(one.cost for one in sums)) if sums else None


def _name_purpose(entry: Entry) -> str:
    """Return the tools that an answer called; what an entry without calls is."""
    match entry.body:
        case Message(message) if get_role(message) == "assistant":
            blocks = entry.tool_calls
            return ", ".join(sorted({call.name for call in blocks})) or "(no tools)"
        case Compaction() | BranchSummary():
            return "(summaries)"
        case _:
            return "(other)"


def _sum_turns(path: Iterable[Entry]) -> dict[str, UsageSum]:
    """Sum the usage of each of the user's messages and what follows it."""
    turns: dict[str, UsageSum] = {}
    name = "(before the first message)"
    for number, entry in enumerate(path, 1):
        body = entry.body
        if isinstance(body, Message) and get_role(body.message) == "user":
            words = make_excerpt(extract_text(body.message.get("content")), LABEL_WIDTH - 8)
            name = f"{words} ({format_id(entry.id)[:4]})"
            if name in turns:
                name = f"{name} {number}"
        used = _sum_entry(entry)
        if used is not None:
            turns[name] = _add(turns.get(name, _build_zero()), used)
    return turns


def _draw_sums(sums: Mapping[str, UsageSum], total: UsageSum) -> str:
    by_cost = total.cost > 0
    rows: list[list[str]] = []
    for name, used in sums.items():
        share = used.cost / total.cost if by_cost else used.tokens / total.tokens
        rows.append([f"  {make_excerpt(name, LABEL_WIDTH)}", draw_bar(share), f"{share:.0%}", _format_usage(used)])
    return format_table(rows)


def _format_usage(used: UsageSum) -> str:
    return " · ".join([f"{format_count(used.tokens)} tokens", *([format_cost(used.cost)] if used.cost else [])])


COMMANDS = (
    Command(
        name="context",
        help="Show what the model sees, including the system prompt, with token counts",
        run=_run_context,
        arguments=(Argument(name=FULL, complete=lambda controller, prefix: [FULL]),),
    ),
    Command(name="cost", help="Show what turns, branches and tools cost", run=_run_cost),
)
