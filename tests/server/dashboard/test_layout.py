"""Positions of entries in the drawn tree: layout.js and rows.js with many trees, in a browser."""

from __future__ import annotations

import random
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.messages import extract_text, get_entry_role, get_tool_calls
from sessiontree.core.outline import FILTERS, build_outline
from tests.export.sessions import make_story
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.site import run_dashboard

LAY = """async (trees) => {
  const { layOut } = await import("/static/js/layout.js");
  return trees.map((rows) => {
    const { nodes, chains, lanes, depth } = layOut(rows);
    return {
      lanes, depth,
      nodes: nodes.map((node) => [node.chain.lane, node.depth, node.parent, node.children]),
      chains: chains.map((chain) => [chain.lane, chain.top, chain.members.length, nodes[chain.first].parent]),
    };
  });
}"""


def build_random_tree(seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    size = chance.randrange(1, 120)
    forks = chance.choice((0.05, 0.3, 0.9))
    parents: list[int | None] = [None]
    for number in range(1, size):
        stays = chance.random() > forks
        parents.append(None if chance.random() < 0.02 else number - 1 if stays else chance.randrange(number))
    return [{"id": str(number), "parent": None if at is None else str(at)} for number, at in enumerate(parents)]


@pytest.fixture(scope="module")
def trees(browser: Any) -> Any:
    """Random trees with their layouts, computed once."""
    with run_dashboard() as site:
        context = browser.new_context()
        page = context.new_page()
        page.goto(site.url)
        laid = page.evaluate(LAY, [build_random_tree(seed) for seed in range(60)])
        context.close()
    return laid


def test_no_two_entries_have_the_same_position(trees: Any) -> None:
    for tree in trees:
        places = [(lane, row) for lane, row, _, _ in tree["nodes"]]
        assert len(set(places)) == len(places)
        assert all(lane < tree["lanes"] and row < tree["depth"] for lane, row in places)


def test_the_first_child_keeps_the_lane_and_others_are_to_the_right(trees: Any) -> None:
    for tree in trees:
        nodes = tree["nodes"]
        for lane, row, _, children in nodes:
            for index, child in enumerate(children):
                assert nodes[child][1] == row + 1
                assert (nodes[child][0] == lane) if index == 0 else (nodes[child][0] > lane)


def test_no_two_lines_cross(trees: Any) -> None:
    """A branch line crosses the lanes between two rows; no other chain occupies both rows in such a lane."""
    for tree in trees:
        nodes, chains = tree["nodes"], tree["chains"]
        for lane, _, _, parent in chains:
            if parent < 0:
                continue
            start, row = nodes[parent][:2]
            for other, top, length, _ in chains:
                crosses = start < other < lane and top <= row and row + 1 <= top + length - 1
                assert not crosses


LANES = """async (rows) => (await import("/static/js/layout.js")).layOut(rows()).lanes"""


def test_branches_use_separate_lanes_only_if_they_overlap(serve: Serve, visit: Visit) -> None:
    """Short branches along a long conversation share a lane; ten thousand branches of one entry have one each."""
    along = """[...Array(1000).keys()].map((n) => ({ id: `t${n}`, parent: n ? `t${n - 1}` : null })).concat(
      [...Array(200).keys()].map((n) => ({ id: `s${n}`, parent: `t${5 * n}` })))"""
    together = (
        """[{ id: "root", parent: null }, ...[...Array(10000).keys()].map((n) => ({ id: `${n}`, parent: "root" }))]"""
    )

    site = serve()
    page = visit(site)
    lanes = [page.evaluate(f"({LANES})(() => {rows})") for rows in (along, together)]

    assert lanes == [2, 10_000]


def test_the_path_to_the_leaf_is_a_straight_line(serve: Serve, visit: Visit) -> None:
    rows = build_random_tree(7)
    script = """async ([rows, leaves]) => {
      const { findPath, layOut } = await import("/static/js/layout.js");
      return leaves.map((leaf) => {
        const layout = layOut(rows, leaf);
        return findPath(layout, leaf).map((number) => layout.nodes[number].chain.lane);
      });
    }"""

    paths = visit(serve()).evaluate(script, [rows, [row["id"] for row in rows]])

    assert len(paths) == len(rows)
    assert all(set(lanes) == {0} for lanes in paths)


def test_new_entries_are_filtered_as_on_the_server(serve: Serve, visit: Visit) -> None:
    """`rows.js` filters live entries the same way as `outline` does after a reload."""
    session = make_story()
    session.append(st.user("and now"))
    fresh: list[dict[str, Any]] = []
    for entry in session.tree.entries:
        message = getattr(entry.body, "message", {})
        place = {
            "id": entry.id,
            "parent": session.tree.parent(entry.id),
            "type": entry.type,
            "role": get_entry_role(entry),
        }
        said = {"text": extract_text(message.get("content")), "tools": [call.name for call in get_tool_calls(message)]}
        fresh.append({**place, **said})
    script = """async ([fresh, filters]) => {
      const { joinRows } = await import("/static/js/rows.js");
      return filters.map((filter) => joinRows([], fresh, filter, new Map()).map(({ id, parent }) => [id, parent]));
    }"""

    site = serve()
    answers = visit(site).evaluate(script, [fresh, FILTERS])

    for filter, joined in zip(FILTERS, answers, strict=True):
        shown = {row.entry.id for row in build_outline(session.tree, session.heads.leaf, filter)}
        assert {id for id, _ in joined} == (shown if filter != "labeled-only" else set()), filter
        for id, parent in joined:
            above = (entry.id for entry in session.tree.walk_up(session.tree.parent(id)) if entry.id in shown)
            assert parent == next(above, None), filter


def test_a_new_entry_below_a_missing_row_requires_a_reload(serve: Serve, visit: Visit) -> None:
    script = """async ([rows, fresh, hidden]) => {
      const { joinRows } = await import("/static/js/rows.js");
      return joinRows(rows, fresh, "no-tools", new Map(hidden));
    }"""
    rows = [{"id": "asked", "parent": None}]
    said = {"type": "message", "role": "assistant", "text": "Done.", "tools": None}
    fresh = [{"id": "said", "parent": "result", **said}]
    page = visit(serve())

    assert page.evaluate(script, [rows, fresh, [["result", "call"]]]) is None
    for shown in ("asked", None):
        joined = page.evaluate(script, [rows, fresh, [["result", shown]]])
        assert [(row["id"], row["parent"]) for row in joined] == [("asked", None), ("said", shown)]
