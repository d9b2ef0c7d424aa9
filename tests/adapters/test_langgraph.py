"""The checkpoint saver of LangGraph, with LangGraph's own conformance suite and real graphs."""

import asyncio
import base64
import datetime
import operator
import subprocess
import sys
import uuid
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypedDict

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

import sessiontree as st
from sessiontree.adapters import langgraph_values
from sessiontree.adapters.langgraph import TreeSaver
from sessiontree.adapters.langgraph_checkpoints import CHECKPOINT
from tests.test_docs import DOCS, read_blocks

CONFIG: Any = {"configurable": {"thread_id": "thread"}}


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    count: Annotated[int, operator.add]
    note: str


@pytest.fixture
def saver(tmp_path: Path) -> TreeSaver:
    return TreeSaver(tmp_path / "sessions")


def answer(state: Chat) -> Chat:
    text = f"answer to {state['messages'][-1].text}"
    usage: Any = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    return {"messages": [AIMessage(text, usage_metadata=usage)], "count": 1}


def build_chat(saver: Any, node: Any = answer) -> Any:
    graph = StateGraph(Chat)
    graph.add_node("model", node)
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    return graph.compile(checkpointer=saver)


def ask(graph: Any, text: str, config: Any = CONFIG) -> Any:
    return graph.invoke({"messages": [HumanMessage(text)]}, config)


def open_tree(saver: TreeSaver) -> st.Session:
    [stored] = saver._pool.repository.list_stored()
    return st.open(stored.location)


def put(saver: Any, values: dict[str, Any], config: Any = None, **metadata: Any) -> Any:
    """Put a checkpoint in which all values are new."""
    checkpoint = empty_checkpoint() | {"channel_values": values, "channel_versions": dict.fromkeys(values, 1)}
    base: Any = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}} if config is None else config
    return saver.put(base, checkpoint, metadata, dict.fromkeys(values, 1))


# The conformance suite of LangGraph


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @checkpointer_test(name="TreeSaver")
    async def create() -> AsyncIterator[TreeSaver]:
        saver = TreeSaver(tmp_path_factory.mktemp("sessions"))
        yield saver
        saver.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SESSIONTREE_HOME", str(tmp_path_factory.mktemp("home")))
        return asyncio.run(validate(create))


@pytest.mark.parametrize("capability", sorted(ALL_CAPABILITIES))
def test_the_conformance_suite_passes_for_every_capability(capability: Any, report: Any) -> None:
    result = report.results[capability.value]

    assert result.detected
    assert result.failures == []
    assert result.tests_skipped == 0
    assert result.tests_passed >= 5


# The tree


def test_messages_of_the_state_are_messages_of_the_session(saver: TreeSaver) -> None:
    graph = build_chat(saver)
    ask(graph, "one")
    state = ask(graph, "two")

    session = open_tree(saver)
    assert session.name == "thread"
    assert session.problems == []
    assert [(entry.role, entry.text) for entry in session.head.path() if entry.role] == [
        ("user", "one"),
        ("assistant", "answer to one"),
        ("user", "two"),
        ("assistant", "answer to two"),
    ]
    assert [message.text for message in state["messages"]] == [
        entry.text for entry in session.head.path() if entry.role
    ]
    assert sum(entry.usage.total for entry in session.head.path() if entry.usage) == 20


def test_sessions_are_found_by_the_id_of_the_thread_and_searched() -> None:
    ask(build_chat(TreeSaver()), "find the marmot")

    session = st.open("thread")

    assert {hit.session for hit in st.search("marmot", all=True)} == {session.id}
    assert b"answer to find the marmot" in session.export("html").content


