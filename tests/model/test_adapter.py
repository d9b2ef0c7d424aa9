"""The adapter to providers: requests, responses and errors."""

import asyncio
import base64
import contextlib
import gc
import os
import re
from pathlib import Path

import httpx2
import pytest
from msgspec.structs import replace
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior, UserError
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.usage import RequestUsage

import sessiontree
from sessiontree.config import ModelSettings, Prices
from sessiontree.convert.cleanup import CallIds
from sessiontree.core.messages import ToolCall
from sessiontree.model.adapter import ProviderModel
from sessiontree.model.adapter.conversion import build_message, build_parts
from sessiontree.model.adapter.error_mapping import convert_error
from sessiontree.model.base import (
    Finished,
    ModelError,
    ModelInfo,
    PartialMessage,
    Request,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolSpec,
    complete,
)
from sessiontree.model.providers import ModelTarget
from sessiontree.model.request_images import MAX_IMAGE_BYTES
from tests.model.fake_server import Answer, FakeServer, calls, cut, fail, overflow, slow
from tests.model.requests import HELLO, collect_failure
from tests.waiting import wait_until

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
READ = ToolSpec(name="read", description="Reads a file", parameters={"type": "object", "properties": {}})


ACME = ModelTarget(provider="acme", model="one", api="openai-completions")


def make_model(server: FakeServer, **settings) -> ProviderModel:
    target = ModelTarget(provider="vllm", model="qwen", api="openai-completions", base_url=server.url, key="secret")
    return ProviderModel(target, ModelSettings(**settings))


def make_claude(server: FakeServer, **settings) -> ProviderModel:
    target = ModelTarget(
        provider="anthropic",
        model="claude-sonnet-5",
        api="anthropic-messages",
        base_url=server.url.removesuffix("/v1"),
        key="secret",
    )
    return ProviderModel(target, ModelSettings(**settings))


def assistant_message(
    *content: object, provider: str = "vllm", model: str = "qwen", api: str = "openai-completions"
) -> dict:
    """Return an assistant message in its stored form."""
    return {"role": "assistant", "content": list(content), "provider": provider, "model": model, "api": api}


def text_block(words: str) -> dict:
    return {"type": "text", "text": words}


def user_message(*content: object) -> dict:
    return {"role": "user", "content": list(content)}


def image_block(data: str = PNG, kind: str = "image/png") -> dict:
    return {"type": "image", "data": data, "mimeType": kind}


async def capture_sent(*messages: dict, **settings) -> list[dict]:
    """Return the messages that a server receives."""
    with FakeServer(["Fine."]) as server:
        await complete(make_model(server, **settings), Request(messages=messages))
        return server.requests[0]["messages"]


# Streaming


async def test_an_answer_is_streamed_as_events_and_ends_with_the_complete_message() -> None:
    with FakeServer([Answer(text="Hello you", thinking="Hm.", calls=(("c1", "read", {"path": "a"}),))]) as server:
        *events, last = [event async for event in make_model(server).stream(HELLO)]

    assert events == [
        ThinkingDelta("Hm."),
        TextDelta("Hell"),
        TextDelta("o yo"),
        TextDelta("u"),
        ToolCallStart("c1", "read"),
        ToolCallDelta("c1", '{"pa'),
        ToolCallDelta("c1", 'th":'),
        ToolCallDelta("c1", ' "a"'),
        ToolCallDelta("c1", "}"),
        ToolCallEnd(ToolCall("c1", "read", {"path": "a"})),
    ]
    assert isinstance(last, Finished)
    assert last.message["content"] == [
        {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "reasoning_content"},
        {"type": "text", "text": "Hello you"},
        {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "a"}},
    ]
    assert (last.message["provider"], last.message["model"], last.message["api"]) == (
        "vllm",
        "qwen",
        "openai-completions",
    )
    assert last.message["stopReason"] == "toolUse"


