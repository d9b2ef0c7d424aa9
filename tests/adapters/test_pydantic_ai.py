"""One suite for the store in memory of pydantic-ai and for ours, then what only ours can do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    AgentRunResultEvent,
    BinaryImage,
    Conversation,
    ConversationTypeAdapter,
    DeferredToolRequests,
    ModelRetry,
    capture_run_messages,
)
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage, RunUsage

import sessiontree as st
from sessiontree.adapters.pydantic_ai import TreeConversationStore
from sessiontree.library.catalog import restore
from tests.model.fake_server import FakeServer, calls


class RestartedStore(TreeConversationStore):
    """A store that remembers no messages, so that every history is what the session holds."""

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        return await TreeConversationStore().read_history(head_id, limit=limit)


STORES: dict[str, Callable[[Path], ConversationStore]] = {
    "memory": lambda _: InMemoryConversationStore(),
    "tree": TreeConversationStore,
    "usual place": lambda _: TreeConversationStore(),
    "restarted": lambda _: RestartedStore(),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ConversationStore:
    return STORES[request.param](tmp_path / "sessions")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


def ask(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def say(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)], usage=RequestUsage(input_tokens=10, output_tokens=5))


def talk(*texts: str) -> list[ModelMessage]:
    """Return messages of the user and the model in turn."""
    return [say(text) if index % 2 else ask(text) for index, text in enumerate(texts)]


def read(messages: list[ModelMessage]) -> list[str]:
    return [str(message.parts[0].content) for message in messages]  # type: ignore[union-attr]


def dump(messages: list[ModelMessage]) -> Any:
    """Return messages as JSON: values of any type, such as times in provider details, become text in every file."""
    return ModelMessagesTypeAdapter.dump_python(messages, mode="json")


async def save(store: ConversationStore, id: str, *texts: str, scope: str | None = None) -> Conversation:
    conversation = Conversation(conversation_id=id, messages=talk(*texts))
    await store.save(conversation, scope=scope)
    return conversation


async def load(store: ConversationStore, id: str, **options: Any) -> Conversation:
    conversation = await store.load(id, **options)
    assert conversation is not None
    return conversation


# Both stores


async def test_an_unknown_conversation_is_none(store: ConversationStore) -> None:
    assert await store.load("none") is None
    assert await store.load_entries("none") is None
    assert await store.list_conversations() == []
    await store.delete("none")


async def test_a_saved_conversation_comes_back_equal(store: ConversationStore) -> None:
    saved = await save(store, "c", "a", "b")

    loaded = await load(store, "c")

    assert loaded == saved
    assert loaded.messages == saved.messages
    assert loaded.new_message_index == 2


async def test_only_new_messages_are_stored(store: ConversationStore) -> None:
    await save(store, "c", "a", "b")
    before = await store.load_entries("c")
    loaded = await load(store, "c")
    loaded.messages += talk("c", "d")

    added = await store.save(loaded)

    entries = await store.load_entries("c")
    assert before is not None
    assert entries == [*before, *added]
    assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
    assert len({entry.id for entry in entries}) == 4


async def test_a_save_without_new_messages_keeps_usage_and_changes_the_revision(store: ConversationStore) -> None:
    saved = await save(store, "c", "a", "b")
    first = saved.revision
    saved.usage = RunUsage(requests=3, input_tokens=100, tool_calls=2)

    assert await store.save(saved) == []

    loaded = await load(store, "c")
    assert loaded.usage == saved.usage
    assert loaded.revision == saved.revision != first


async def test_an_empty_conversation_can_be_saved_and_continued(store: ConversationStore) -> None:
    empty = Conversation(conversation_id="c")
    await store.save(empty)

    loaded = await load(store, "c")
    loaded.messages += talk("a", "b")
    await store.save(loaded)

    assert read((await load(store, "c")).messages) == ["a", "b"]


async def test_a_limit_loads_the_last_messages_and_a_save_still_appends_to_all(store: ConversationStore) -> None:
    await save(store, "c", "a", "b", "c", "d")

    window = await load(store, "c", limit=2)
    assert read(window.messages) == ["c", "d"]
    assert (await load(store, "c", limit=0)).messages == []
    window.messages += talk("e", "f")
    await store.save(window)

    assert read((await load(store, "c")).messages) == list("abcdef")
    with pytest.raises(UserError):
        await store.load("c", limit=-1)


async def test_the_second_of_two_saves_from_one_revision_is_a_conflict(store: ConversationStore) -> None:
    await save(store, "c", "a", "b")
    mine, theirs = await load(store, "c"), await load(store, "c")
    mine.messages += talk("mine")
    theirs.messages += talk("theirs")
    await store.save(theirs)

    with pytest.raises(ConversationConflict) as caught:
        await store.save(mine)

    assert caught.value.conversation_id == "c"
    assert read((await load(store, "c")).messages) == ["a", "b", "theirs"]


async def test_a_new_conversation_does_not_replace_one_with_its_id(store: ConversationStore) -> None:
    await save(store, "c", "a", "b")

    with pytest.raises(ConversationConflict):
        await save(store, "c", "x")

    assert read((await load(store, "c")).messages) == ["a", "b"]


async def test_saves_at_the_same_time_have_one_winner(store: ConversationStore) -> None:
    await save(store, "c", "a", "b")
    copies = [await load(store, "c") for _ in range(5)]
    for number, copy in enumerate(copies):
        copy.messages += talk(str(number))

    results = await asyncio.gather(*(store.save(copy) for copy in copies), return_exceptions=True)

    assert [type(result) for result in results if not isinstance(result, list)] == [ConversationConflict] * 4
    assert len((await load(store, "c")).messages) == 3


async def test_a_rewritten_history_branches_off_the_last_shared_message(store: ConversationStore) -> None:
    saved = await save(store, "c", "a", "b", "c", "d")
    entries = await store.load_entries("c")
    assert entries is not None
    rewritten = Conversation(
        conversation_id="c", messages=[*saved.messages[:2], *talk("x", "y")], revision=saved.revision
    )

    added = await store.save(rewritten)

    assert read((await load(store, "c")).messages) == ["a", "b", "x", "y"]
    assert added[0].parent_id == entries[1].id
    (record,) = await store.list_conversations()
    assert record.branches == [entries[-1].id]
    assert read([entry.message for entry in await store.read_history(record.branches[0])]) == list("abcd")


async def test_a_serialized_conversation_is_compared_and_only_extended(store: ConversationStore) -> None:
    await save(store, "c", "a", "b")
    loaded = await load(store, "c")
    loaded.messages += talk("c")
    text = ConversationTypeAdapter.dump_json(loaded)

    added = await store.save(ConversationTypeAdapter.validate_json(text))

    assert read([entry.message for entry in added]) == ["c"]
    (record,) = await store.list_conversations()
    assert record.branches == []


async def test_a_branch_continues_from_an_earlier_message_and_back(store: ConversationStore) -> None:
    saved = await save(store, "c", "a", "b", "c", "d")
    entries = await store.load_entries("c")
    assert entries is not None

    branched = await store.branch("c", at=2, expected_revision=saved.revision)
    branched.messages += talk("x", "y")
    await store.save(branched)

    assert read((await load(store, "c")).messages) == ["a", "b", "x", "y"]
    (record,) = await store.list_conversations()
    assert record.branches == [entries[-1].id]
    back = await store.branch("c", from_entry=entries[-1].id, expected_revision=branched.revision)
    assert read(back.messages) == list("abcd")
    (record,) = await store.list_conversations()
    assert entries[-1].id not in record.branches
    assert len(record.branches) == 1


async def test_a_branch_at_zero_starts_again(store: ConversationStore) -> None:
    saved = await save(store, "c", "a", "b")

    branched = await store.branch("c", at=0, expected_revision=saved.revision)
    assert branched.messages == []
    branched.messages += talk("x")
    await store.save(branched)

    assert read((await load(store, "c")).messages) == ["x"]


async def test_wrong_places_of_a_branch_are_refused(store: ConversationStore) -> None:
    saved = await save(store, "c", "a", "b")

    for options in ({"at": 3}, {"at": -1}, {"from_entry": "none"}, {}, {"at": 1, "from_entry": "none"}):
        with pytest.raises(UserError):
            await store.branch("c", expected_revision=saved.revision, **options)  # type: ignore[arg-type]
    with pytest.raises(UserError):
        await store.branch("none", at=0, expected_revision=None)
    with pytest.raises(ConversationConflict):
        await store.branch("c", at=1, expected_revision="other")
    assert read((await load(store, "c")).messages) == ["a", "b"]


async def test_a_fork_is_a_separate_conversation(store: ConversationStore) -> None:
    await save(store, "c", "a", "b", "c", "d")
    entries = await store.load_entries("c")
    assert entries is not None

    forked = await store.fork("c", at=2, new_conversation_id="f")
    forked.messages += talk("x", "y")
    await store.save(forked)

    assert read((await load(store, "c")).messages) == list("abcd")
    assert read((await load(store, "f")).messages) == ["a", "b", "x", "y"]
    records = {record.conversation_id: record for record in await store.list_conversations()}
    assert (records["f"].forked_from, records["f"].forked_at) == ("c", entries[1].id)
    shared = await store.load_entries("f")
    assert shared is not None
    assert shared[:2] == entries[:2]


async def test_a_fork_of_all_has_the_usage_and_one_of_a_part_has_none(store: ConversationStore) -> None:
    saved = await save(store, "c", "a", "b")
    saved.usage = RunUsage(requests=1, input_tokens=10)
    await store.save(saved)

    assert (await store.fork("c", new_conversation_id="whole")).usage == saved.usage
    assert (await store.fork("c", at=1, new_conversation_id="part")).usage == RunUsage()
    assert (await store.fork("c", at=0, new_conversation_id="none")).messages == []
    assert (await load(store, "whole")).usage == saved.usage
    assert (await load(store, "none")).messages == []


async def test_a_fork_does_not_replace_a_conversation(store: ConversationStore) -> None:
    await save(store, "c", "a", "b")
    await save(store, "d", "x")

    with pytest.raises(ConversationConflict):
        await store.fork("c", new_conversation_id="d")

    assert read((await load(store, "d")).messages) == ["x"]


async def test_a_fork_of_a_fork_and_of_a_left_branch(store: ConversationStore) -> None:
    saved = await save(store, "c", "a", "b", "c", "d")
    entries = await store.load_entries("c")
    assert entries is not None
    await store.branch("c", at=1, expected_revision=saved.revision)

    await store.fork("c", from_entry=entries[2].id, new_conversation_id="f")
    second = await store.fork("f", at=2, new_conversation_id="g")

    assert read((await load(store, "f")).messages) == ["a", "b", "c"]
    assert read(second.messages) == ["a", "b"]


async def test_a_fork_survives_that_its_source_is_deleted(store: ConversationStore) -> None:
    await save(store, "c", "a", "b", "c", "d")
    await store.fork("c", at=2, new_conversation_id="f")

    await store.delete("c")

    assert await store.load("c") is None
    loaded = await load(store, "f")
    loaded.messages += talk("x")
    await store.save(loaded)
    assert read((await load(store, "f")).messages) == ["a", "b", "x"]


async def test_a_deleted_conversation_cannot_be_saved_and_its_id_is_free(store: ConversationStore) -> None:
    old = await save(store, "c", "a", "b")
    entries = await store.load_entries("c")
    assert entries is not None
    await store.delete("c")

    old.messages += talk("late")
    with pytest.raises(ConversationConflict):
        await store.save(old)
    with pytest.raises(LookupError):
        await store.read_entry(entries[0].id)
    await save(store, "c", "x")

    assert read((await load(store, "c")).messages) == ["x"]
    with pytest.raises(ConversationConflict):
        await store.save(old)


async def test_a_record_that_changed_is_not_deleted(store: ConversationStore) -> None:
    await save(store, "c", "a")

    with pytest.raises(ConversationConflict):
        await store.delete_record("c", expected_revision="other")
    with pytest.raises(ConversationConflict):
        await store.delete_record("none", expected_revision="other")

    assert read((await load(store, "c")).messages) == ["a"]


async def test_scopes_keep_conversations_apart(store: ConversationStore) -> None:
    saved = await save(store, "c", "a", scope="ann")
    await save(store, "d", "b", scope="bob")
    await save(store, "e", "c")

    assert await store.load("c", scope="bob") is None
    assert [record.conversation_id for record in await store.list_conversations(scope="ann")] == ["c"]
    assert len(await store.list_conversations()) == 3
    with pytest.raises(ConversationConflict):
        await store.save(saved, scope="bob")
    with pytest.raises(UserError):
        await store.fork("c", source_scope="bob")
    await store.delete("c", scope="bob")
    assert (await load(store, "c", scope="ann")).messages == saved.messages
    assert (await store.fork("c", new_conversation_id="f")).conversation_id == "f"
    assert (await load(store, "f", scope="ann")).messages == saved.messages


async def test_the_latest_conversation_is_listed_first(store: ConversationStore) -> None:
    for id in ("a", "b", "c"):
        await save(store, id, "x")
    again = await load(store, "a")
    await store.save(again)

    listed = await store.list_conversations()

    assert [record.conversation_id for record in listed] == ["a", "c", "b"]
    assert await store.list_conversations(limit=2) == listed[:2]
    assert await store.list_conversations(limit=0) == []


async def test_an_unknown_head_is_a_conflict(store: ConversationStore) -> None:
    await save(store, "c", "a")
    (record,) = await store.list_conversations()

    for id, revision in (("new", None), ("c", record.revision)):
        with pytest.raises(ConversationConflict):
            await store.write_record(
                ConversationRecord(conversation_id=id, head_id="nowhere"), expected_revision=revision
            )

    assert await store.load("new") is None


async def test_what_the_caller_changes_later_is_not_stored(store: ConversationStore) -> None:
    saved = await save(store, "c", "a", "b")
    loaded = await load(store, "c")
    saved.messages[0].parts[0].content = "changed"  # type: ignore[union-attr,misc]
    loaded.messages[0].parts[0].content = "changed"  # type: ignore[union-attr,misc]

    assert read((await load(store, "c")).messages) == ["a", "b"]


async def test_entries_are_read_one_by_one(store: ConversationStore) -> None:
    await save(store, "c", "a", "b")
    entries = await store.load_entries("c")
    assert entries is not None

    assert [await store.read_entry(entry.id) for entry in entries] == entries
    assert await store.read_history(entries[1].id, limit=1) == entries[1:]
    assert await store.read_history(None) == []


RICH: list[ModelMessage] = ModelMessagesTypeAdapter.validate_json(
    (Path(__file__).parent / "pydantic_ai_messages.json").read_bytes()
)
"""A conversation with every kind of part that a run may have."""


async def test_every_kind_of_part_comes_back_equal(store: ConversationStore) -> None:
    await store.save(Conversation(conversation_id="c", messages=RICH))

    loaded = await load(store, "c")

    assert loaded.messages == RICH
    assert dump(loaded.messages) == dump(RICH)


async def test_deferred_requests_wait_until_the_conversation_continues(store: ConversationStore) -> None:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        results = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if results:
            return ModelResponse(parts=[TextPart(", ".join(str(part.content) for part in results))])
        return ModelResponse(parts=[ToolCallPart("remove", {"path": path}, f"c-{path}") for path in ("x", "y")])

    agent = Agent(FunctionModel(answer), output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def remove(path: str) -> str:
        return f"removed {path}"

    await store.save(await agent.run("Clean up", conversation=Conversation(conversation_id="c")))

    waiting = await load(store, "c")
    assert waiting.deferred_tool_requests is not None
    assert [call.tool_call_id for call in waiting.deferred_tool_requests.approvals] == ["c-x", "c-y"]
    approvals = waiting.deferred_tool_requests.build_results(approve_all=True)
    result = await agent.run(conversation=waiting, deferred_tool_results=approvals)
    await store.save(result)
    done = await load(store, "c")
    assert result.output == "removed x, removed y"
    assert done.deferred_tool_requests is None
    assert done.messages == result.all_messages()


async def answer_with_tools(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call two tools at once, then answer with their results."""
    parts = messages[-1].parts
    results = [part for part in parts if isinstance(part, ToolReturnPart)]
    if results:
        return ModelResponse(parts=[TextPart(" and ".join(part.model_response_str() for part in results))])
    made = [ToolCallPart("measure", {"what": what}, f"call-{len(messages)}-{what}") for what in ("rain", "wind")]
    return ModelResponse(parts=[TextPart("Let me look."), *made])


