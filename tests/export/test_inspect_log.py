"""The reader of Inspect takes our logs."""

from __future__ import annotations

from pathlib import Path

from inspect_ai.log import EvalLog, read_eval_log

import sessiontree as st
from sessiontree.core.entries import EXPERIMENT_RECORD
from sessiontree.export import export
from tests.interop.conformance import FIXTURES, read_file


def read(content: bytes, folder: Path) -> EvalLog:
    path = folder / "log.json"
    path.write_bytes(content)
    return read_eval_log(str(path))


def test_each_branch_is_a_sample_with_its_conversation_usage_and_scores(tmp_path: Path) -> None:
    session = st.memory(cwd="/project")
    session.rename("speed")
    question = session.append(st.user("How?"))
    usage = {"input": 10, "output": 5, "cacheRead": 3, "cost": {"total": 0.5}}
    thinking = {"type": "thinking", "thinking": "Hm."}
    calls = [thinking, st.tool_call("c1", "look", {"at": 1})]
    session.append(st.assistant(calls, model="m", provider="p", usage=usage))
    session.append(st.tool_result("c1", "look", "nothing", error=True))
    answer = session.append(st.assistant("So.", model="m", provider="p", usage=usage))
    session.create_branch("other", at=question, current=False).append(st.assistant("Or so.", model="m", provider="p"))
    record = {"kind": "run", "made": {"answer": answer.id}, "scores": {"quality": 0.9}}
    session.append(st.Custom(custom_type=EXPERIMENT_RECORD, data=record))

    log = read(session.export("inspect").content, tmp_path)

    assert (log.status, log.eval.task, log.eval.model) == ("success", "speed", "p/m")
    assert log.samples is not None
    main, other = log.samples
    assert (main.id, other.id) == ("main", "other")
    assert [message.role for message in main.messages] == ["user", "assistant", "tool", "assistant"]
    assert main.output.completion == "So."
    assert main.scores is not None
    assert main.scores["quality"].value == 0.9
    assert main.model_usage["p/m"].input_tokens == 20
    assert main.model_usage["p/m"].total_cost == 1.0
    assert other.output.completion == "Or so."


def test_recorded_sessions_of_other_programs_are_read(tmp_path: Path) -> None:
    for pattern in ("claude/*/projects/*/*.jsonl", "codex/**/rollout-*.jsonl"):
        for path in FIXTURES.glob(pattern):
            for conversation in read_file(path):
                log = read(export(conversation.lines, "inspect").content, tmp_path)

                assert log.samples
                assert all(sample.messages for sample in log.samples)
