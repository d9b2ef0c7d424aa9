"""Branch operations over HTTP: navigation, undo, labels, forks, merges and copies, with their handlers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree.files.private_folder import find_private_folder
from tests.server.conftest import ServerEnv, open_client


@pytest.fixture
def env(tmp_path: Path) -> ServerEnv:
    return ServerEnv(tmp_path, *["A summary by the model."] * 5)


@pytest.fixture
def id(env: ServerEnv) -> str:
    """A session with a branch `other` that continues from `main`."""
    session = env.create_session()
    with st.open(session) as opened:
        other = opened.create_branch("other", current=False)
        other.extend([st.user("Another way?"), st.assistant("An index.")])
    return session


async def post(client: httpx.AsyncClient, id: str, path: str, **said: Any) -> Any:
    answer = await client.post(f"/api/sessions/{id}/{path}", json=said)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def test_a_branch_is_created_at_the_given_place_and_current_by_default(
    client: httpx.AsyncClient, id: str
) -> None:
    made = await post(client, id, "branches", name="cache", description="in memory", at="HEAD~1")
    aside = await post(client, id, "branches", name="aside", switch=False)
    branches = (await client.get(f"/api/sessions/{id}/branches")).json()

    assert made["name"] == "cache"
    assert branches["current"] == "cache"
    rows = {row["name"]: row for row in branches["branches"]}
    assert rows["cache"]["head"] == made["entryId"]
    assert rows["cache"]["description"] == "in memory"
    assert rows["aside"]["head"] == aside["entryId"]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"name": "other"}, 409),
        ({"name": "HEAD"}, 422),
        ({"name": "-x"}, 422),
        ({"name": ""}, 422),
        ({"name": "x" * 201}, 422),
        ({"name": "x", "at": "nowhere"}, 404),
        ({}, 422),
    ],
)
async def test_an_invalid_branch_is_refused(
    client: httpx.AsyncClient, id: str, said: dict[str, Any], status: int
) -> None:
    assert (await client.post(f"/api/sessions/{id}/branches", json=said)).status_code == status


async def test_a_branch_is_renamed_hidden_and_shown(client: httpx.AsyncClient, id: str) -> None:
    async def change(branch: str, **said: Any) -> httpx.Response:
        return await client.patch(f"/api/sessions/{id}/branches/{branch}", json=said)

    renamed = await change("other", name="a/b c")
    hidden = await change("a/b c", archived=True)
    shown = await change("a/b c", archived=False)

    assert "a/b c" in {row["name"] for row in renamed.json()["branches"]}
    assert {row["name"] for row in hidden.json()["branches"] if row["archived"]} == {"a/b c"}
    assert not any(row["archived"] for row in shown.json()["branches"])
    assert (await change("main", archived=True)).status_code == 409
    assert (await change("main", name="a/b c")).status_code == 409
    assert (await change("nothing", archived=True)).status_code == 404
    assert (await change("main")).status_code == 422


@pytest.mark.parametrize(("branch", "name"), [("other", "main"), ("main", "new")], ids=["name taken", "current"])
async def test_a_refused_change_has_no_effect(client: httpx.AsyncClient, id: str, branch: str, name: str) -> None:
    path = f"/api/sessions/{id}/branches"
    before = (await client.get(path)).json()

    refused = await client.patch(f"{path}/{branch}", json={"archived": True, "name": name})

    assert refused.status_code == 409
    assert (await client.get(path)).json() == before


async def test_switching_makes_another_branch_current(client: httpx.AsyncClient, id: str) -> None:
    here = await post(client, id, "switch-branch", branch="other")
    unknown = await client.post(f"/api/sessions/{id}/switch-branch", json={"branch": "HEAD~1"})

    assert here["current"] == "other"
    assert unknown.status_code == 404


async def test_selecting_a_user_message_returns_its_text(client: httpx.AsyncClient, id: str) -> None:
    moved = await post(client, id, "navigate", to="HEAD~1")
    undone = await post(client, id, "undo")

    assert (moved["leaf"], moved["text"]) == (None, "How do I make this faster?")
    assert undone["leaf"] is not None
    assert undone["current"] == "main"


async def test_undo_reverts_a_merge_and_reports_it(client: httpx.AsyncClient, id: str) -> None:
    await post(client, id, "switch-branch", branch="other")
    await post(client, id, "entries", role="user", text="Try another way.")
    here = await post(client, id, "switch-branch", branch="main")
    await post(client, id, "merge", **{"from": "other", "summary": "It works."})

    undone = await post(client, id, "undo")

    assert undone == {**here, "undone": "the merge of other into main"}


async def test_only_the_named_branch_is_moved(client: httpx.AsyncClient, id: str) -> None:
    before = {row["name"]: row["head"] for row in (await client.get(f"/api/sessions/{id}/branches")).json()["branches"]}

    moved = await post(client, id, "navigate", to="main", branch="other")

    branches = (await client.get(f"/api/sessions/{id}/branches")).json()
    heads = {row["name"]: row["head"] for row in branches["branches"]}
    assert heads == {"main": before["main"], "other": before["main"]}
    assert moved["leaf"] == before["main"]
    assert branches["current"] == "main"


async def test_abandoned_entries_are_summarized_by_the_user_or_the_model(
    env: ServerEnv, client: httpx.AsyncClient, id: str
) -> None:
    await post(client, id, "switch-branch", branch="other")
    own = await post(client, id, "navigate", to="main", summary="It took too long.")
    await post(client, id, "undo")
    made = await post(client, id, "navigate", to="main", summarize=True)
    path = (await client.get(f"/api/sessions/{id}/path")).json()["entries"]

    assert own["summaryEntry"] is not None
    assert path[-1]["id"] == made["summaryEntry"] == made["leaf"]
    assert "A summary by the model." in path[-1]["text"]


@pytest.mark.parametrize(
    ("route", "said"), [("navigate", {"to": "HEAD~1"}), ("merge", {"from": "other"}), ("promote", {"branch": "other"})]
)
async def test_a_summary_of_the_user_must_not_be_empty(
    client: httpx.AsyncClient, id: str, route: str, said: dict
) -> None:
    for blank in ("", " \n"):
        answer = await client.post(f"/api/sessions/{id}/{route}", json={**said, "summary": blank})

        assert (answer.status_code, answer.json()["error"]["message"][:8]) == (422, "summary:")


async def test_a_summary_by_the_model_needs_the_scope_run(env: ServerEnv, id: str) -> None:
    async with open_client(env.build_app(), env.create_token("read", "write")) as client:
        for path, said in (
            ("navigate", {"to": "root", "summarize": True}),
            ("merge", {"from": "other"}),
        ):
            answer = await client.post(f"/api/sessions/{id}/{path}", json=said)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), path
    assert not env.models.model.requests


async def test_a_label_is_set_and_removed(client: httpx.AsyncClient, id: str) -> None:
    await post(client, id, "label", entry="HEAD", label="here")
    labeled = (await client.get(f"/api/sessions/{id}/entries/here")).json()
    await post(client, id, "label", entry="here", label=None)

    assert labeled["label"] == "here"
    assert (await client.get(f"/api/sessions/{id}/entries/here")).status_code == 404
    assert (await client.post(f"/api/sessions/{id}/label", json={"entry": "root", "label": "x"})).status_code == 409


async def test_a_path_or_the_whole_tree_is_forked(client: httpx.AsyncClient, id: str) -> None:
    path = (await post(client, id, "fork", at="HEAD~1", name="copy"))["id"]
    tree = (await post(client, id, "fork", tree=True))["id"]

    first, second = [(await client.get(f"/api/sessions/{one}")).json() for one in (path, tree)]
    assert (first["name"], first["parentSession"], first["branches"]) == ("copy", id, 1)
    assert second["branches"] == 2


async def test_any_place_can_be_merged(client: httpx.AsyncClient, id: str) -> None:
    merged = await post(client, id, "merge", **{"from": "other~1", "summary": "Use an index."})

    assert merged["branch"] == "main"
    assert merged["id"] == merged["leaf"]


async def test_a_merge_appends_a_summary_of_the_other_branch(client: httpx.AsyncClient, id: str) -> None:
    merged = await post(client, id, "merge", **{"from": "other", "summary": "Use an index."})
    row = (await client.get(f"/api/sessions/{id}/path")).json()["entries"][-1]
    picked = await post(client, id, "cherry-pick", entries=["other~1", "other"])

    assert (merged["branch"], merged["leaf"]) == ("main", row["id"])
    assert row["text"].endswith("Use an index.")
    assert len(picked["ids"]) == 2
    assert picked["leaf"] == picked["ids"][-1]


async def test_one_of_several_branches_is_promoted(client: httpx.AsyncClient, id: str) -> None:
    await post(client, id, "branches", name="third", switch=False)
    await post(client, id, "entries", role="user", text="Third?", branch="third")

    promoted = await post(client, id, "promote", branch="other", summary="The third was not tried.")
    branches = (await client.get(f"/api/sessions/{id}/branches")).json()

    assert sorted(promoted["archived"]) == ["other", "third"]
    rows = {row["name"]: row for row in branches["branches"]}
    assert rows["main"]["head"] == promoted["leaf"]
    assert rows["third"]["archived"]
    itself = await client.post(f"/api/sessions/{id}/promote", json={"branch": "main"})
    assert itself.status_code == 422


async def test_library_errors_are_returned_with_their_message(client: httpx.AsyncClient, id: str) -> None:
    answer = await client.post(f"/api/sessions/{id}/merge", json={"from": "main", "into": "other", "summary": "x"})

    assert answer.status_code == 409
    assert answer.json()["error"]["message"] == "branch 'main' has no entries to merge into 'other'"


async def test_a_read_only_session_gives_the_reason(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        file = Path(str(session.file))
    file.write_bytes(file.read_bytes().replace(b'"version":3', b'"version":9', 1))

    info = (await client.get(f"/api/sessions/{id}")).json()
    answer = await client.post(f"/api/sessions/{id}/label", json={"entry": "HEAD", "label": "x"})

    assert "newer" in info["readOnly"]
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "read_only")


GUARD = """
def setup(api):
    def no(event, context):
        return {"cancel": True}
    api.on("before_navigate", no)
    api.on("before_fork", no)
