"""A real local model, end to end: chat, branch with a summary, compact, reopen."""

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.hooks.bus import Hooks
from sessiontree.model.base import Request, complete
from sessiontree.model.local_model import LocalModel
from sessiontree.ops.compact import compact
from sessiontree.ops.navigate import navigate
from sessiontree.ops.summarize import SummaryRequest
from tests.model.local_weights import local_model  # noqa: F401 - a fixture


async def ask_model(branch: st.Branch, model: LocalModel, text: str) -> None:
    branch.append(st.user(text))
    messages = branch.context().to_llm()
    branch.append(st.Message(await complete(model, Request(messages=messages, max_tokens=60))))


@pytest.mark.local
async def test_a_conversation_with_the_local_model_is_summarized_compacted_and_found_again(
    local_model: LocalModel,  # noqa: F811
    tmp_path: Path,
) -> None:
    file = tmp_path / "s.jsonl"
    with st.create(file=file) as session:
        await ask_model(session.head, local_model, "My name is Ada. What is a cache?")
        start = session.head.leaf
        assert start is not None
        await ask_model(session.head, local_model, "What is a list?")

        left = await navigate(session, session.tree[start], hooks=Hooks(), summary=SummaryRequest(model=local_model))
        await ask_model(session.head, local_model, "And what is a dict?")
        compacted = await compact(session.head, Hooks(), summary=SummaryRequest(model=local_model))
        leaf = session.head.leaf

    assert left.summary_entry is not None
    assert compacted.entry is not None
    with st.open(file) as again:
        assert again.head.leaf == leaf == compacted.entry.id
        assert again.context().messages[0]["role"] == "compactionSummary"
        assert not [problem for problem in again.problems if problem.severity == "fault"]
