"""Nothing in the core recurses, not even for a chain of a million entries."""

import sys

import pytest

from sessiontree.core.context_explanation import explain
from sessiontree.core.entries import Entry
from sessiontree.core.heads import Heads
from sessiontree.core.messages import user
from sessiontree.core.operation_plans import plan_fork, plan_navigate
from sessiontree.core.outline import build_outline
from sessiontree.core.problems import find_problems
from sessiontree.core.tree import Tree
from sessiontree.format.codec import MemoryLine

SAID = user("x")
LINE = MemoryLine(b"{}")


def make_chain(length, *, first=None):
    """Return entries 0 to `length` - 1, each a child of the one before; the first has the parent `first`."""
    parents = [first, *map(str, range(length - 1))]
    return [
        Entry(id=str(n), parent=parent, type="message", number=n + 2, source=LINE, cached_body=SAID)
        for n, parent in enumerate(parents)
    ]


@pytest.fixture
def limited_stack():
    """Limit the stack, and disable tracing, which would be slow for a million entries."""
    limit, trace = sys.getrecursionlimit(), sys.gettrace()
    sys.settrace(None)
    sys.setrecursionlimit(200)
    yield
    sys.setrecursionlimit(limit)
    sys.settrace(trace)


@pytest.mark.usefixtures("limited_stack")
def test_a_chain_of_a_million_entries_needs_no_recursion():
    count = 1_000_000
    last = str(count - 1)
    tree = Tree(make_chain(count))

    path = tree.path(last)

    assert (len(path), path[0].id, path[-1].id) == (count, "0", last)
    assert sum(1 for _ in tree.walk(last)) == count


@pytest.mark.usefixtures("limited_stack")
def test_a_deep_chain_is_explained_drawn_planned_and_checked_without_recursion():
    count = 100_000
    last = str(count - 1)
    tree, heads = Tree(make_chain(count)), Heads()
    heads.replay(tree, tree)

    assert heads.leaf == last
    assert len(explain(tree, last).entries) == count
    assert len(build_outline(tree, last, "all")) == count
    assert len(plan_fork(tree, last).entries) == count
    assert len(plan_navigate(tree, last, "0").abandoned) == count - 1
    assert find_problems(tree, heads) == []


@pytest.mark.usefixtures("limited_stack")
def test_a_cycle_of_many_entries_is_cut_once():
    count = 100_000
    last = str(count - 1)
    tree = Tree(make_chain(count, first=last))

    assert tree.parent("0") is None
    assert len(tree.path(last)) == count
    assert [(problem.kind, problem.entry) for problem in find_problems(tree, Heads())] == [("cycle", "0")]