def build_agent() -> Agent[None, str]:
    agent = Agent(FunctionModel(answer_with_tools), instructions="Be brief.")

    @agent.tool_plain
    def measure(what: str) -> Any:
        return {"of": what, "level": 3} if what == "rain" else f"{what} 5"

    return agent


async def test_an_agent_with_several_tool_results_in_one_request_continues(store: ConversationStore) -> None:
    agent = build_agent()
    history: list[ModelMessage] = []
    for prompt in ("Weather?", "And now?"):
        conversation = await store.load("c") or Conversation(conversation_id="c")
        assert conversation.messages == history
        result = await agent.run(prompt, conversation=conversation)
        await store.save(result)
        history = result.all_messages()

    loaded = await load(store, "c")
    assert loaded.messages == history
    assert len(history) == 8
    assert len(history[2].parts) == 2
    assert loaded.usage.requests == 4
    assert loaded.usage.tool_calls == 4


async def test_a_retry_is_stored_and_sent_again(store: ConversationStore) -> None:
    agent = Agent(FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart(f"try {len(messages)}")])))

    @agent.output_validator
    def check(text: str) -> str:
        if text == "try 1":
            raise ModelRetry("Try again")
        return text

    result = await agent.run("Go", conversation=Conversation(conversation_id="c"))
    await store.save(result)

    loaded = await load(store, "c")
    assert loaded.messages == result.all_messages()
    assert (await agent.run("More", conversation=loaded)).output == "try 5"


