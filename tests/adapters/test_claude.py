"""The session store of the Claude Agent SDK, with the SDK's own contracts, helpers and files of the real CLI."""

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk
import pytest
from claude_agent_sdk.testing import run_session_store_conformance

import sessiontree as st
from sessiontree.adapters.claude import TreeSessionStore
from sessiontree.store.lock import FileLock

FIXTURES = Path(__file__).parents[1] / "interop" / "fixtures" / "claude"
TRANSCRIPTS = sorted(FIXTURES.glob("*/projects/*/*.jsonl"))
KEY: sdk.SessionKey = {"project_key": "-project", "session_id": "5e6f0f2e-0000-4000-8000-000000000001"}
OPTIONAL = ("list_sessions", "list_session_summaries", "delete", "list_subkeys")


@pytest.fixture
def store(tmp_path: Path) -> TreeSessionStore:
    return TreeSessionStore(tmp_path / "sessions")


def read_lines(file: Path) -> list[Any]:
    """Return the records of a transcript; of a line that is there twice, the first."""
    records = {}
    for number, line in enumerate(file.read_text().splitlines()):
        record = json.loads(line)
        records.setdefault(record.get("uuid", number), record)
    return list(records.values())


def open_tree(store: TreeSessionStore) -> st.Session:
    [stored] = store._pool.repository.list_stored()
    return st.open(stored.location)


def build_user(uuid: str, text: str, parent: str | None = None, **fields: Any) -> Any:
    message = {"role": "user", "content": text}
    return {"type": "user", "uuid": uuid, "parentUuid": parent, "message": message, **fields}


def build_answer(uuid: str, content: list[Any], parent: str | None, id: str = "msg_1") -> Any:
    usage = {"input_tokens": 10, "output_tokens": 5}
    message = {"id": id, "type": "message", "role": "assistant", "model": "claude-x", "content": content}
    message |= {"usage": usage, "stop_reason": "end_turn"}
    return {"type": "assistant", "uuid": uuid, "parentUuid": parent, "message": message}


# The contracts of the SDK


async def test_all_contracts_of_the_sdk_hold(tmp_path: Path) -> None:
    folders = iter(range(100))
    stores: list[TreeSessionStore] = []

    def make_store() -> TreeSessionStore:
        stores.append(TreeSessionStore(tmp_path / str(next(folders))))
        return stores[-1]

    await run_session_store_conformance(make_store)

    assert len(stores) == 15  # one for the probe, one for each of the 14 contracts


@pytest.mark.parametrize("method", OPTIONAL)
def test_no_contract_is_skipped_because_its_method_is_missing(method: str) -> None:
    assert getattr(TreeSessionStore, method) is not getattr(sdk.SessionStore, method)


# Files of the real CLI


@pytest.mark.parametrize("file", TRANSCRIPTS, ids=lambda file: file.parents[2].name)
async def test_a_transcript_of_the_real_cli_is_returned_as_it_was(file: Path, store: TreeSessionStore) -> None:
    records = read_lines(file)

    await store.append(KEY, records)

    assert await store.load(KEY) == records
    assert await TreeSessionStore(store._pool.repository).load(KEY) == records


@pytest.mark.parametrize("file", TRANSCRIPTS, ids=lambda file: file.parents[2].name)
async def test_a_transcript_of_the_real_cli_is_the_tree_that_its_file_is(file: Path, store: TreeSessionStore) -> None:
    await store.append(KEY, read_lines(file))

    ours, theirs = open_tree(store), st.open(file)
    assert ours.problems == []
    assert ours.name == KEY["session_id"]
    assert read_talk(ours) == read_talk(theirs)


def read_talk(session: st.Session) -> list[Any]:
    return [(message["role"], message.get("content")) for message in session.head.context().messages]


@pytest.mark.parametrize("file", TRANSCRIPTS, ids=lambda file: file.parents[2].name)
async def test_records_may_come_one_by_one(file: Path, store: TreeSessionStore) -> None:
    records = read_lines(file)

    for record in records:
        await store.append(KEY, [record])

    assert await store.load(KEY) == records
    whole = TreeSessionStore(store._pool.repository.location + "-whole")
    await whole.append(KEY, records)
    assert len(open_tree(store).branches) == len(open_tree(whole).branches)


