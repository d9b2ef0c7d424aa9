"""The desk: what is typed, who follows whom, and giving up."""

from __future__ import annotations

import asyncio

import pytest

from sessiontree.agent.tool import tool
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.events import SessionShutdown, SessionStart
from sessiontree.model.scripted import Delay
from sessiontree.session import Session
from tests.commands.conftest import MakeDesk, listened, run, talk


async def test_words_go_to_the_model_and_shell_lines_are_run(desk: MakeDesk, session: Session) -> None:
    at = desk("Hello.")

    assert (await at.submit("!echo seen")).text == "seen"
    assert (await at.submit("!!echo secret")).text == "secret"
    done = await at.submit("hi")

    assert done.outcome is not None
    assert done.outcome.text == "Hello."
    assert "seen" in str(at.model.requests[0].messages)
    assert "secret" not in str(at.model.requests[0].messages)


async def test_a_summary_is_given_up_and_the_person_stays(desk: MakeDesk, session: Session) -> None:
    *_, last = talk(session, "one", "1")
    at = desk([Delay(30), "never"])
    popping = asyncio.create_task(run(at, "/pop"))
    async with asyncio.timeout(10):
        while not at.model.requests:
            await asyncio.sleep(0.01)

    at.abort()

    assert "cancelled" in await asyncio.wait_for(popping, 5)
    assert session.head.leaf == last


async def test_a_tool_is_added_and_taken_off(desk: MakeDesk) -> None:
    @tool
    def roll() -> str:
        """Roll a die."""
        return "six"

    at = desk([ToolCall("1", "roll", {})], "Six.", "No die.")
    off = at.add_tool(roll)
    with pytest.raises(InvalidOperation, match="'roll' already"):
        at.add_tool(roll)
    await at.submit("roll")

    off()
    await at.submit("roll")

    assert [spec.name for spec in at.model.requests[0].tools] == ["roll"]
    assert "six" in str(at.model.requests[1].messages)
    assert at.model.requests[2].tools == ()


async def test_handlers_know_that_the_session_begins_and_ends(desk: MakeDesk, session: Session) -> None:
    at = desk()
    told = listened(at)

    await at.start()
    await at.close()

    assert told == [SessionStart(reason="startup"), SessionShutdown(reason="quit")]
    with pytest.raises(InvalidOperation, match="closed"):
        session.label("HEAD", "x") if session.head.leaf else session.rename("x")


async def test_work_on_another_branch_than_the_current_one_does_not_move_that(desk: MakeDesk, session: Session) -> None:
    talk(session, "one", "1")
    side = session.create_branch("side", current=False)
    before = session.head.leaf
    at = desk("Aside.", branch=side)

    await at.submit("two")

    assert session.head.leaf == before
    assert len(side.path()) > 3
    with pytest.raises(InvalidOperation, match="'side' is not the current one"):
        await run(at, "/clear")
    await run(at, "/switch side")
    await run(at, "/clear")
    assert side.leaf is None