async def test_the_request_carries_key_system_prompt_tools_and_limit() -> None:
    with FakeServer(["Fine."]) as server:
        request = Request(messages=HELLO.messages, system="Be brief.", tools=(READ,), max_tokens=99)
        await complete(make_model(server), request)

    (body,) = server.requests
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["tools"][0]["function"]["name"] == "read"
    assert body["max_tokens"] == 99


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "stop"), ("length", "length"), ("tool_calls", "toolUse"), ("content_filter", "error")],
)
async def test_stop_reasons_use_the_words_of_other_programs(finish: str, reason: str) -> None:
    with FakeServer([Answer(text="x", finish=finish)]) as server:
        message = await complete(make_model(server), HELLO)

    assert message["stopReason"] == reason
    assert ("errorMessage" in message) == (reason == "error")


async def test_tool_calls_with_a_stop_reason_of_stop_are_kept() -> None:
    with FakeServer([calls(("c1", "read", {}), finish="stop")]) as server:
        assert (await complete(make_model(server), HELLO))["stopReason"] == "toolUse"


@pytest.mark.parametrize("broken", ['{"path": "a', "[1, 2]", "read it"])
async def test_arguments_that_are_not_a_json_object_are_kept_unchanged(broken: str) -> None:
    with FakeServer([calls(("c1", "read", broken)), "Sorry."]) as server:
        first = await complete(make_model(server), HELLO)
        result = {"role": "toolResult", "toolCallId": "c1", "toolName": "read", "content": [text_block("No JSON.")]}
        await complete(make_model(server), Request(messages=[*HELLO.messages, first, result]))

    assert first["content"][0]["arguments"] == broken
    _, again, _ = server.requests[1]["messages"]
    assert again["tool_calls"][0]["function"]["arguments"].startswith('{"unreadable":')


async def test_a_model_works_in_several_event_loops() -> None:
    with FakeServer(["One.", "Two."]) as server:
        asked = make_model(server)

        def ask() -> str:
            return asyncio.run(complete(asked, HELLO))["content"][0]["text"]

        assert [await asyncio.to_thread(ask), await asyncio.to_thread(ask)] == ["One.", "Two."]


@pytest.mark.filterwarnings("error::ResourceWarning")
async def test_an_event_loop_that_ends_closes_the_connections_of_the_model() -> None:
    with FakeServer(["One."] * 4) as server:
        asked = make_model(server)
        for _ in range(4):
            before = count_sockets()
            await asyncio.to_thread(lambda: asyncio.run(complete(asked, HELLO)))
            await wait_until(lambda before=before: count_sockets() <= before)  # the server closes its end later


async def test_a_model_that_is_no_longer_used_closes_its_connections() -> None:
    with FakeServer(["One."]) as server:
        before = count_sockets()
        await complete(make_model(server), HELLO)

        gc.collect()
        await wait_until(lambda: count_sockets() <= before)


def count_sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # a thread of the server has closed it
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


# Cancelling