async def test_a_rewind_is_a_branch(store: TreeSessionStore) -> None:
    [file] = FIXTURES.glob("rewind/projects/*/*.jsonl")

    await store.append(KEY, read_lines(file))

    assert [(branch.name, branch.current) for branch in open_tree(store).branches] == [
        ("main", False),
        ("rewind-1", True),
    ]


async def test_a_subagent_is_a_branch_below_its_call(store: TreeSessionStore) -> None:
    [file] = FIXTURES.glob("subagent/projects/*/*.jsonl")
    [agent] = FIXTURES.glob("subagent/projects/*/*/subagents/*.jsonl")
    facts = json.loads(agent.with_suffix(".meta.json").read_text())
    sub: sdk.SessionKey = {**KEY, "subpath": f"subagents/{agent.stem}"}

    await store.append(KEY, read_lines(file))
    await store.append(sub, [{"type": "agent_metadata", **facts}, *read_lines(agent)])

    session = open_tree(store)
    branch = session.branch(agent.stem)
    point = next(entry for entry in branch.path() if entry.type == "branch_point")
    assert facts["toolUseId"] in [call.id for call in session.tree[point.parent].tool_calls]
    assert session.head.name == "main"
    assert await store.load(sub) == [{"type": "agent_metadata", **facts}, *read_lines(agent)]


# The helpers of the SDK


async def test_the_helpers_of_the_sdk_list_read_rename_tag_and_fork(
    store: TreeSessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects = tmp_path / "claude" / "projects"
    [file] = FIXTURES.glob("subagent/projects/*/*.jsonl")
    project = projects / sdk.project_key_for_directory(str(tmp_path))
    project.parent.mkdir(parents=True)
    project.symlink_to(file.parent)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(projects.parent))
    monkeypatch.chdir(tmp_path)

    await sdk.import_session_to_store(file.stem, store, directory=str(tmp_path))
    await sdk.rename_session_via_store(store, file.stem, "renamed")
    await sdk.tag_session_via_store(store, file.stem, "good")
    fork = await sdk.fork_session_via_store(store, file.stem, title="copy")

    listed = await sdk.list_sessions_from_store(store)
    assert {(info.session_id, info.summary, info.tag) for info in listed} == {
        (file.stem, "renamed", "good"),
        (fork.session_id, "copy", None),
    }
    info = await sdk.get_session_info_from_store(store, file.stem)
    assert info is not None
    assert info.custom_title == "renamed"
    messages = await sdk.get_session_messages_from_store(store, file.stem)
    local = sdk.get_session_messages(file.stem, directory=str(tmp_path))
    assert [message.uuid for message in messages] == [message.uuid for message in local]
    copied = await sdk.get_session_messages_from_store(store, fork.session_id)
    assert [message.message for message in copied] == [message.message for message in messages]
    [agent] = await sdk.list_subagents_from_store(store, file.stem)
    assert await sdk.get_subagent_messages_from_store(store, file.stem, agent)

    await sdk.delete_session_via_store(store, file.stem)
    assert [each.session_id for each in await sdk.list_sessions_from_store(store)] == [fork.session_id]


async def test_a_repeated_import_adds_nothing(store: TreeSessionStore) -> None:
    records = read_lines(TRANSCRIPTS[0])
    with_uuid = [record for record in records if "uuid" in record]
    await store.append(KEY, with_uuid)
    size = len(open_tree(store).tree)

    await store.append(KEY, with_uuid)

    assert len(open_tree(store).tree) == size


# The tree


async def test_sessions_are_found_by_the_id_of_the_sdk_and_searched(tmp_path: Path) -> None:
    store = TreeSessionStore()
    await store.append(KEY, [build_user("u", "find the marmot", cwd=str(tmp_path))])

    session = st.open(KEY["session_id"])

    assert session.cwd == str(tmp_path)
    assert [hit.session for hit in st.search("marmot", all=True)] == [session.id]
    assert b"find the marmot" in session.export("md").content


