"""The examples of Dash's documentation, line by line, with the names in snake_case."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.compat.dash import SessionTree, SwarmOrchestrator
from sessiontree.core.messages import extract_text
from sessiontree.errors import InvalidOperation, NotFound


@pytest.fixture
def tree(tmp_path: Path) -> SessionTree:
    return SessionTree.create(tmp_path, tmp_path / "sessions", "my-session")


def read_texts(tree: SessionTree) -> list[str]:
    return [entry.text for entry in tree.get_branch() if entry.type == "message"]


def test_create_makes_a_session_in_the_folder(tmp_path: Path) -> None:
    tree = SessionTree.create(
        tmp_path,  # working directory
        tmp_path / "sessions",  # session storage directory
        "my-session",  # optional name
    )

    assert (tree.session.cwd, tree.session.name) == (str(tmp_path), "my-session")
    assert tree.session.file is not None
    assert tree.session.file.parent == tmp_path / "sessions"
    assert tree.get_session_id() in tree.session.file.name
    assert SessionTree.open(tree.session.file).get_session_id() == tree.get_session_id()


def test_a_message_becomes_a_child_of_the_current_leaf(tree: SessionTree) -> None:
    entry_id = tree.append_message("user", "Hello")
    response_id = tree.append_message(
        "assistant", "Hi there!", {"model": "kimi-k2.5", "provider": "moonshot", "cost": 0.001, "tokens": 150}
    )

    entry = tree.get_entry(response_id)
    assert entry is not None
    assert (entry.parent_id, entry.role, entry.text) == (entry_id, "assistant", "Hi there!")
    message = json.loads(entry.raw)["message"]
    assert (message["model"], message["provider"]) == ("kimi-k2.5", "moonshot")
    assert entry.usage is not None
    assert (entry.usage.cost, entry.usage.total) == (0.001, 150)
    assert entry.extra["metadata"]["tokens"] == 150


def test_every_role_reaches_the_model(tree: SessionTree) -> None:
    for role in ("system", "user", "assistant", "tool"):
        tree.append_message(role, f"from {role}", {"mark": role})

    sent = tree.session.head.context().to_llm()

    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert "from tool" in extract_text(sent[-1]["content"])
    roles = ["system", "user", "assistant", "tool"]
    assert [entry.role for entry in tree.get_branch()[1:]] == roles
    assert [entry.metadata["mark"] for entry in tree.get_branch()[1:]] == roles


def test_a_result_of_a_tool_answers_the_call_that_waits_for_it(tree: SessionTree) -> None:
    tree.session.append(st.assistant([st.tool_call("c1", "ls", {}), st.tool_call("c2", "cat", {})]))

    first = tree.append_message("tool", "a.txt", {"tool_call_id": "c1"})
    second = tree.append_message("tool", "Hello")

    for id, call in ((first, "c1"), (second, "c2")):
        entry = tree.get_entry(id)
        assert entry is not None
        assert (entry.role, entry.tool_call_id, entry.is_error) == ("toolResult", call, False)


def test_a_result_of_a_tool_is_checked_like_every_message(tree: SessionTree) -> None:
    with pytest.raises(InvalidOperation, match="a content block must be an object, not int"):
        tree.append_message("tool", [3])  # type: ignore[arg-type]
    assert read_texts(tree) == []


def test_ids_have_eight_characters_and_fields_the_names_of_the_document(tree: SessionTree) -> None:
    first = tree.append_message("user", "Hello")
    point = tree.create_branch("feature-branch", "Working on feature X")
    action = tree.append_agent_action("spawn", "agent-123", {"role": "worker"})

    assert all(re.fullmatch("[0-9a-f]{8}", id) for id in (first, point, action))
    message, branch_point, spawned = tree.get_branch()[-3:]
    assert (message.type, message.id, message.role, message.content) == ("message", first, "user", "Hello")
    assert (branch_point.parent_id, branch_point.branch_name) == (first, "feature-branch")
    assert branch_point.description == "Working on feature X"
    assert (spawned.parent_id, spawned.action, spawned.agent_id) == (point, "spawn", "agent-123")
    assert spawned.data == {"role": "worker"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", message.timestamp)
    with pytest.raises(AttributeError, match="an entry of type 'message' has no field 'branch_name'"):
        message.branch_name  # noqa: B018


def test_an_unknown_role_is_refused(tree: SessionTree) -> None:
    with pytest.raises(InvalidOperation, match="user, assistant, system or tool"):
        tree.append_message("robot", "Hello")  # type: ignore[arg-type]


def test_branches_continue_independently(tree: SessionTree) -> None:
    # Create branch from current position
    tree.append_message("user", "How do I optimize this?")
    tree.append_message("assistant", "I have several approaches...")

    # Create branch for approach A
    tree.create_branch("approach-a", "Using algorithm optimization")
    tree.append_message("assistant", "Approach A: Use memoization")

    # Switch back to main and create branch B
    tree.switch_branch("main")
    tree.create_branch("approach-b", "Using data structure changes")
    tree.append_message("assistant", "Approach B: Use a Map")

    asked = ["How do I optimize this?", "I have several approaches..."]
    assert read_texts(tree) == [*asked, "Approach B: Use a Map"]
    tree.switch_branch("approach-a")
    assert read_texts(tree) == [*asked, "Approach A: Use memoization"]
    tree.switch_branch("main")
    assert read_texts(tree) == asked
    assert [(branch.name, branch.description) for branch in tree.list_branches()] == [
        ("main", None),
        ("approach-a", "Using algorithm optimization"),
        ("approach-b", "Using data structure changes"),
    ]


def test_a_branch_can_start_at_a_historical_entry(tree: SessionTree) -> None:
    some_entry_id = tree.append_message("user", "first")
    tree.append_message("assistant", "second")

    point = tree.create_branch_at(some_entry_id, "alternative", "Try different approach")

    assert read_texts(tree) == ["first"]
    entry = tree.get_entry(point)
    assert entry is not None
    assert (entry.type, entry.parent_id) == ("branch_point", some_entry_id)


def test_a_fork_has_the_path_to_an_entry_only(tree: SessionTree) -> None:
    entry_id = tree.append_message("user", "first")
    tree.append_message("assistant", "second")

    result = tree.fork_session(entry_id, "forked-session-name")

    assert result.forked_from_entry_id == entry_id
    assert result.new_session_id != tree.get_session_id()
    assert result.new_session_file is not None
    assert re.fullmatch(rf".*/sessions/\d{{4}}-\d\d-\d\d.*_{result.new_session_id}\.jsonl", result.new_session_file)
    forked = SessionTree.open(result.new_session_file)
    assert (read_texts(forked), forked.session.name) == (["first"], "forked-session-name")
    assert read_texts(tree) == ["first", "second"]


def test_navigating_reads_paths_entries_children_and_branches(tree: SessionTree) -> None:
    first = tree.append_message("user", "first")
    second = tree.append_message("assistant", "second")
    tree.create_branch("approach-a")

    # Get current branch (path from root to leaf)
    branch = tree.get_branch()
    assert [entry.type for entry in branch] == ["session_info", "message", "message", "branch_point"]

    # Get specific entry
    entry = tree.get_entry(first)
    assert entry is not None
    assert entry.text == "first"
    assert tree.get_entry("abc123") is None

    # Get children of an entry
    children = tree.get_children(first)
    assert [child.id for child in children] == [second]

    # Switch to different branch
    tree.switch_branch("main")
    tree.switch_branch("approach-a")
    with pytest.raises(NotFound, match="approach-z"):
        tree.switch_branch("approach-z")

    # Get all branches
    branches = tree.list_branches()
    assert [(info.name, info.current) for info in branches] == [("main", False), ("approach-a", True)]


def test_the_tree_has_nodes_with_entry_children_label_and_depth(tree: SessionTree) -> None:
    first = tree.append_message("user", "first")
    tree.append_message("assistant", "one")
    tree.create_branch_at(first, "other")
    tree.append_message("assistant", "two")
    tree.append_label(first, "start")

    tree_data = tree.get_tree()

    (root,) = tree_data
    (node,) = [child for child in root.children if child.entry.id == first]
    assert (node.label, node.depth) == ("start", 1)
    assert [child.entry.type for child in node.children] == ["message", "branch_point"]
    assert [child.depth for child in node.children] == [2, 2]
    assert "sessiontree.head" not in repr([entry.custom_type for entry in walk_entries(tree_data)])


def walk_entries(nodes):
    for node in nodes:
        yield node.entry
        yield from walk_entries(node.children)


def append_costs(tree: SessionTree, *costs: float) -> None:
    for cost in costs:
        tree.append_message("assistant", "Done.", {"cost": cost, "tokens": 100})


def test_the_cheaper_branch_wins_a_comparison(tree: SessionTree) -> None:
    tree.append_message("user", "How do I optimize this?")
    tree.create_branch("approach-a")
    append_costs(tree, 0.01, 0.01, 0.01, 0.02)
    tree.switch_branch("main")
    tree.create_branch("approach-b")
    append_costs(tree, 0.01, 0.02)

    comparison = tree.compare_branches(["approach-a", "approach-b"])

    assert [
        (branch.branch_id, branch.name, branch.entry_count, branch.total_cost) for branch in comparison.branches
    ] == [("approach-a", "approach-a", 5, 0.05), ("approach-b", "approach-b", 3, 0.03)]
    assert comparison.winner == "approach-b"  # lowest cost by default
    cost = comparison.differences[0]
    assert (cost.metric, cost.branch_a, cost.branch_b) == ("cost", "approach-a", "approach-b")
    assert (cost.diff, cost.percent_diff) == (-0.02, -40)


def test_an_entry_has_the_last_label_until_it_is_removed(tree: SessionTree) -> None:
    entry_id = tree.append_message("user", "Hello")

    # Label important entries
    tree.append_label(entry_id, "critical-decision")
    tree.append_label(entry_id, "checkpoint-1")
    assert tree.get_label(entry_id) == "checkpoint-1"

    # Remove label
    tree.append_label(entry_id, None)

    # Get label
    label = tree.get_label(entry_id)
    assert label is None


def test_an_agent_action_is_an_entry(tree: SessionTree) -> None:
    id = tree.append_agent_action("spawn", "agent-123", {"role": "worker"})

    entry = tree.get_entry(id)
    assert entry is not None
    assert entry.type == "agent_action"
    assert entry.body == st.AgentAction(action="spawn", agent="agent-123", data={"role": "worker"})


def test_the_storage_format_of_the_document_opens(tmp_path: Path) -> None:
    file = tmp_path / "dash.jsonl"
    file.write_text(
        '{"type":"session","version":1,"id":"sess_abc123","timestamp":"2024-01-01T00:00:00.000Z","cwd":"/project"}\n'
        '{"type":"message","id":"a1b2c3d4","parentId":null,"timestamp":"2024-01-01T00:00:01.000Z","role":"user",'
        '"content":"Hello"}\n'
        '{"type":"message","id":"e5f6g7h8","parentId":"a1b2c3d4","timestamp":"2024-01-01T00:00:02.000Z",'
        '"role":"assistant","content":"Hi!"}\n'
        '{"type":"branch_point","id":"i9j0k1l2","parentId":"e5f6g7h8","timestamp":"2024-01-01T00:00:03.000Z",'
        '"branchName":"branch-a"}\n'
    )

    tree = SessionTree.open(file)

    assert tree.get_session_id() == "sess_abc123"
    assert [entry.id for entry in tree.get_branch()] == ["a1b2c3d4", "e5f6g7h8", "i9j0k1l2"]
    assert read_texts(tree) == ["Hello", "Hi!"]
    assert [branch.name for branch in tree.list_branches()] == ["main", "branch-a"]


def answer(request):
    approach = extract_text(request.messages[-1]["content"]).rpartition(": ")[2]
    cost = 0.05 if "indexing" in approach else 0.03
    return [f"{approach}: done.", st.ScriptedUsage({"input": 900, "output": 90, "cost": cost})]


async def test_a_swarm_works_on_branches_and_compares_them(capsys: pytest.CaptureFixture[str]) -> None:
    orchestrator = SwarmOrchestrator(model=st.ScriptedModel([answer] * 2))

    # Create swarm with branching enabled
    swarm = await orchestrator.create(
        name="optimization-swarm",
        task="Optimize database queries",
        initial_agents=2,
        max_agents=5,
        strategy="parallel",
        enable_branching=True,  # enable session tree
        enable_event_streaming=True,
    )

    # Create branches for A/B testing
    await orchestrator.create_branch(swarm.id, "approach-1", "Use indexing")
    await orchestrator.create_branch(swarm.id, "approach-2", "Use caching")

    # Agents work on different branches
    await swarm.run()

    # Compare results
    comparison = orchestrator.compare_branches(swarm.id, ["approach-1", "approach-2"])
    print(f"Winner: {comparison.winner}")

    assert capsys.readouterr().out == "Winner: approach-2\n"
    assert {agent.branch for agent in swarm.status().agents} == {"approach-1", "approach-2"}


async def test_the_orchestrator_provides_the_dashboard_data_of_a_swarm() -> None:
    tree = SessionTree(st.memory())
    tree.append_message("user", "Our queries are slow.")
    orchestrator = SwarmOrchestrator(tree, model=st.ScriptedModel([]))
    swarm = await orchestrator.create(name="swarm", task="Optimize")

    await orchestrator.create_branch(swarm.id, "approach-1")
    await orchestrator.switch_branch(swarm.id, "approach-1")

    assert swarm.session is tree.session
    assert [branch.name for branch in orchestrator.list_branches(swarm.id)] == ["main", "swarm", "approach-1"]
    assert orchestrator.get_tree(swarm.id)[0].entry.text == "Our queries are slow."
    assert swarm.status().current_branch == "approach-1"
    with pytest.raises(NotFound, match="swarm"):
        orchestrator.list_branches("unknown")


async def test_a_swarm_without_branching_refuses_branches() -> None:
    orchestrator = SwarmOrchestrator(st.memory(), model=st.ScriptedModel([]))
    swarm = await orchestrator.create(name="swarm", task="Optimize", enable_branching=False)

    with pytest.raises(InvalidOperation, match="branching"):
        await orchestrator.create_branch(swarm.id, "approach-1")