async def test_a_run_that_was_aborted_can_be_resumed(store: ConversationStore) -> None:
    started = asyncio.Event()
    is_slow = True
    agent = Agent(FunctionModel(answer_with_tools))

    @agent.tool_plain
    async def measure(what: str) -> str:
        if is_slow and what == "wind":
            started.set()
            await asyncio.Event().wait()
        return f"{what} 5"

    conversation = Conversation(conversation_id="c")
    with capture_run_messages() as messages:
        run = asyncio.create_task(agent.run("Weather?", conversation=conversation))
        await started.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    conversation.messages = list(messages)
    await store.save(conversation)

    loaded = await load(store, "c")
    assert loaded.messages == messages
    is_slow = False
    result = await agent.run("Go on", conversation=loaded)
    await store.save(result)
    resumed = await load(store, "c")
    assert resumed.messages[:3] == messages
    assert resumed.messages[3:] == result.new_messages()
    assert result.output


@pytest.mark.parametrize("model", [OpenAIChatModel, OpenAIResponsesModel])
async def test_an_agent_continues_with_a_real_client_over_http(store: ConversationStore, model: Any) -> None:
    tool = calls(("c1", "measure", {"what": "rain"}), ("c2", "measure", {"what": "wind"}))
    with FakeServer([tool, "Rain and wind.", "Still."]) as server:
        agent = Agent(model("scripted", provider=OpenAIProvider(base_url=server.url, api_key="none")))
        agent.tool_plain(lambda what: f"{what} 5", name="measure")
        for prompt in ("Weather?", "And now?"):
            conversation = await store.load("c") or Conversation(conversation_id="c")
            async with agent.run_stream_events(prompt, conversation=conversation) as events:
                *_, last = [event async for event in events]
            assert isinstance(last, AgentRunResultEvent)
            await store.save(last.result)

    loaded = await load(store, "c")
    assert dump(loaded.messages) == dump(last.result.all_messages())
    assert len(loaded.messages) == 6
    sent = json.dumps(server.requests[-1])
    assert all(text in sent for text in ("rain 5", "wind 5", "Rain and wind.", "And now?"))