async def test_cancelling_closes_the_connection() -> None:
    with FakeServer([slow()]) as server:
        draft = PartialMessage(make_model(server).info)
        begun = asyncio.Event()

        async def ask() -> None:
            async for event in make_model(server).stream(HELLO):
                draft.apply(event)
                begun.set()

        task = asyncio.ensure_future(ask())
        await asyncio.wait_for(begun.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await asyncio.to_thread(server.wait_for, lambda server: server.disconnects == 1)
    assert draft.build_message("aborted")["content"][0]["text"].startswith("word ")


async def test_leaving_the_stream_closes_the_connection() -> None:
    with FakeServer([slow()]) as server:
        events = make_model(server).stream(HELLO)
        await anext(events)
        await events.aclose()

        assert await asyncio.to_thread(server.wait_for, lambda server: server.disconnects == 1)


async def test_a_request_that_is_not_answered_yet_can_be_cancelled() -> None:
    with FakeServer([slow(pause=30)]) as server:
        asking = asyncio.create_task(complete(make_model(server), HELLO))
        assert await asyncio.to_thread(server.wait_for, lambda server: len(server.requests) == 1)

        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        assert await asyncio.to_thread(server.wait_for, lambda server: server.disconnects == 1)


# Failures


@pytest.mark.parametrize(
    ("refusal", "kind", "passing"),
    [
        (fail(429, "slow down"), "rate", True),
        (fail(500, "oops"), "server", True),
        (fail(503, "busy"), "server", True),
        (fail(529, "overloaded"), "server", True),
        (fail(504, "too slow"), "timeout", True),
        (fail(402, "no money"), "rejected", False),
        (fail(401, "bad key"), "auth", False),
        (fail(403, "not yours"), "auth", False),
        (fail(404, "no such model"), "rejected", False),
        (fail(400, "what?"), "rejected", False),
        (fail(408, "too slow"), "timeout", True),
        (overflow(), "overflow", False),
        (fail(413, "too large"), "overflow", False),
        (fail(400, "the request exceeds the available context size (4096 tokens)"), "overflow", False),
        (fail(400, "prompt is too long: 210000 tokens > 200000 maximum"), "overflow", False),
        (fail(400, "The input token count (1200000) exceeds the maximum number of tokens allowed"), "overflow", False),
        (fail(400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"), "overflow", False),
        (fail(400, "max_tokens is too large: 9000; the maximum number of tokens is 4096"), "rejected", False),
        (fail(500, "input is larger than the max context size. skipping"), "overflow", False),
    ],
)
async def test_an_error_response_is_classified(refusal: Answer, kind: str, passing: bool) -> None:
    with FakeServer([refusal]) as server:
        events, error = await collect_failure(make_model(server))

    assert events == []
    assert (error.kind, error.is_retryable, error.status) == (kind, passing, refusal.status)
    assert f"{refusal.error['message'].rstrip('.')} ({refusal.status})" in str(error) or kind == "auth"
    assert str(error).count(str(refusal.status)) == 1
    assert len(server.requests) == 1, "it is not tried again here"


@pytest.mark.parametrize(
    ("raised", "kind", "reason"),
    [
        (
            httpx2.ReadError("the peer went away"),
            "network",
            "cannot reach acme: the peer went away; check the connection",
        ),
        (ConnectionResetError("reset"), "network", "cannot reach acme: reset; check the connection"),
        (TimeoutError(), "timeout", "TimeoutError"),
        (UserError("this cannot be asked."), "rejected", "this cannot be asked"),
        (UnexpectedModelBehavior("half an event"), "server", "half an event"),
        (KeyError("what"), "rejected", "'what'"),
        (
            ModelHTTPError(400, "m", {"error": {"error": {"message": "deep\n down"}}}),
            "rejected",
            "deep down (400)",
        ),
        (ModelHTTPError(400, "m", "in words"), "rejected", "in words (400)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_every_library_exception_becomes_a_model_error(raised: Exception, kind: str, reason: str) -> None:
    told = convert_error(ACME, raised)

    assert (told.kind, told.reason) == (kind, reason)


async def test_an_api_key_is_redacted_in_error_messages() -> None:
    key = "sk-0123456789"
    with FakeServer([fail(401, f"{'so ' * 160}wrong: Bearer {key}, or {key}")]) as server:
        target = ModelTarget(provider="vllm", model="qwen", api="openai-completions", base_url=server.url, key=key)
        _, error = await collect_failure(ProviderModel(target))
    told = convert_error(replace(ACME, key=key), ConnectionResetError(f"reset at http://here/?key={key}"))

    assert error.kind == "auth"
    assert "sk-" not in str(error)
    assert "wrong: Bearer [" in str(error)
    assert "reset at http://here/?key=[key]" in told.reason


@pytest.mark.parametrize(
    ("provider", "variable", "answer", "reason"),
    [
        ("openai", None, fail(401), "openai refused the API key: refused with 401; set OPENAI_API_KEY to a valid key"),
        (
            "anthropic",
            None,
            fail(401, "invalid x-api-key"),
            "anthropic refused the API key (401): invalid x-api-key; set ANTHROPIC_API_KEY to a valid key",
        ),
        (
            "vllm",
            "MY_KEY",
            fail(401, "Error code: 401 - no"),
            "vllm refused the API key (401): no; set MY_KEY to a valid key",
        ),
        (
            "openai",
            None,
            fail(403, "not yours"),
            "openai denied access (403): not yours; check the permissions of the API key, or choose another model",
        ),
        ("vllm", None, fail(429, "slow down"), "slow down (429); wait a while, or choose another model"),
        (
            "vllm",
            None,
            fail(404, "no such model"),
            "no such model (404); `/model` and `sessiontree models` list the available models",
        ),
    ],
)
async def test_an_error_message_has_advice_and_the_status_once(
    provider: str, variable: str | None, answer: Answer, reason: str
) -> None:
    api = "anthropic-messages" if provider == "anthropic" else "openai-completions"
    with FakeServer([answer]) as server:
        url = server.url.removesuffix("/v1") if provider == "anthropic" else server.url
        target = ModelTarget(provider=provider, model="one", api=api, base_url=url, key="sk-0123456789")
        _, error = await collect_failure(ProviderModel(target, ModelSettings(key_variable=variable)))

    assert error.reason == reason


@pytest.mark.parametrize(("said", "seconds"), [(7, 7), ("0.25", 0.25), ("soon", None)])
async def test_the_retry_after_header_is_read(said: float | str, seconds: float | None) -> None:
    with FakeServer([fail(429, retry_after=said)]) as server:
        _, error = await collect_failure(make_model(server))

    assert error.retry_after == seconds


async def test_a_broken_connection_keeps_the_partial_message() -> None:
    with FakeServer([cut("This is not")]) as server:
        events, error = await collect_failure(make_model(server))

    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "This is not"
    assert (error.kind, error.is_retryable) == ("network", True)


async def test_an_incomplete_response_is_an_error() -> None:
    with FakeServer([Answer(text="This is not", finish="", usage=None), Answer(text="This is", finish="")]) as server:
        events, error = await collect_failure(make_model(server))
        message = await complete(make_model(server), HELLO)

    assert (error.kind, error.reason) == ("network", "the stream was cut off")
    assert events
    assert message["content"] == [text_block("This is")], (
        "a server may not say why it stops, but then it says what was used"
    )


async def test_an_incomplete_anthropic_response_is_an_error() -> None:
    with FakeServer([Answer(text="This is not", finish="", usage={"input_tokens": 3, "output_tokens": 2})]) as server:
        _, error = await collect_failure(make_claude(server))

    assert (error.kind, error.reason) == ("network", "the stream was cut off")


async def test_a_missing_server_is_a_network_failure() -> None:
    with FakeServer() as server:
        pass

    _, error = await collect_failure(make_model(server))

    assert (error.kind, error.is_retryable) == ("network", True)


def test_an_unknown_provider_is_unavailable() -> None:
    with pytest.raises(ModelError) as caught:
        ProviderModel(ModelTarget(provider="nobody", model="x", api="openai-completions"))

    assert caught.value.kind == "unavailable"


# Sent messages


async def test_a_conversation_is_sent_turn_by_turn() -> None:
    assert await capture_sent(
        user_message(text_block("Read a.py")),
        assistant_message(
            text_block("Yes."), {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "a.py"}}
        ),
        {"role": "toolResult", "toolCallId": "c1", "toolName": "read", "content": [text_block("print()")]},
        user_message(text_block("And?")),
        assistant_message(text_block("It prints.")),
        user_message(text_block("Thanks"), text_block("a lot")),
    ) == [
        {"role": "user", "content": "Read a.py"},
        {
            "role": "assistant",
            "content": "Yes.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"a.py"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "print()"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "It prints."},
        {"role": "user", "content": "Thanks\na lot"},
    ]


async def test_system_messages_keep_their_position() -> None:
    messages = await capture_sent(
        user_message(text_block("Hi")), {"role": "system", "content": "New rules", "sections": {"a": "Be kind"}}
    )

    assert messages[0] == {"role": "user", "content": "Hi"}
    assert "New rules\n\nBe kind" in str(messages[1]["content"]).replace("\\n", "\n")


async def test_thinking_is_sent_back_to_the_model_that_wrote_it() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "reasoning_content"}

    _, same, _ = await capture_sent(
        user_message(text_block("Hi")), assistant_message(thought, text_block("Ho")), user_message(text_block("So?"))
    )
    _, other, _ = await capture_sent(
        user_message(text_block("Hi")),
        assistant_message(thought, text_block("Ho"), model="llama"),
        user_message(text_block("So?")),
    )

    assert same == {"role": "assistant", "reasoning_content": "Hm.", "content": "Ho"}
    assert other == {"role": "assistant", "content": "Ho"}


async def test_unsigned_thinking_is_not_sent() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "of another protocol"}

    _, answered, _ = await capture_sent(
        user_message(text_block("Hi")), assistant_message(thought, text_block("Ho")), user_message(text_block("So?"))
    )

    assert answered == {"role": "assistant", "content": "Ho"}


def test_trailing_thinking_is_omitted() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "reasoning_content"}
    info = ModelInfo(provider="vllm", model="qwen", api="openai-completions")

    assert build_parts(assistant_message(thought), info, "vllm", CallIds()) == []
    assert build_parts(assistant_message(text_block("Ho"), thought), info, "vllm", CallIds()) == [TextPart("Ho")]


async def test_a_failed_tool_result_keeps_its_text() -> None:
    call = {"type": "toolCall", "id": "c1", "name": "read", "arguments": {}}
    result = {
        "role": "toolResult",
        "toolCallId": "c1",
        "toolName": "read",
        "content": [text_block("No\nfile")],
        "isError": True,
    }

    *_, told = await capture_sent(user_message(text_block("Hi")), assistant_message(call), result)

    assert told["content"] == "No\nfile"


async def test_a_local_server_is_not_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)

    assert await capture_sent(user_message(text_block("Hi"))) == [{"role": "user", "content": "Hi"}]


async def test_an_empty_assistant_message_is_omitted() -> None:
    messages = await capture_sent(
        user_message(text_block("Hi")),
        assistant_message({"type": "thinking", "thinking": "Hm."}, text_block("  ")),
        user_message(text_block("So")),
    )

    assert [message["role"] for message in messages] == ["user", "user"]


async def test_a_message_without_text_is_still_sent() -> None:
    assert await capture_sent(user_message()) == [{"role": "user", "content": "(nothing)"}]


async def test_images_are_sent_to_models_that_accept_them() -> None:
    (message,) = await capture_sent(user_message(text_block("See:"), image_block()), images=True)

    words, picture = message["content"]
    assert words == {"type": "text", "text": "See:"}
    assert picture["image_url"]["url"] == f"data:image/png;base64,{PNG}"


async def test_images_become_a_note_for_models_that_do_not() -> None:
    (message,) = await capture_sent(user_message(text_block("See:"), image_block()))

    assert message["content"] == "See:\n[An image was omitted here: this model does not accept images.]"


async def test_images_of_tools_reach_the_model() -> None:
    call = {"type": "toolCall", "id": "c1", "name": "look", "arguments": {}}
    result = {
        "role": "toolResult",
        "toolCallId": "c1",
        "toolName": "look",
        "content": [text_block("A dot"), image_block()],
    }

    messages = await capture_sent(user_message(text_block("Look")), assistant_message(call), result, images=True)

    assert "A dot" in str(messages)
    assert PNG in str(messages)


@pytest.mark.parametrize(
    ("broken", "note"),
    [
        (image_block("A" * (MAX_IMAGE_BYTES + 4)), "it is larger than 5 MB"),
        (image_block("not base64!"), "the data is invalid"),
        (image_block("", "image/png"), "it is empty"),
        (image_block(PNG, "image/tiff"), "its type is image/tiff"),
        ({"type": "image"}, "its type is unknown"),
    ],
    ids=["large", "broken", "empty", "odd", "bare"],
)
async def test_an_image_that_cannot_be_sent_becomes_a_note(broken: dict, note: str) -> None:
    (message,) = await capture_sent(user_message(text_block("See:"), broken), images=True)

    assert message["content"] == f"See:\n[An image was omitted here: {note}.]"


async def test_rejected_content_is_replaced_in_requests() -> None:
    stored = [
        user_message(text_block("a\ud800b\x00c")),
        assistant_message(
            {"type": "toolCall", "id": "c|\x00", "name": "re ad", "arguments": {"k\x00": ["\udfff", float("inf")]}}
        ),
        {"role": "toolResult", "toolCallId": "c|\x00", "toolName": "re ad", "content": [text_block("\x00")]},
    ]

    asked, called, answered = await capture_sent(*stored)

    assert asked["content"] == "a\ufffdb\ufffdc"
    assert called["tool_calls"][0]["function"] == {"name": "re_ad", "arguments": '{"k\ufffd":["\ufffd",null]}'}
    assert called["tool_calls"][0]["id"] == answered["tool_call_id"] == "c"
    assert answered["content"] == "\ufffd"
    assert stored[0]["content"][0]["text"] == "a\ud800b\x00c"


async def test_invalid_call_ids_are_replaced_by_the_same_id_everywhere() -> None:
    _, called, answered = await capture_sent(
        user_message(text_block("Hi")),
        assistant_message({"type": "toolCall", "id": "functions.read:0", "name": "read", "arguments": {}}),
        {"role": "toolResult", "toolCallId": "functions.read:0", "toolName": "read", "content": [text_block("x")]},
    )

    assert called["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert answered["tool_call_id"].startswith("call_")


async def test_duplicate_call_ids_and_their_results_become_unique() -> None:
    def called(*ids: str) -> dict:
        return assistant_message(*({"type": "toolCall", "id": id, "name": "read", "arguments": {}} for id in ids))

    def result(id: str, words: str) -> dict:
        return {"role": "toolResult", "toolCallId": id, "toolName": "read", "content": [text_block(words)]}

    messages = [user_message(text_block("Hi")), called("call_0"), result("call_0", "1"), called("call_0", "", "")]
    requested = await capture_sent(*messages, result("call_0", "2"), result("", "3"), result("", "4"))

    ids = [call["id"] for message in requested for call in message.get("tool_calls", ())]
    assert len(set(ids)) == 4
    assert ids[:2] == ["call_0", "call_0_2"]
    answers = [(message["tool_call_id"], message["content"]) for message in requested if message["role"] == "tool"]
    assert answers == list(zip(ids, "1234", strict=True))


# Usage and cost


async def test_usage_separates_cached_tokens() -> None:
    used = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}}
    with FakeServer([Answer(text="x", usage=used)]) as server:
        message = await complete(make_model(server), HELLO)

    assert message["usage"] == {
        "input": 40,
        "output": 7,
        "cacheRead": 60,
        "cacheWrite": 0,
        "totalTokens": 107,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0},
    }