def test_time_travel_appears_as_a_branch(saver: TreeSaver) -> None:
    graph = build_chat(saver)
    ask(graph, "one")
    first = graph.get_state(CONFIG).config
    ask(graph, "two")

    ask(graph, "another two", first)

    session = open_tree(saver)
    assert [(branch.name, branch.current) for branch in session.branches] == [("main", False), ("fork-1", True)]
    assert [entry.text for entry in session.branch("main").path() if entry.role] == [
        "one", "answer to one", "two", "answer to two",
    ]  # fmt: skip
    assert [entry.text for entry in session.head.path() if entry.role] == [
        "one", "answer to one", "another two", "answer to another two",
    ]  # fmt: skip
    assert [message.text for message in graph.get_state(CONFIG).values["messages"]][-1] == "answer to another two"
    comparison = st.compare(session, ["main", "fork-1"])
    assert [stats.tokens for stats in comparison.branches] == [10, 10]


def test_a_state_that_the_user_changes_at_an_earlier_checkpoint_is_a_branch(saver: TreeSaver) -> None:
    graph = build_chat(saver)
    ask(graph, "one")
    [*_, start] = graph.get_state_history(CONFIG)
    graph.update_state(start.config, {"messages": [HumanMessage("changed")]}, as_node="__start__")

    graph.invoke(None, CONFIG)

    session = open_tree(saver)
    assert [branch.name for branch in session.branches] == ["main", "fork-1"]
    assert [entry.text for entry in session.head.path() if entry.role][-1] == "answer to changed"


def test_a_subgraph_is_a_branch_that_does_not_become_current(saver: TreeSaver) -> None:
    inner = build_chat(True)
    graph = build_chat(saver, inner)
    ask(graph, "one")
    ask(graph, "two")

    session = open_tree(saver)
    assert [branch.name for branch in session.branches if branch.current] == ["main"]
    assert [branch.name for branch in session.branches][:2] == ["main", "model-1"]
    written = [entry.text for entry in session.tree.entries if entry.role == "user"]
    assert sorted(set(written)) == ["one", "two"]
    assert len(written) <= 4  # a subgraph has the messages of the graph without copying all of them
    memory = build_chat(InMemorySaver(), build_chat(True))
    ask(memory, "one")
    assert [m.text for m in ask(memory, "two")["messages"]] == [
        m.text for m in graph.get_state(CONFIG).values["messages"]
    ]


def test_a_removed_message_leaves_the_context(saver: TreeSaver) -> None:
    def forget(state: Chat) -> Chat:
        return {"messages": [RemoveMessage(message.id) for message in state["messages"][:-1]]}

    ask(build_chat(saver), "one")
    ask(build_chat(saver, forget), "two")

    session = open_tree(saver)
    assert [message["role"] for message in session.head.context().messages] == ["user"]
    assert [message.text for message in saver.get_tuple(CONFIG).checkpoint["channel_values"]["messages"]] == ["two"]
    assert "answer to one" in [entry.text for entry in session.head.path()]


def test_a_message_that_moves_in_its_list_is_not_written_again(saver: TreeSaver) -> None:
    messages = [HumanMessage(str(number), id=str(number)) for number in range(6)]
    first = put(saver, {"messages": messages, "kept": messages[:2]})
    moved = [messages[0], messages[3], messages[2], messages[5]]
    last = put(saver, {"messages": moved, "kept": [messages[4], messages[1]]}, first)

    assert saver.get_tuple(last).checkpoint["channel_values"] == {"messages": moved, "kept": [messages[4], messages[1]]}
    assert len([entry for entry in open_tree(saver).tree.entries if entry.role]) == 6


def test_messages_that_the_app_appends_stay_and_the_graph_continues_on_another_branch(saver: TreeSaver) -> None:
    graph = build_chat(saver)
    ask(graph, "one")
    with open_tree(saver) as session:
        session.append(st.user("from the app"))

    ask(graph, "two")

    session = open_tree(saver)
    assert [entry.text for entry in session.branch("main").path() if entry.role][-1] == "from the app"
    assert [entry.text for entry in session.branch("fork-1").path() if entry.role][-1] == "answer to two"