# Only ours


async def test_a_conversation_is_a_session_that_all_commands_read(folder: Path) -> None:
    store = TreeConversationStore(folder)
    await store.save(await build_agent().run("Weather?", conversation=Conversation(conversation_id="trip")))

    (summary,) = st.sessions(dir=folder)
    session = st.open(summary.file)

    assert summary.name == "trip"
    assert summary.first_message == "Weather?"
    roles = [entry.role for entry in session.tree.path(session.head.leaf) if entry.type == "message"]
    assert roles == ["user", "assistant", "toolResult", "toolResult", "assistant"]
    assert len(st.search("wind", dir=folder)) > 0
    assert "Let me look." in session.export("md").content.decode()
    assert session.problems == []


async def test_branches_of_a_conversation_can_be_compared_by_cost(folder: Path) -> None:
    store = TreeConversationStore(folder)
    cheap = ModelResponse(parts=[TextPart("x")], usage=RequestUsage(input_tokens=1000, output_tokens=10))
    dear = ModelResponse(parts=[TextPart("y")], usage=RequestUsage(input_tokens=1000, output_tokens=10_000))
    for answer in (cheap, dear):
        answer.model_name, answer.provider_name = "gpt-4o", "openai"
    saved = Conversation(conversation_id="c", messages=[ask("q"), cheap])
    await store.save(saved)
    branched = await store.branch("c", at=1, expected_revision=saved.revision)
    branched.messages.append(dear)
    await store.save(branched)

    session = st.open(st.sessions(dir=folder)[0].file)
    compared = st.compare(session, [session.unnamed_leaves[0].leaf, "main"])

    assert [round(stats.cost, 4) for stats in compared.branches] == [0.0026, 0.1025]
    assert compared.winner != "main"