async def test_configured_prices_take_precedence() -> None:
    used = {"prompt_tokens": 1_000_000, "completion_tokens": 500_000}
    with FakeServer([Answer(text="x", usage=used)]) as server:
        message = await complete(make_model(server, prices=Prices(input=2, output=8)), HELLO)

    assert message["usage"]["cost"] == {"input": 2.0, "output": 4.0, "cacheRead": 0.0, "cacheWrite": 0.0, "total": 6.0}


def test_known_prices_are_looked_up_and_split() -> None:
    response = ModelResponse(
        parts=[TextPart("x")],
        usage=RequestUsage(input_tokens=1_000, output_tokens=100, cache_read_tokens=600, cache_write_tokens=200),
        model_name="claude-sonnet-4-5",
        provider_name="anthropic",
        finish_reason="stop",
    )

    cost = build_message(response, ModelInfo(provider="anthropic", model="claude-sonnet-4-5"))["usage"]["cost"]

    assert cost == pytest.approx(
        {
            "input": 200 * 3e-6,
            "output": 100 * 15e-6,
            "cacheRead": 600 * 0.3e-6,
            "cacheWrite": 200 * 3.75e-6,
            "total": (200 * 3 + 100 * 15 + 600 * 0.3 + 200 * 3.75) * 1e-6,
        }
    )