async def test_results_of_parallel_calls_are_no_branches(store: TreeSessionStore) -> None:
    calls = [{"type": "tool_use", "id": f"call_{n}", "name": "Read", "input": {}} for n in (1, 2)]
    results = [{"type": "tool_result", "tool_use_id": f"call_{n}", "content": f"file {n}"} for n in (1, 2)]
    await store.append(
        KEY,
        [
            build_user("u", "read both"),
            build_answer("a1", [calls[0]], "u"),
            build_answer("a2", [calls[1]], "a1"),
            {**build_user("r1", "", "a1"), "message": {"role": "user", "content": [results[0]]}},
        ],
    )
    await store.append(KEY, [{**build_user("r2", "", "a2"), "message": {"role": "user", "content": [results[1]]}}])
    await store.append(KEY, [build_answer("a3", [{"type": "text", "text": "done"}], "r1", id="msg_2")])

    session = open_tree(store)
    assert [branch.name for branch in session.branches] == ["main"]
    assert [entry.role for entry in session.head.path() if entry.role] == [
        "user", "assistant", "toolResult", "toolResult", "assistant",
    ]  # fmt: skip
    assert [entry.message.tool_name for entry in session.head.path() if isinstance(entry.message, st.ToolResult)] == [
        "Read",
        "Read",
    ]


async def test_the_usage_of_an_answer_in_several_batches_counts_once(store: TreeSessionStore) -> None:
    await store.append(KEY, [build_user("u", "hi"), build_answer("a1", [{"type": "text", "text": "one"}], "u")])
    await store.append(KEY, [build_answer("a2", [{"type": "text", "text": "two"}], "a1")])

    counts = [entry.usage.input + entry.usage.output for entry in open_tree(store).head.path() if entry.usage]
    assert sum(counts) == 15


async def test_a_long_text_is_stored_once(store: TreeSessionStore) -> None:
    await store.append(KEY, [build_user("u", "x" * 100_000)])

    assert open_tree(store).file.stat().st_size < 110_000


async def test_a_deleted_session_is_in_the_trash(store: TreeSessionStore) -> None:
    await store.append(KEY, [build_user("u", "hi")])
    await store.delete(KEY)
    await store.append(KEY, [build_user("u", "again")])

    assert [record["message"]["content"] for record in await store.load(KEY)] == ["again"]
    assert [summary.first_message for summary in store._pool.repository.list_trash()] == ["hi"]


async def test_messages_of_the_app_stay_and_records_continue_on_another_branch(store: TreeSessionStore) -> None:
    await store.append(KEY, [build_user("u", "hi")])
    with open_tree(store) as session:
        session.append(st.user("from the app"))

    await store.append(KEY, [build_answer("a", [{"type": "text", "text": "hello"}], "u")])

    session = open_tree(store)
    assert [branch.name for branch in session.branches] == ["main", "rewind-1"]
    assert [entry.text for entry in session.branch("main").path() if entry.role] == ["hi", "from the app"]
    assert len(await store.load(KEY)) == 2


# Bad input, and many writers


@pytest.mark.parametrize(
    "key",
    [
        {"project_key": "p", "session_id": ""},
        {"project_key": "p", "session_id": 5},
        {"project_key": "p", "session_id": "s", "subpath": ""},
        {"project_key": "p", "session_id": "s", "subpath": 7},
    ],
)
async def test_an_invalid_key_is_a_clear_error(key: Any, store: TreeSessionStore) -> None:
    with pytest.raises(st.InvalidOperation, match="text that is not empty"):
        await store.append(key, [build_user("u", "hi")])


async def test_rubbish_is_refused_as_a_whole(store: TreeSessionStore) -> None:
    await store.append(KEY, [build_user("u", "hi")])
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]

    for batch in ([build_user("v", "ok"), "not a record"], [build_user("v", "ok"), {"type": "x", "deep": deep}]):
        with pytest.raises(st.SessionTreeError):
            await store.append(KEY, batch)

    assert [record["uuid"] for record in await store.load(KEY)] == ["u"]
    await store.append(KEY, [build_user("v", "after")])
    assert len(await store.load(KEY)) == 2