async def test_what_another_program_appended_is_part_of_the_conversation(folder: Path) -> None:
    store = TreeConversationStore(folder)
    old = await save(store, "c", "a", "b")
    session = st.open(st.sessions(dir=folder)[0].file)
    session.append(st.user("from the app"))

    loaded = await load(store, "c")
    assert read(loaded.messages) == ["a", "b", "from the app"]
    old.messages += talk("late")
    with pytest.raises(ConversationConflict):
        await store.save(old)
    loaded.messages.append(say("answer"))
    await store.save(loaded)

    session.refresh()
    assert [message["role"] for message in session.context().messages] == ["user", "assistant", "user", "assistant"]


async def test_a_move_of_another_program_moves_the_conversation(folder: Path) -> None:
    store = TreeConversationStore(folder)
    await save(store, "c", "a", "b", "c", "d", scope="ann")
    session = st.open(st.sessions(dir=folder)[0].file)
    entries = await store.load_entries("c")
    assert entries is not None

    session.navigate_sync(entries[1].id)

    loaded = await load(store, "c", scope="ann")
    assert read(loaded.messages) == ["a", "b"]
    (record,) = await store.list_conversations()
    assert record.branches == [entries[-1].id]
    loaded.messages += talk("x")
    await store.save(loaded)
    assert read((await load(store, "c")).messages) == ["a", "b", "x"]
    assert session.refresh()
    session.undo()
    assert read((await load(store, "c")).messages) == ["a", "b", "c", "d"]