async def test_a_response_without_usage_costs_nothing() -> None:
    with FakeServer([Answer(text="x", usage=None)]) as server:
        message = await complete(make_model(server), HELLO)

    assert message["usage"]["totalTokens"] == 0


# Providers with their own protocol


async def test_anthropic_round_trips_signed_thinking_and_reports_cached_tokens() -> None:
    used = {"input_tokens": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 10, "output_tokens": 5}
    first = Answer(
        text="I look.", thinking="Hm.", signature="sig-1", calls=(("toolu_1", "read", {"path": "a"}),), usage=used
    )
    with FakeServer([first, Answer(text="Done.", usage=used)]) as server:
        asked = make_claude(server)
        message = await complete(asked, Request(messages=HELLO.messages, thinking="low", tools=(READ,)))
        failed_result = {
            "role": "toolResult",
            "toolCallId": "toolu_1",
            "toolName": "read",
            "content": [text_block("no such file")],
            "isError": True,
        }
        again = Request(messages=[*HELLO.messages, message, failed_result], thinking="low", tools=(READ,))
        await complete(asked, again)

    assert asked.info.images
    assert asked.info.thinking
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "sig-1"},
        {"type": "text", "text": "I look."},
        {"type": "toolCall", "id": "toolu_1", "name": "read", "arguments": {"path": "a"}},
    ]
    usage = message["usage"]
    assert (usage["input"], usage["cacheRead"], usage["cacheWrite"], usage["output"]) == (10, 80, 10, 5)
    assert usage["cost"]["total"] > 0
    _, turn, result = server.requests[1]["messages"]
    assert turn["content"][0] == {"type": "thinking", "thinking": "Hm.", "signature": "sig-1"}
    assert result["content"][0]["is_error"] is True
    assert "cache_control" in str(server.requests[1])


