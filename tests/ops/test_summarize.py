import asyncio

import pytest

from sessiontree.config import RetrySettings
from sessiontree.core.compaction import CompactionPreparation, split_window
from sessiontree.core.messages import ToolCall, assistant, user
from sessiontree.core.summary_prompts import NO_HISTORY, SYSTEM_PROMPT
from sessiontree.hooks.abort import OperationStopped
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import RetryScheduled, Signal
from sessiontree.model.base import ModelError, ModelInfo
from sessiontree.model.scripted import Delay, ScriptedModel, ScriptedStop, ScriptedUsage
from sessiontree.ops.summarize import Summarizer, SummaryFailed
from tests.ops.conftest import SMALL, get_prompt, get_text
from tests.waiting import wait_until

QUICK = RetrySettings(attempts=3, base_delay=0.001)
BROKEN = ModelError("m", "network", "the connection broke")
TALK = (user("one").message, assistant("two").message)


def build_summarizer(model: ScriptedModel, signal: Signal | None = None, **options) -> Summarizer:
    given = {"hooks": Hooks(), "retry": QUICK, **options}
    return Summarizer(model, signal or Signal(), split_window(model.info.context_window), **given)


def build_preparation(**fields) -> CompactionPreparation:
    return CompactionPreparation(**{"entries": (), "messages": (), "first_kept": None, "tokens_before": 0, **fields})


async def test_a_summary_is_one_request_and_its_complete_answer() -> None:
    model = ScriptedModel(["  What happened.\n"])

    assert await build_summarizer(model).summarize_branch(TALK) == "What happened."
    (request,) = model.requests
    assert request.system == SYSTEM_PROMPT
    assert request.tools == ()
    assert get_prompt(request).startswith("<conversation>\n[User]: one\n\n[Assistant]: two\n</conversation>")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (["half of", ScriptedStop("length")], "the answer reached its length limit"),
        (["half of", ScriptedStop("error")], "the answer ended with error"),
        (["half of", ScriptedStop("aborted")], "the answer ended with aborted"),
        ([ToolCall("c", "read", {"path": "x"})], "the answer is a tool call"),
        (["text", ToolCall("c", "read", {"path": "x"})], "the answer is a tool call"),
        ([" \n"], "the answer is empty"),
    ],
)
async def test_an_incomplete_answer_is_a_failure(answer, reason) -> None:
    with pytest.raises(SummaryFailed, match=f"scripted:scripted did not write a summary: {reason}") as failed:
        await build_summarizer(ScriptedModel([answer])).summarize_branch(TALK)

    assert (failed.value.model, failed.value.reason) == ("scripted:scripted", reason)


async def test_an_endless_answer_is_not_a_summary_and_its_stream_is_ended() -> None:
    model = ScriptedModel([["many words " * 10_000] * 200])

    with pytest.raises(ModelError, match="the answer is longer than 4194304 bytes"):
        await build_summarizer(model).summarize_branch(TALK)
    assert len(model.requests) == 1


async def test_an_error_of_the_model_is_raised_unchanged() -> None:
    with pytest.raises(ModelError, match="no"):
        await build_summarizer(ScriptedModel([ModelError("m", "auth", "no")])).summarize_branch(TALK)


async def test_a_broken_stream_is_retried_and_listeners_see_the_retry() -> None:
    model, hooks, events = ScriptedModel([["Half of", BROKEN], ["Half", BROKEN], "All of it."]), Hooks(), []
    hooks.listen(events.append)

    assert await build_summarizer(model, hooks=hooks).summarize_branch(TALK) == "All of it."

    assert [(event.attempt, event.attempts) for event in events if isinstance(event, RetryScheduled)] == [
        (1, 3),
        (2, 3),
    ]
    assert "the connection broke" in events[0].error
    assert model.requests[0] == model.requests[2]


@pytest.mark.parametrize(
    ("answers", "asked_for"),
    [
        ([["Half", BROKEN]] * 4, 3),
        ([BROKEN] * 4, 1),
        ([["Half", ModelError("m", "rejected", "no")]], 1),
        ([["Half", ModelError("m", "rate", "tomorrow", retry_after=86_400)]], 1),
    ],
)
async def test_a_summary_is_not_retried_forever_or_after_a_permanent_error(answers, asked_for) -> None:
    model = ScriptedModel(answers)

    with pytest.raises(ModelError):
        await build_summarizer(model).summarize_branch(TALK)

    assert len(model.requests) == asked_for


async def test_aborting_ends_the_wait_for_the_next_attempt() -> None:
    signal, hooks = Signal(), Hooks()
    hooks.listen(lambda event: signal.abort())
    model = ScriptedModel([["Half", BROKEN], "Never."])

    with pytest.raises(OperationStopped):
        await build_summarizer(model, signal, hooks=hooks, retry=RetrySettings(base_delay=60)).summarize_branch(TALK)

    assert len(model.requests) == 1


async def test_aborting_ends_the_request() -> None:
    signal = Signal()
    model = ScriptedModel([[Delay(30), "late"]])
    work = asyncio.ensure_future(build_summarizer(model, signal).summarize_branch(TALK))
    await wait_until(lambda: model.requests)

    signal.abort()

    with pytest.raises(OperationStopped):
        await asyncio.wait_for(work, 20)