async def test_a_session_of_another_program_is_continued_as_a_conversation(folder: Path) -> None:
    session = st.create("notes", dir=folder)
    session.extend([st.user("a"), st.assistant([st.tool_call("c1", "look", {})]), st.tool_result("c1", "look", "b")])
    store = TreeConversationStore(folder)
    assert await store.list_conversations() == []

    loaded = await load(store, "notes")
    assert [message.kind for message in loaded.messages] == ["request", "response", "request"]
    loaded.messages.append(say("c"))
    await store.save(loaded)

    assert [record.conversation_id for record in await store.list_conversations()] == ["notes"]
    assert session.refresh()
    assert session.context().messages[-1]["content"][0]["text"] == "c"


async def test_a_compaction_shortens_what_the_conversation_loads(folder: Path) -> None:
    store = TreeConversationStore(folder)
    await save(store, "c", "a", "b", "c", "d")
    session = st.open(st.sessions(dir=folder)[0].file)
    entries = await store.load_entries("c")
    assert entries is not None
    session.append(st.Compaction(summary="a and b", first_kept=entries[2].id))

    loaded = await load(store, "c")

    assert len(loaded.messages) == 3
    assert "a and b" in str(loaded.messages[0])


async def test_an_id_that_is_part_of_another_id_or_an_alias_is_only_a_name(folder: Path) -> None:
    store = TreeConversationStore(folder)
    await save(store, "c", "a")
    id = st.sessions(dir=folder)[0].id

    for name in ("@", id, id[:8], "../c", "main", "c.jsonl", str(folder)):
        assert await store.load(name) is None
        await save(store, name, "x")
        assert read((await load(store, name)).messages) == ["x"]
    assert read((await load(store, "c")).messages) == ["a"]


@pytest.mark.parametrize("id", ["", " c", "a\nb"])
async def test_an_id_that_is_no_name_is_refused(folder: Path, id: str) -> None:
    store = TreeConversationStore(folder)

    with pytest.raises(UserError, match="cannot be the name of a session"):
        await save(store, id, "a")

    assert not folder.exists()