async def test_openai_round_trips_response_items() -> None:
    used = {"input_tokens": 50, "output_tokens": 9, "total_tokens": 59, "input_tokens_details": {"cached_tokens": 20}}
    used["output_tokens_details"] = {"reasoning_tokens": 3}
    first = Answer(
        text="I look.", thinking="Hm.", signature="secret", calls=(("call_1", "read", {"path": "a"}),), usage=used
    )
    with FakeServer([first, Answer(text="Done.", usage=used, finish="length")]) as server:
        asked = ProviderModel(
            ModelTarget(provider="openai", model="gpt-5", api="openai-responses", base_url=server.url, key="x")
        )
        question = Request(messages=HELLO.messages, thinking="high", tools=(READ,))
        *events, last = [event async for event in asked.stream(question)]
        message = last.message
        result = {"role": "toolResult", "toolCallId": message["content"][2]["id"], "toolName": "read", "content": "x"}
        second = await complete(asked, Request(messages=[*HELLO.messages, message, result], tools=(READ,)))

    assert ThinkingDelta("Hm.") in events
    assert ToolCallStart("call_1|fc_1", "read") in events
    assert ToolCallEnd(ToolCall("call_1|fc_1", "read", {"path": "a"})) in events
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "toolCall"]
    assert message["stopReason"] == "toolUse"
    assert second["stopReason"] == "length"
    assert (message["usage"]["input"], message["usage"]["cacheRead"], message["usage"]["output"]) == (30, 20, 9)
    assert message["usage"]["cost"]["total"] > 0
    assert server.requests[0]["reasoning"]["effort"] == "high"
    _, thought, words, call, answered = server.requests[1]["input"]
    assert (thought["id"], thought["encrypted_content"]) == ("rs_1", "secret")
    assert (words["id"], words["content"][0]["text"]) == ("msg_1", "I look.")
    assert (call["id"], call["call_id"], answered["call_id"]) == ("fc_1", "call_1", "call_1")