def test_the_examples_of_the_page_do_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    # They are no `python` blocks, since langgraph.graph has no types for pyright.
    blocks = read_blocks(DOCS / "adapters" / "langgraph.md")
    code = "\n".join(block.text for block in blocks if block.language == "py")

    exec(compile(code, "langgraph.md", "exec", dont_inherit=True), {"__name__": "example"})

    shown = "\n".join(block.text for block in blocks if block.language == "text")
    assert capsys.readouterr().out.rstrip() == shown


# Values


@dataclass
class Note:
    text: str


VALUES = {
    "text": "text",
    "number": 2**60,
    "not a number": float("inf"),
    "none": None,
    "bytes": b"\0\xff",
    "date": datetime.datetime(2026, 11, 18, tzinfo=datetime.UTC),
    "uuid": uuid.UUID(int=5),
    "set": {1, 2},
    "keys": {1: "a", "b": [1.5, True, None]},
    "list": [1, "a", {"b": [2]}, b"c", datetime.date(2026, 1, 1)],
    "messages": [
        SystemMessage("be brief"),
        HumanMessage([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}]),
        AIMessage(
            [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "reading"}],
            tool_calls=[{"name": "read", "args": {"path": "a"}, "id": "call_1"}],
            response_metadata={"model_name": "m", "model_provider": "p", "stop_reason": "tool_use"},
            additional_kwargs={"x": {"y": "z" * 100}},
        ),
        ToolMessage("r" * 1000, tool_call_id="call_1", artifact={"$shared": [0, "content"]}, status="error"),
        AIMessageChunk("chunk", id="run-1"),
        AIMessage("with an object", additional_kwargs={"when": datetime.date(2026, 1, 1)}),
        RemoveMessage(id="5"),
    ],
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_equal_when_another_process_reads_it(name: str, saver: TreeSaver) -> None:
    config = put(saver, {"value": VALUES[name]})

    values = TreeSaver(saver._pool.repository).get_tuple(config).checkpoint["channel_values"]

    assert values == {"value": VALUES[name]}
    if name == "messages":
        assert [type(message) for message in values["value"]] == [type(message) for message in VALUES[name]]


def test_messages_are_readable_in_the_tree(saver: TreeSaver) -> None:
    put(saver, {"messages": VALUES["messages"]})

    views = [entry.message for entry in open_tree(saver).head.path() if entry.message]
    assert [view.role for view in views] == ["system", "user", "assistant", "toolResult", "assistant"]
    assert views[2].tool_calls[0].arguments == {"path": "a"}
    assert (views[2].provider, views[2].model) == ("p", "m")
    assert (views[3].tool_name, views[3].is_error) == ("read", True)


def test_another_process_continues_without_writing_old_messages_again(saver: TreeSaver) -> None:
    ask(build_chat(saver), "one")
    other = TreeSaver(saver._pool.repository)

    ask(build_chat(other), "two")

    assert len([entry for entry in open_tree(saver).tree.entries if entry.role]) == 4
    assert [branch.name for branch in open_tree(saver).branches] == ["main"]


def test_a_session_grows_with_what_is_new(saver: TreeSaver) -> None:
    graph, sizes = build_chat(saver), [0]
    for number in range(60):
        ask(graph, f"{number} {'x' * 500}")
        sizes.append(open_tree(saver).file.stat().st_size)

    grown = [after - before for before, after in pairwise(sizes)]
    assert max(grown[2:]) < 1.3 * min(grown[2:])


def test_a_value_that_does_not_change_is_stored_once(saver: TreeSaver) -> None:
    graph = build_chat(saver)
    graph.invoke({"messages": [HumanMessage("one")], "note": "n" * 50_000}, CONFIG)
    before = open_tree(saver).file.stat().st_size
    for _ in range(3):
        ask(graph, "more")

    assert open_tree(saver).file.stat().st_size - before < 20_000
    assert graph.get_state(CONFIG).values["note"] == "n" * 50_000