async def test_nothing_starts_after_the_signal() -> None:
    signal = Signal()
    signal.abort()
    model = ScriptedModel(["never"])

    with pytest.raises(OperationStopped):
        await build_summarizer(model, signal).summarize_branch(TALK)


async def test_the_thinking_level_is_sent_to_models_that_support_it() -> None:
    plain = ScriptedModel(["s"], info=ModelInfo(provider="p", model="m"))
    thinker = ScriptedModel(["s"])

    await build_summarizer(plain, thinking="high").summarize_branch(TALK)
    await build_summarizer(thinker, thinking="high").summarize_branch(TALK)

    assert (plain.requests[0].thinking, thinker.requests[0].thinking) == ("off", "high")


async def test_an_answer_may_be_as_long_as_the_model_allows_and_the_reserve_holds() -> None:
    small, unknown = ScriptedModel(["s"], info=SMALL), ScriptedModel(["s"])

    await build_summarizer(small).summarize_branch(TALK)
    await build_summarizer(unknown).summarize_branch(TALK)

    assert (small.requests[0].max_tokens, unknown.requests[0].max_tokens) == (1024, None)


async def test_a_conversation_longer_than_the_window_is_summarized_in_steps() -> None:
    model = ScriptedModel(["S1", "S2"], info=SMALL)
    long = tuple(user(get_text(1000, f"m{number}x")).message for number in range(4))

    made = await build_summarizer(model).summarize_compaction(build_preparation(messages=long))

    assert made == "S2"
    prompts = [get_prompt(request) for request in model.requests]
    assert all(len(prompt) + len(SYSTEM_PROMPT) <= 4 * (4096 - 1024) for prompt in prompts)
    assert "<earlier-summary>" not in prompts[0]
    assert "<earlier-summary>\nS1\n</earlier-summary>" in prompts[1]
    for number in range(4):
        assert sum(f"m{number}x" in prompt for prompt in prompts) == 1


OVERFLOW = ModelError("m", "overflow", "too long")


async def test_a_refusal_as_too_long_halves_the_size_of_summary_requests() -> None:
    model = ScriptedModel([OVERFLOW, "S1", "S2"], info=SMALL)
    long = tuple(user(get_text(600, f"m{number}x")).message for number in range(4))

    made = await build_summarizer(model).summarize_compaction(build_preparation(messages=long))

    refused, first, second = (get_prompt(request) for request in model.requests)
    assert made == "S2"
    assert len(first) < 0.7 * len(refused)
    assert "m0x" in first
    assert "m3x" in second


async def test_a_summary_request_refused_as_too_long_is_retried_with_newer_messages_only() -> None:
    model = ScriptedModel([OVERFLOW, OVERFLOW, "S"], info=SMALL)
    long = tuple(user(get_text(600, f"m{number}x")).message for number in range(4))

    assert await build_summarizer(model).summarize_branch(long) == "S"
    assert ["m1x" in get_prompt(request) for request in model.requests] == [True, False, False]
    assert "m3x" in get_prompt(model.requests[-1])


async def test_a_model_that_refuses_every_request_ends_the_summary() -> None:
    model = ScriptedModel([OVERFLOW] * 99)

    with pytest.raises(ModelError, match="too long"):
        await build_summarizer(model).summarize_branch(TALK)
    with pytest.raises(ModelError, match="too long"):
        await build_summarizer(model).summarize_compaction(build_preparation(messages=TALK))

    assert len(model.requests) == 8


async def test_a_split_turn_needs_two_summary_requests() -> None:
    model = ScriptedModel(["HISTORY", "PREFIX"])

    made = await build_summarizer(model).summarize_compaction(
        build_preparation(messages=TALK, prefix_messages=TALK), "the tests"
    )

    assert made.startswith("HISTORY\n\n---\n\n")
    assert made.endswith("\n\nPREFIX")
    history, prefix = (get_prompt(request) for request in model.requests)
    assert history.endswith("the tests")
    assert "the tests" not in prefix


async def test_without_a_history_the_earlier_summary_or_a_note_replaces_it() -> None:
    later = await build_summarizer(ScriptedModel(["PREFIX"])).summarize_compaction(
        build_preparation(prefix_messages=TALK, previous_summary="EARLIER")
    )
    first = await build_summarizer(ScriptedModel(["PREFIX"])).summarize_compaction(
        build_preparation(prefix_messages=TALK)
    )
    silent = await build_summarizer(ScriptedModel([])).summarize_compaction(
        build_preparation(messages=(assistant("x", stop_reason="error").message,))
    )

    assert later.startswith("EARLIER\n\n---")
    assert first.startswith(f"{NO_HISTORY}\n\n---")
    assert silent == NO_HISTORY


async def test_the_usage_of_all_requests_is_added() -> None:
    used = ScriptedUsage({"input": 10, "output": 5, "cost": 0.5})
    makes = build_summarizer(ScriptedModel([["HISTORY", used], ["PREFIX", used]]))
    assert makes.usage is None

    await makes.summarize_compaction(build_preparation(messages=TALK, prefix_messages=TALK))

    assert makes.usage is not None
    assert (makes.usage["input"], makes.usage["output"], makes.usage["totalTokens"]) == (20, 10, 30)
    assert makes.usage["cost"]["total"] == 1.0