async def test_google_round_trips_signed_calls() -> None:
    used = {"promptTokenCount": 30, "candidatesTokenCount": 4, "thoughtsTokenCount": 2, "totalTokenCount": 36}
    first = Answer(text="I look.", thinking="Hm.", signature="c2ln", calls=(("c1", "read", {"path": "a"}),), usage=used)
    with FakeServer([first, Answer(text="Done.", usage=used)]) as server:
        url = server.url.removesuffix("/v1")
        asked = ProviderModel(
            ModelTarget(provider="google", model="gemini-3.8-flash", api="google-generative-ai", base_url=url, key="x")
        )
        message = await complete(asked, Request(messages=HELLO.messages, thinking="low", tools=(READ,)))
        result = {"role": "toolResult", "toolCallId": "c1", "toolName": "read", "content": "no file", "isError": True}
        await complete(asked, Request(messages=[*HELLO.messages, message, result], tools=(READ,)))

    assert [block["type"] for block in message["content"]] == ["thinking", "text", "toolCall"]
    assert message["content"][2]["thoughtSignature"] == "c2ln"
    assert message["stopReason"] == "toolUse"
    assert (message["usage"]["input"], message["usage"]["output"]) == (30, 6)
    _, turn, answered = server.requests[1]["contents"]
    assert turn["parts"][-1]["thoughtSignature"] == "c2ln"
    assert answered["parts"][0]["functionResponse"]["response"] == {"error": "no file"}