"""


async def test_handlers_of_the_user_are_called(env: ServerEnv, id: str, home: Path) -> None:
    folder = home / ".sessiontree" / "extensions"
    folder.mkdir(parents=True)
    (folder / "guard.py").write_text(GUARD)
    async with open_client(env.build_app(), env.owner) as client:
        moved = await post(client, id, "navigate", to="HEAD~1")
        forked = await client.post(f"/api/sessions/{id}/fork", json={})

    assert moved["cancelled"] is True
    assert (forked.status_code, forked.json()["error"]["code"]) == (409, "cancelled")


async def test_extensions_of_untrusted_projects_do_not_run(env: ServerEnv, id: str) -> None:
    folder = env.project / ".sessiontree" / "extensions"
    folder.mkdir(parents=True)
    (folder / "guard.py").write_text(f"open({str(env.project / 'ran')!r}, 'w')\n{GUARD}")
    async with open_client(env.build_app(), env.owner) as client:
        moved = await post(client, id, "navigate", to="HEAD~1")

    assert moved["cancelled"] is False
    assert not (env.project / "ran").exists()


async def test_a_move_is_refused_if_the_session_changed(env: ServerEnv, client: httpx.AsyncClient, id: str) -> None:
    seen = (await client.get(f"/api/sessions/{id}")).headers["etag"]
    await post(client, id, "entries", role="user", text="more")

    for path, said in (("navigate", {"to": "root"}), ("fork", {}), ("switch-branch", {"branch": "other"})):
        answer = await client.post(f"/api/sessions/{id}/{path}", json=said, headers={"if-match": seen})
        assert (answer.status_code, answer.json()["error"]["code"]) == (412, "changed"), path


async def test_files_are_previewed_and_restored_with_a_move(env: ServerEnv, client: httpx.AsyncClient, id: str) -> None:
    with st.open(id) as session:
        place = session.head.leaf
        answers = [[st.ToolCall("c1", "bash", {"command": "echo 1 > made"})], "Done."]
        agent = st.Agent(session, st.ScriptedModel(answers), st.builtin_tools(), cwd=str(env.project), snapshots=True)
        await agent.run("Make a file")

    preview = await post(client, id, "navigate", to=place, preview=True)
    assert preview["files"]["paths"] == [{"path": "made", "action": "delete", "reason": None, "canTake": False}]
    assert (env.project / "made").exists()
    moved = await post(client, id, "navigate", to=place, files="both")

    assert (moved["leaf"], moved["files"]) == (place, preview["files"])
    assert not (env.project / "made").exists()
    other = await post(client, id, "navigate", to="root")
    assert other["files"] is None


async def test_a_conflict_is_restored_if_the_request_names_it(
    env: ServerEnv, client: httpx.AsyncClient, id: str
) -> None:
    with st.open(id) as session:
        place = session.head.leaf
        answers = [[st.ToolCall("c1", "bash", {"command": "echo 1 > made"})], "Done."]
        agent = st.Agent(session, st.ScriptedModel(answers), st.builtin_tools(), cwd=str(env.project), snapshots=True)
        await agent.run("Make a file")
        leaf = session.head.leaf
    (env.project / "made").write_text("mine\n")

    preview = await post(client, id, "navigate", to=place, preview=True, diff=True)
    conflict = {"path": "made", "action": "keep", "reason": "changed on disk since", "canTake": True}
    assert preview["files"]["paths"] == [conflict]
    assert "-mine" in preview["files"]["diff"]
    refused = await client.post(f"/api/sessions/{id}/navigate", json={"to": place, "files": "both", "take": ["other"]})
    assert refused.status_code == 409
    assert "no conflict at other" in refused.text
    assert (await client.get(f"/api/sessions/{id}")).json()["leaf"] == leaf
    moved = await post(client, id, "navigate", to=place, files="both", take=["made"])

    assert moved["files"]["paths"] == [{"path": "made", "action": "delete", "reason": None, "canTake": False}]
    assert not (env.project / "made").exists()


async def test_undo_and_switch_take_files_along(env: ServerEnv, client: httpx.AsyncClient, id: str) -> None:
    with st.open(id) as session:
        answers = [[st.ToolCall("c1", "bash", {"command": "echo 1 > made"})], "Done."]
        agent = st.Agent(session, st.ScriptedModel(answers), st.builtin_tools(), cwd=str(env.project), snapshots=True)
        await agent.run("Make a file")
        leaf = session.head.leaf
    made, delete = env.project / "made", {"path": "made", "action": "delete", "reason": None, "canTake": False}

    preview = await post(client, id, "switch-branch", branch="other", preview=True)
    assert (preview["current"], preview["files"]["paths"], made.exists()) == ("main", [delete], True)
    switched = await post(client, id, "switch-branch", branch="other", files="both")
    assert (switched["current"], switched["files"]["paths"], made.exists()) == ("other", [delete], False)
    found = await post(client, id, "files-diff", a="other", b="main")
    assert (found["paths"], found["missing"]) == ([{"path": "made", "added": 1, "deleted": 0}], None)
    assert "+1" in found["diff"]
    shown = await post(client, id, "undo", preview=True, diff=True)
    assert (shown["current"], shown["files"]["paths"][0]["action"]) == ("other", "add")
    assert "+1" in shown["files"]["diff"]
    undone = await post(client, id, "undo", files="both")

    assert (undone["current"], undone["leaf"], made.read_text()) == ("main", leaf, "1\n")
    again = await post(client, id, "switch-branch", branch="other")
    assert (again["files"], made.exists()) == (None, True)


async def test_the_tree_counts_the_files_that_a_call_changed(
    env: ServerEnv, client: httpx.AsyncClient, id: str
) -> None:
    await client.get(f"/api/sessions/{id}/tree")
    with st.open(id) as session:
        answers = [[st.ToolCall("c1", "bash", {"command": "echo 1 > a; echo 1 > b"})], "Done."]
        agent = st.Agent(session, st.ScriptedModel(answers), st.builtin_tools(), cwd=str(env.project), snapshots=True)
        await agent.run("Make files")
        leaf = session.head.leaf

    rows = (await client.get(f"/api/sessions/{id}/tree")).json()["entries"]
    assert {row["role"]: row["files"] for row in rows if row["files"]} == {"toolResult": 2}
    await post(client, id, "navigate", to="root", files="files")
    result = next(row["id"] for row in rows if row["files"])
    found = (await client.get(f"/api/sessions/{id}/entries/{result}")).json()
    assert found["newestLeaf"] == leaf  # not the record of the call, nor that of the restore


async def test_undo_reverts_a_restore_of_files_alone(env: ServerEnv, client: httpx.AsyncClient, id: str) -> None:
    with st.open(id) as session:
        answers = [[st.ToolCall("c1", "bash", {"command": "echo 1 > made"})], "Done."]
        agent = st.Agent(session, st.ScriptedModel(answers), st.builtin_tools(), cwd=str(env.project), snapshots=True)
        await agent.run("Make a file")
    made = env.project / "made"
    leaf = (await post(client, id, "navigate", to="root", files="files"))["leaf"]
    assert not made.exists()

    shown = await post(client, id, "undo", preview=True)
    assert (shown["undone"], shown["files"]["filesOnly"]) == ("the restore of files", True)
    undone = await post(client, id, "undo", files="both")

    assert (undone["undone"], undone["leaf"], made.read_text()) == ("the restore of files", leaf, "1\n")


async def test_a_merge_brings_the_files_of_a_private_folder(
    env: ServerEnv, client: httpx.AsyncClient, id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(env.project)
    (env.project / "shared").write_text("1\n2\n3\n")
    with st.open(id) as session:
        session.create_branch("private", current=False, folder="private")
        folder = find_private_folder(session.id, "private")
        assert folder is not None
        command = f"cd {folder.path}; echo new > added; sed -i s/3/three/ shared"
        answers = [[st.ToolCall("c1", "bash", {"command": command})], "Done."]
        branch = session.branch("private")
        agent = st.Agent(branch, st.ScriptedModel(answers), st.builtin_tools(), cwd=folder.path, snapshots=True)
        await agent.run("Change files")
    (env.project / "shared").write_text("one\n2\nTHREE\n")

    conflict = await post(client, id, "merge", **{"from": "private", "into": "main", "summary": "s"})
    assert [item["path"] for item in conflict["files"]["conflicts"]] == ["shared"]
    assert not (env.project / "added").exists()
    (env.project / "shared").write_text("one\n2\n3\n")
    merged = await post(client, id, "merge", **{"from": "private", "into": "main", "summary": "s"})

    assert (merged["id"], merged["files"]["written"]) == (None, ["added", "shared"])
    assert (env.project / "shared").read_text() == "one\n2\nthree\n"
    archived = await client.patch(f"/api/sessions/{id}/branches/private", json={"archived": True})
    assert archived.status_code == 200
    assert not Path(folder.path).exists()
