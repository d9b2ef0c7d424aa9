"""`/context` and `/cost` as bars."""

from __future__ import annotations

from sessiontree.core.entries import Usage
from sessiontree.core.messages import assistant, tool_call, tool_result, user
from sessiontree.session import Session
from sessiontree.slash_commands.usage import draw_bar

from .conftest import MakeController, run


def test_a_bar_is_full_at_most_and_visible_above_zero() -> None:
    assert draw_bar(0) == "░" * 16
    assert draw_bar(0.001).count("█") == 1
    assert draw_bar(0.5).count("█") == 8
    assert draw_bar(1.5) == "█" * 16


def spend(session: Session, words: str, cost: float, *, tool: str | None = None) -> None:
    session.append(user(words))
    usage = {"input": 1000, "output": 0, "cost": cost}
    calls = [tool_call(f"c-{words}", tool, {})] if tool else []
    session.append(assistant([*calls, {"type": "text", "text": "done"}], model="m", provider="p", usage=usage))
    if tool:
        session.append(tool_result(f"c-{words}", tool, "output " * 200))


async def test_cost_shows_turns_branches_and_tools(make_controller: MakeController, session: Session) -> None:
    spend(session, "cheap question", 0.25)
    spend(session, "dear question", 0.75, tool="bash")
    at = make_controller()

    shown = await run(at, "/cost")

    assert shown.startswith("Total: 2k tokens · $1.00")
    turns, branches, tools = (section.splitlines()[1:] for section in shown.split("\n\n")[1:])
    assert "cheap question" in turns[0]
    assert "25%" in turns[0]
    assert turns[0].count("█") == 4
    assert "dear question" in turns[1]
    assert "75%" in turns[1]
    assert "main" in branches[0]
    assert "100%" in branches[0]
    assert [row.split()[0] for row in tools] == ["(no", "bash"]


async def test_cost_counts_other_branches_and_what_came_before_the_first_message(
    make_controller: MakeController, session: Session
) -> None:
    session.append(Usage(kind="cache_warm", provider="p", model="m", usage={"totalTokens": 1000}))
    session.create_branch("side")
    spend(session, "on the side", 0)
    at = make_controller()

    shown = await run(at, "/cost")

    assert shown.startswith("Total: 2k tokens\n")
    assert "(before the first message)" in shown
    assert "  side" in shown
    assert "$" not in shown


async def test_cost_of_a_session_without_answers_says_so(make_controller: MakeController, session: Session) -> None:
    assert await run(make_controller(), "/cost") == "Nothing was spent in this session."


async def test_context_shows_what_fills_the_window(make_controller: MakeController, session: Session) -> None:
    spend(session, "question", 0.1, tool="bash")
    at = make_controller(system=None)

    bars = (await run(at, "/context")).split("\n\n")[0].splitlines()

    kinds = [bar.split("  ")[0] for bar in bars]
    assert kinds[-1] == "free"
    assert {"system prompt", "your messages", "answers", "results of bash"} == set(kinds[:-1])
    assert all("█" in bar for bar in bars)