def test_the_history_is_the_same_as_that_of_the_saver_in_memory(saver: TreeSaver) -> None:
    histories = []
    for checkpointer in (saver, InMemorySaver()):
        graph = build_chat(checkpointer)
        ask(graph, "one")
        first = graph.get_state(CONFIG).config
        ask(graph, "two")
        ask(graph, "three", first)
        graph.update_state(CONFIG, {"count": 5})
        history = [
            ([m.text for m in state.values.get("messages", [])], state.values.get("count"), state.next, state.metadata)
            for state in graph.get_state_history(CONFIG)
        ]
        histories.append([(texts, count, next, data["source"], data["step"]) for texts, count, next, data in history])

    assert histories[0] == histories[1]


def test_an_interrupted_run_is_resumed_in_another_process(saver: TreeSaver) -> None:
    def confirm(state: Chat) -> Chat:
        return {"note": interrupt("sure?")}

    ask(build_chat(saver, confirm), "one")
    graph = build_chat(TreeSaver(saver._pool.repository), confirm)

    assert [each.value for each in graph.get_state(CONFIG).interrupts] == ["sure?"]
    assert graph.invoke(Command(resume="yes"), CONFIG)["note"] == "yes"


def test_writes_of_a_failed_step_are_kept_for_the_next_attempt(saver: TreeSaver) -> None:
    attempts: list[str] = []

    def build() -> Any:
        def good(state: Chat) -> Chat:
            attempts.append("good")
            return {"count": 1}

        def bad(state: Chat) -> Chat:
            attempts.append("bad")
            if attempts.count("bad") == 1:
                raise ValueError("broken")
            return {"count": 10}

        graph = StateGraph(Chat)
        for name, node in (("good", good), ("bad", bad)):
            graph.add_node(name, node)
            graph.add_edge(START, name)
        return graph.compile(checkpointer=TreeSaver(saver._pool.repository))

    with pytest.raises(ValueError, match="broken"):
        ask(build(), "one")

    assert build().invoke(None, CONFIG)["count"] == 11
    assert attempts.count("good") == 1


def test_delta_channels_survive_pruning(saver: TreeSaver) -> None:
    class State(TypedDict):
        items: Annotated[list[Any], DeltaChannel(lambda value, writes: value + [w for write in writes for w in write])]

    graph = StateGraph(State)
    graph.add_node("step", lambda state: {"items": [len(state["items"])]})
    graph.add_edge(START, "step")
    compiled = graph.compile(checkpointer=saver)
    for _ in range(3):
        state = compiled.invoke({"items": ["in"]}, CONFIG)

    saver.prune(["thread"])

    assert state["items"] == ["in", 1, "in", 3, "in", 5]
    assert compiled.get_state(CONFIG).values["items"] == state["items"]
    assert len(list(compiled.get_state_history(CONFIG))) == 1


