"""Fan-outs: several variants from one place at the same time, and promoting the best one."""

from __future__ import annotations

import asyncio

import pytest

import sessiontree as st
from sessiontree.agent.factory import AgentOptions
from sessiontree.agent.fan_out import Variant, fan_out
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.bus import HookContext, Hooks
from sessiontree.hooks.events import MessageEnd
from sessiontree.model.base import ModelError, ModelInfo, Request
from sessiontree.model.scripted import Delay, ScriptedModel
from sessiontree.ops.merge import promote
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.session import Session
from tests.agent.conftest import format_messages


@pytest.fixture
def asked(session: Session) -> str:
    session.append(st.user("How?"))
    return session.append(st.assistant("Two ways.")).id


def echo(request: Request) -> str:
    return f"I heard {request.messages[-1]['content']!r}"


def build_echo_model(count: int = 2, name: str = "echo") -> ScriptedModel:
    return ScriptedModel([echo] * count, info=ModelInfo(provider="scripted", model=name))


async def test_prompts_are_answered_on_sibling_branches_and_no_branch_moves(session: Session, asked: str) -> None:
    cache, table = await fan_out(
        session, "HEAD", ["a cache", Variant(prompt="a table", name="table")], model=build_echo_model()
    )

    assert (cache.branch.name, table.branch.name) == ("variant-1", "table")
    assert format_messages(cache.branch)[2:] == ["user: a cache", "assistant: I heard 'a cache'"]
    assert format_messages(table.branch)[2:] == ["user: a table", "assistant: I heard 'a table'"]
    assert session.heads.current == "main"
    assert session.head.leaf == asked
    assert not session.problems


async def test_several_models_can_answer_the_same_message(session: Session, asked: str) -> None:
    question = session.append(st.user("Which?")).id
    models = [build_echo_model(1, "small"), build_echo_model(1, "large")]

    attempts = await fan_out(session, question, [Variant(model=model) for model in models])

    assert [attempt.outcome.text for attempt in attempts] == ["I heard 'Which?'"] * 2
    assert [attempt.branch.context().state.model for attempt in attempts] == ["small", "large"]
    assert models[0].requests[0].messages == models[1].requests[0].messages


async def test_variants_run_at_the_same_time(session: Session, asked: str) -> None:
    both = asyncio.Barrier(2)

    async def answer(request: Request) -> str:
        async with asyncio.timeout(60):
            await both.wait()
        return "Met."

    attempts = await fan_out(session, "HEAD", ["a", "b"], model=ScriptedModel([answer, answer]))

    assert [attempt.outcome.text for attempt in attempts] == ["Met.", "Met."]


async def test_a_failing_variant_does_not_affect_the_others(session: Session, asked: str) -> None:
    broken = ScriptedModel([ModelError("scripted:scripted", "auth", "no key")])

    bad, good = await fan_out(session, "HEAD", [Variant(prompt="a", model=broken), "b"], model=build_echo_model(1))

    assert isinstance(bad.outcome.error, ModelError)
    assert good.outcome.ok


async def test_an_unexpected_error_does_not_affect_the_other_variants(session: Session, asked: str) -> None:
    def faulty(request: Request) -> str:
        raise ConnectionError("reset by peer")

    bad, good = await fan_out(
        session,
        "HEAD",
        [Variant(prompt="a", model=ScriptedModel([faulty])), "b"],
        model=ScriptedModel([[Delay(0.1), "Late."]]),
    )

    assert str(bad.outcome.error) == "ConnectionError: reset by peer"
    assert bad.outcome.error is not None
    assert isinstance(bad.outcome.error.__cause__, ConnectionError)
    assert good.outcome.text == "Late."


async def test_handlers_see_the_branch_of_their_agent(session: Session, asked: str) -> None:
    hooks = Hooks(HookContext(session=session, branch=session.head))
    seen, watched = set[str](), set[tuple[str, str]]()

    @st.tool
    def look() -> str:
        """Look."""
        return "seen"

    hooks.on("tool_call", lambda event, ctx: seen.add(ctx.branch.name) or {"cancel": ctx.branch.name == "b"})

    def watch(branch: str, event: object) -> None:
        if isinstance(event, MessageEnd):
            watched.add((branch, event.entry.branch))

    model = [ScriptedModel([[ToolCall("1", "look", {})], "Done."]) for _ in "ab"]
    variants = [Variant(prompt="go", name=name, model=each) for name, each in zip("ab", model, strict=True)]
    await fan_out(session, "HEAD", variants, options=AgentOptions(tools=[look]), hooks=hooks, watch=watch)

    assert seen == {"a", "b"}
    assert watched == {("a", "a"), ("b", "b")}
    assert "seen" in str(model[0].requests[1].messages[-1])
    assert "seen" not in str(model[1].requests[1].messages[-1])
    assert hooks.context.agent is None


@pytest.mark.parametrize(
    ("variants", "reason"),
    [
        ([], "no variant"),
        ([Variant()], "no message to answer"),
        ([Variant(prompt="a", name="main")], "'main' already"),
        ([Variant(prompt="a", name="x"), Variant(prompt="b", name="x")], "'x' already"),
    ],
)
async def test_a_variant_that_cannot_start_is_refused_before_any_write(
    session: Session, asked: str, variants: list[Variant], reason: str
) -> None:
    before = len(session.tree)

    with pytest.raises(InvalidOperation, match=reason):
        await fan_out(session, "HEAD", variants, model=build_echo_model())
    with pytest.raises(InvalidOperation, match="no model"):
        await fan_out(session, "HEAD", ["a"])

    assert len(session.tree) == before


async def test_cancelling_a_fan_out_aborts_all_variants_and_writes_that(session: Session, asked: str) -> None:
    model = ScriptedModel([["So", Delay(30)], ["So", Delay(30)]])
    fanning = asyncio.create_task(fan_out(session, "HEAD", ["a", "b"], model=model))
    async with asyncio.timeout(60):
        while len(model.requests) < 2:
            await asyncio.sleep(0.01)

    fanning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(fanning, 20)

    for name in ("variant-1", "variant-2"):
        assert session.branch(name).path()[-1].body.message["stopReason"] == "aborted"


async def test_the_best_is_promoted_with_a_summary_of_the_others(session: Session, asked: str) -> None:
    hooks = Hooks()
    cache, table = await fan_out(session, "HEAD", ["a cache", "a table"], model=build_echo_model(), hooks=hooks)

    await promote(
        table.branch,
        session.head,
        hooks=hooks,
        summary=SummaryRequest(model=ScriptedModel(["The cache was too large."])),
    )

    assert session.heads.current == "main"
    assert format_messages(session.head)[-1] == "assistant: I heard 'a table'"
    assert "The cache was too large." in str(session.head.context().to_llm()[-1])
    assert all(session.branch(name).info.archived for name in ("variant-1", "variant-2"))
    assert cache.branch.leaf is not None