async def test_rubbish_is_refused_and_nothing_is_written(folder: Path) -> None:
    store = TreeConversationStore(folder)
    saved = await save(store, "c", "a")
    file = Path(st.sessions(dir=folder)[0].file)
    before = file.read_bytes()

    for message in ("text", {"kind": "request"}, None, ModelRequest(parts=[ToolReturnPart("t", object(), "c1")])):
        saved.messages.append(message)  # type: ignore[arg-type]
        with pytest.raises(UserError):
            await store.save(saved)
        saved.messages.pop()

    assert file.read_bytes() == before
    await store.save(saved)


async def test_a_record_that_another_program_damaged_is_ignored(folder: Path) -> None:
    store = TreeConversationStore(folder)
    await save(store, "c", "a", "b")
    session = st.open(st.sessions(dir=folder)[0].file)
    session.append(st.Custom(custom_type="pydantic-ai.conversation", data={"conversation_id": "c", "usage": "lots"}))

    assert read((await load(store, "c")).messages) == ["a", "b"]


async def test_two_sessions_with_one_name_are_reported(folder: Path) -> None:
    await save(TreeConversationStore(folder), "c", "a")
    session = st.create(dir=folder)
    session.rename("c")

    with pytest.raises(st.Ambiguous):
        await TreeConversationStore(folder).load("c")


async def test_a_tool_result_of_50_megabytes_is_stored_and_does_not_block_the_event_loop(folder: Path) -> None:
    store = TreeConversationStore(folder)
    image = BinaryImage(b"\x89PNG" + bytes(1000), media_type="image/png")
    call = ModelResponse(parts=[ToolCallPart("read", {}, "c1")])
    result = ModelRequest(parts=[ToolReturnPart("read", "x" * 50_000_000, "c1"), UserPromptPart(["look", image])])
    conversation = Conversation(conversation_id="c", messages=[ask("a"), call, result])

    waits = 0
    saving = asyncio.create_task(store.save(conversation))
    while not saving.done():
        await asyncio.sleep(0.005)
        waits += 1
    await saving

    assert waits > 2
    assert (await load(store, "c")).messages == conversation.messages
    size = Path(st.sessions(dir=folder)[0].file).stat().st_size
    assert size < 50_100_000


async def test_a_conversation_in_the_trash_comes_back_when_it_is_restored(folder: Path) -> None:
    store = TreeConversationStore()
    await save(store, "c", "a", "b")
    id = st.sessions(all=True)[0].id
    await store.delete("c")
    assert await store.load("c") is None

    restore(id)

    assert read((await load(store, "c")).messages) == ["a", "b"]


async def test_a_database_holds_conversations_too(database: str) -> None:
    store = TreeConversationStore(database)
    saved = await save(store, "c", "a", "b")
    await store.fork("c", at=1, new_conversation_id="f")
    late = await load(store, "c")
    saved.messages += talk("x")
    await store.save(saved)

    late.messages += talk("late")
    with pytest.raises(ConversationConflict):
        await store.save(late)
    assert read((await load(TreeConversationStore(database), "c")).messages) == ["a", "b", "x"]
    await store.delete("c")
    assert [record.conversation_id for record in await store.list_conversations()] == ["f"]


WRITER = """
import asyncio, sys
from pydantic_ai import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.messages import ModelRequest, UserPromptPart
from sessiontree.adapters.pydantic_ai import TreeConversationStore

async def main(folder, name, count):
    store = TreeConversationStore(folder)
    for number in range(count):
        while True:
            conversation = await store.load("shared") or Conversation(conversation_id="shared")
            conversation.messages.append(ModelRequest(parts=[UserPromptPart(f"{name}{number}")]))
            try:
                await store.save(conversation)
                break
            except ConversationConflict:
                pass

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def test_processes_that_save_one_conversation_lose_nothing(folder: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(folder), name, "8"]) for name in "abc"]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]

    loaded = await load(TreeConversationStore(folder), "shared")

    assert sorted(read(loaded.messages)) == sorted(f"{name}{number}" for name in "abc" for number in range(8))
    assert len(st.sessions(dir=folder)) == 1