def test_all_threads_are_listed_with_their_ids(saver: TreeSaver) -> None:
    for thread in ("a", "b"):
        put(saver, {}, {"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    saver.copy_thread("a", "c")

    assert {found.config["configurable"]["thread_id"] for found in saver.list(None)} == {"a", "b", "c"}
    assert {session.name for session in st.sessions(dir=saver._pool.repository.location)} == {"a", "b", "c"}


def test_a_thread_is_not_copied_over_another(saver: TreeSaver) -> None:
    for thread in ("a", "b"):
        put(saver, {}, {"configurable": {"thread_id": thread, "checkpoint_ns": ""}})

    with pytest.raises(st.InvalidOperation, match="'b' exists already"):
        saver.copy_thread("a", "b")


def test_a_deleted_thread_is_in_the_trash(saver: TreeSaver) -> None:
    ask(build_chat(saver), "one")
    saver.delete_thread("thread")

    assert saver.get_tuple(CONFIG) is None
    assert [summary.first_message for summary in saver._pool.repository.list_trash()] == ["one"]


def test_a_thread_that_another_process_deletes_is_gone(saver: TreeSaver) -> None:
    ask(build_chat(saver), "one")
    TreeSaver(saver._pool.repository).delete_thread("thread")

    assert saver.get_tuple(CONFIG) is None
    assert [message.text for message in ask(build_chat(saver), "again")["messages"]] == ["again", "answer to again"]


# Safety


def build_record(value: Any) -> Any:
    """Return the data of a checkpoint entry with one channel, as it is stored."""
    return {"ns": "", "id": "2", "checkpoint": {"json": {}}, "metadata": {"json": {}}, "values": {"value": value}}


def append_record(saver: TreeSaver, data: Any) -> Any:
    """Append an entry as another program could, and return the config for its checkpoint."""
    with open_tree(saver) as session:
        session.append(st.Custom(custom_type=CHECKPOINT, data=data))
    return {"configurable": {"thread_id": "thread", "checkpoint_ns": "", "checkpoint_id": "2"}}


def build_attack(folder: Path) -> bytes:
    """Return bytes that create a folder if a serializer without limits reads them."""
    return ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(("os", "mkdir", str(folder)))))