@pytest.mark.parametrize(
    "record",
    [
        {"type": "user", "uuid": "x", "parentUuid": 5, "message": {"role": "user", "content": 7}},
        {"type": "assistant", "uuid": "x", "parentUuid": "x", "message": {"id": 3, "content": [None, 4]}},
        {"type": "user", "uuid": "x", "parentUuid": None, "message": {"role": "system", "content": {"$shared": [9]}}},
        {"type": "user", "uuid": "x", "isCompactSummary": True, "parentUuid": "y", "message": {"content": 5}},
        {"type": 7, "uuid": ["x"], "claudeRecords": {"summary": 3}},
    ],
)
async def test_records_of_an_unknown_form_are_kept(record: Any, store: TreeSessionStore) -> None:
    await store.append(KEY, [build_user("u", "hi"), record, build_user("v", "more", "u")])

    assert (await store.load(KEY))[1] == record
    assert open_tree(store).problems == []


async def test_a_tool_result_of_50_megabytes_is_kept(store: TreeSessionStore) -> None:
    text = "0123456789" * 5_000_000
    result = [{"type": "tool_result", "tool_use_id": "call_1", "content": text}]
    record = {**build_user("r", "", None), "message": {"role": "user", "content": result}}

    await store.append(KEY, [record])

    assert await store.load(KEY) == [record]


async def test_a_damaged_session_does_not_hide_the_others(store: TreeSessionStore) -> None:
    await store.append(KEY, [build_user("u", "hi")])
    await store.append({**KEY, "session_id": "other"}, [build_user("u", "hi")])
    session = next(each for each in store._pool.repository.list_stored() if st.open(each.location).name == "other")
    Path(session.location).write_bytes(b"\xff\x00 not a session\n")

    assert [each["session_id"] for each in await store.list_sessions("-project")] == [KEY["session_id"]]


WRITER = """
import asyncio, sys
from sessiontree.adapters.claude import TreeSessionStore

async def main(folder, name):
    store = TreeSessionStore(folder)
    key = {"project_key": "p", "session_id": "shared"}
    for number in range(20):
        message = {"role": "user", "content": f"{name} {number}"}
        record = {"type": "user", "uuid": f"{name}-{number}", "message": message}
        both = {"type": "user", "uuid": f"both-{number}", "message": {"role": "user", "content": "both"}}
        await store.append(key, [record, both])

asyncio.run(main(*sys.argv[1:]))
"""


async def test_many_processes_write_to_one_session(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "abc"]
    assert [writer.wait(100) for writer in writers] == [0, 0, 0]

    store = TreeSessionStore(tmp_path)
    uuids = [record["uuid"] for record in await store.load({"project_key": "p", "session_id": "shared"})]

    assert sorted(uuids) == sorted(f"{name}-{number}" for name in ("a", "b", "c", "both") for number in range(20))
    for name in "abc":
        own = [uuid for uuid in uuids if uuid.startswith(f"{name}-")]
        assert own == [f"{name}-{number}" for number in range(20)]
    assert open_tree(store).problems == []


async def test_batches_are_written_in_the_order_of_the_calls(store: TreeSessionStore) -> None:
    await asyncio.gather(*(store.append(KEY, [build_user(f"u{number}", "hi")]) for number in range(30)))

    assert [record["uuid"] for record in await store.load(KEY)] == [f"u{number}" for number in range(30)]


async def test_the_event_loop_runs_while_another_process_holds_the_lock(store: TreeSessionStore) -> None:
    await store.append(KEY, [build_user("u", "hi")])
    [stored] = store._pool.repository.list_stored()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with FileLock(f"{stored.location}.lock"):
            held.set()
            release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    append = asyncio.create_task(store.append(KEY, [build_user("v", "more")]))
    for _ in range(5):
        await asyncio.sleep(0.01)
    assert not append.done()
    release.set()
    await append
    holder.join()
    assert len(await store.load(KEY)) == 2