@pytest.mark.parametrize(
    ("api", "parts"),
    [
        (
            "openai-responses",
            [
                ThinkingPart("Hm.", id="rs_1", signature="encrypted", provider_name="openai"),
                ThinkingPart("Well.", id="rs_1", provider_name="openai"),
                TextPart("Ho", id="msg_1", provider_name="openai"),
                ToolCallPart("read", {"path": "a"}, "call_1", id="fc_1", provider_name="openai"),
            ],
        ),
        (
            "google-generative-ai",
            [
                ThinkingPart("Hm.", signature="c2ln", provider_name="openai"),
                TextPart("Ho", provider_name="openai", provider_details={"thought_signature": "c2ln"}),
                ToolCallPart(
                    "read", {"a": 1}, "c1", provider_name="openai", provider_details={"thought_signature": "c2ln"}
                ),
            ],
        ),
        (
            "anthropic-messages",
            [ThinkingPart("", id="redacted_thinking", signature="x", provider_name="openai"), TextPart("Ho")],
        ),
        ("openai-completions", [ThinkingPart("Hm.", id="reasoning", provider_name="openai"), TextPart("Ho")]),
    ],
)
def test_provider_identities_of_parts_round_trip(api: str, parts: list) -> None:
    info = ModelInfo(provider="openai", model="gpt-5", api=api)

    stored = build_message(ModelResponse(parts=parts, model_name="gpt-5", finish_reason="stop"), info)

    assert build_parts(stored, info, "openai", CallIds()) == parts
    other = ModelInfo(provider="openai", model="gpt-4o", api=api)
    assert not any(isinstance(part, ThinkingPart) for part in build_parts(stored, other, "openai", CallIds()))


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("openrouter:anthropic/claude-sonnet-4.5", True),
        ("openrouter:meta-llama/llama-3.3-70b", False),
        ("groq:openai/gpt-oss-120b", False),
        ("google:gemini-2.5-flash", True),
        ("deepseek:deepseek-chat", False),
    ],
)
def test_images_are_sent_only_to_models_that_accept_them(name: str, images: bool) -> None:
    provider, _, named = name.partition(":")
    api = "google-generative-ai" if provider == "google" else "openai-completions"

    assert ProviderModel(ModelTarget(provider=provider, model=named, api=api, key="x")).info.images == images


def test_openai_messages_of_pi_are_sent_as_items() -> None:
    info = ModelInfo(provider="openai", model="gpt-5", api="openai-responses")
    stored = assistant_message(
        {"type": "thinking", "thinking": "Hm.", "thinkingSignature": '{"id":"rs_1","encrypted_content":"e"}'},
        {"type": "text", "text": "Ho", "textSignature": '{"v":1,"id":"msg_1"}'},
        {"type": "toolCall", "id": "call_1|fc_1", "name": "read", "arguments": {}},
        provider="openai",
        model="gpt-5",
        api="openai-responses",
    )

    thought, words, call = build_parts(stored, info, "openai", CallIds())

    assert (thought.id, thought.signature, words.id, call.tool_call_id, call.id) == (
        "rs_1",
        "e",
        "msg_1",
        "call_1",
        "fc_1",
    )


def test_model_info_comes_from_the_provider_and_the_configuration() -> None:
    target = ModelTarget(provider="openai", model="gpt-4o", api="openai-responses", key="x")

    known = ProviderModel(target).info
    said = ProviderModel(target, ModelSettings(context_window=4096, images=False, output_limit=512)).info

    assert (known.context_window, known.images) == (128_000, True)
    assert (said.context_window, said.images, said.output_limit) == (4096, False, 512)


def test_nothing_else_imports_pydantic_ai() -> None:
    package = Path(sessiontree.__file__).parent
    importing = {
        str(path.relative_to(package).parent)
        for path in package.rglob("*.py")
        if re.search(r"^\s*(import|from) pydantic_ai", path.read_text(), re.MULTILINE)
    }

    assert importing == {"adapters", "convert", "model/adapter"}