def test_a_session_cannot_run_code_when_it_is_read(saver: TreeSaver, tmp_path: Path) -> None:
    put(saver, {})
    config = append_record(saver, build_record(saver._codec.encode_bytes("msgpack", build_attack(tmp_path / "a"))))

    assert saver.get_tuple(config).checkpoint["channel_values"] == {"value": str(tmp_path / "a")}

    assert not (tmp_path / "a").exists()
    JsonPlusSerializer(allowed_msgpack_modules=True).loads_typed(("msgpack", build_attack(tmp_path / "a")))
    assert (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", ["pickle", "json", "other"])
def test_other_serializers_than_msgpack_are_refused(kind: str, saver: TreeSaver) -> None:
    put(saver, {})
    config = append_record(saver, build_record(saver._codec.encode_bytes(kind, b"{}")))

    with pytest.raises(st.FormatError, match=f"the type '{kind}' is not allowed"):
        saver.get_tuple(config)


def test_a_type_of_the_program_is_rebuilt_only_if_it_is_allowed(saver: TreeSaver) -> None:
    config = put(saver, {"value": Note("hi")})
    allowing = TreeSaver(saver._pool.repository, allowed_types=[Note])

    assert saver.get_tuple(config).checkpoint["channel_values"]["value"] == {"text": "hi"}
    assert allowing.get_tuple(config).checkpoint["channel_values"]["value"] == Note("hi")


@pytest.mark.parametrize("data", [None, [], {"ns": 5}, {"ns": "", "id": ["2"]}])
def test_an_entry_that_is_no_checkpoint_is_ignored(data: Any, saver: TreeSaver) -> None:
    good = put(saver, {"value": "good"})

    assert saver.get_tuple(append_record(saver, data)) is None
    assert saver.get_tuple(good).checkpoint["channel_values"] == {"value": "good"}


@pytest.mark.parametrize(
    "data",
    [
        {"ns": "", "id": "2"},
        build_record({"list": [9, 9], "items": []}),
        build_record({"list": [0, 0], "items": [{"entry": "x"}]}),
        build_record({"list": [0, 0], "items": [{"type": "msgpack", "data": "!"}]}),
        build_record({"type": "msgpack", "data": "!"}),
        build_record({"type": "msgpack", "zlib": "AAAA"}),
        build_record({"list": [0, 0], "items": [{"json": 1 << 70}]}),
        build_record(7),
        build_record(7) | {"base": ["", "2"]},
    ],
)
def test_a_damaged_checkpoint_is_an_error_and_the_others_stay_readable(data: Any, saver: TreeSaver) -> None:
    good = put(saver, {"value": "good"})
    config = append_record(saver, data)

    with pytest.raises(st.FormatError):
        saver.get_tuple(config)
    assert saver.get_tuple(good).checkpoint["channel_values"] == {"value": "good"}


def test_a_value_that_would_fill_the_memory_is_refused(saver: TreeSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    put(saver, {"value": "good"})
    monkeypatch.setattr(langgraph_values, "MAX_VALUE_BYTES", 1000)
    data = base64.b64encode(zlib.compress(bytes(2000))).decode()
    config = append_record(saver, build_record({"type": "bytes", "zlib": data}))

    with pytest.raises(st.FormatError, match="more than 1,000 bytes"):
        saver.get_tuple(config)
    with pytest.raises(st.InvalidOperation, match="the limit is 1,000"):
        put(saver, {"value": bytes(2000)})


def test_rubbish_is_refused_and_nothing_is_written(saver: TreeSaver) -> None:
    put(saver, {"value": "good"})
    size = open_tree(saver).file.stat().st_size

    with pytest.raises(TypeError, match="not msgpack serializable"):
        put(saver, {"value": "x", "other": object()})
    with pytest.raises(st.InvalidOperation, match="thread_id"):
        put(saver, {}, {"configurable": {}})
    with pytest.raises(st.InvalidOperation, match="checkpoint_id"):
        saver.put_writes(CONFIG, [("a", 1)], "task")
    with pytest.raises(st.InvalidOperation, match="no strategy"):
        saver.prune(["thread"], strategy="some")

    assert open_tree(saver).file.stat().st_size == size


def test_a_tool_result_of_50_megabytes_is_kept(saver: TreeSaver) -> None:
    message = ToolMessage("0123456789" * 5_000_000, tool_call_id="call_1")
    config = put(saver, {"messages": [message]})
    saver.put_writes(config, [("messages", [message])], "task")

    found = TreeSaver(saver._pool.repository).get_tuple(config)

    assert found.checkpoint["channel_values"]["messages"] == [message]
    assert found.pending_writes == [("task", "messages", [message])]
    assert open_tree(saver).file.stat().st_size < 52_000_000


# Many writers


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.adapters.test_langgraph import TreeSaver, ask, build_chat

graph = build_chat(TreeSaver(sys.argv[2]))
for number in range(8):
    ask(graph, f"{sys.argv[3]} {number}")
"""


def test_many_processes_write_to_one_thread(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, root, str(tmp_path), name]) for name in "abc"]
    assert [writer.wait(100) for writer in writers] == [0, 0, 0]

    saver = TreeSaver(tmp_path)
    session = open_tree(saver)
    texts = [entry.text for entry in session.tree.entries if entry.role == "user"]
    assert sorted(texts) == sorted(f"{name} {number}" for name in "abc" for number in range(8))
    assert session.problems == []
    listed = list(saver.list(CONFIG))
    assert len(listed) == 3 * 3 * 8
    for found in listed:  # every checkpoint has the messages of its own parent first
        parent = None if found.parent_config is None else saver.get_tuple(found.parent_config)
        before = [] if parent is None else parent.checkpoint["channel_values"].get("messages", [])
        assert found.checkpoint["channel_values"].get("messages", [])[: len(before)] == before


async def test_the_asynchronous_methods_run_a_graph(saver: TreeSaver) -> None:
    async def reply(state: Chat) -> Chat:
        await asyncio.sleep(0)
        return answer(state)

    graph = build_chat(saver, reply)
    threads: list[Any] = [{"configurable": {"thread_id": str(number)}} for number in range(5)]
    await asyncio.gather(*(graph.ainvoke({"messages": [HumanMessage("hi")]}, config) for config in threads))

    for config in threads:
        state = await graph.aget_state(config)
        assert [message.text for message in state.values["messages"]] == ["hi", "answer to hi"]
        assert len([each async for each in graph.aget_state_history(config)]) == 3
