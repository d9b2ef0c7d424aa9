"""Message lists and preference pairs: what the model saw and answered, with the shared part of two branches once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

import sessiontree as st
from sessiontree.core.entries import EXPERIMENT_RECORD
from sessiontree.core.messages import JsonObject
from sessiontree.errors import InvalidOperation
from sessiontree.export import export
from tests.strategies import sessions

PIXEL = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="}


def answer(text: str, cost: float = 0.0) -> st.Message:
    return st.assistant(text, model="m", provider="p", usage={"input": 1, "output": 1, "cost": {"total": cost}})


def make_two_answers() -> tuple[st.Session, dict[str, st.Entry]]:
    """A question with two answers: `first`, and `second` on the branch `other`."""
    session = st.memory()
    question = session.append(st.user("How?"))
    first = session.append(answer("So.", 0.02))
    other = session.create_branch("other", at=question, current=False)
    second = other.append(answer("Or so.", 0.01))
    return session, {"question": question, "first": first, "second": second}


def read(session: st.Session, form: str, **options: Any) -> list[JsonObject]:
    return [json.loads(line) for line in session.export(form, **options).content.splitlines()]


def test_each_branch_is_a_message_list() -> None:
    session, _ = make_two_answers()

    assert read(session, "sft") == [
        {"messages": [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "So."}]},
        {"messages": [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "Or so."}]},
    ]


def test_a_message_list_has_calls_results_thinking_and_images() -> None:
    session = st.memory()
    session.append(st.system("Be brief."))
    session.append(st.user([{"type": "text", "text": "What is this?"}, PIXEL]))
    thinking = {"type": "thinking", "thinking": "Hm."}
    session.append(st.assistant([thinking, st.tool_call("c1", "look", {"at": 1})], model="m", provider="p"))
    session.append(st.tool_result("c1", "look", "a dot"))
    session.append(answer("A dot."))

    [found] = read(session, "sft")

    assert found["messages"][1:] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image", "image": "data:image/png;base64,iVBORw0KGgo="},
            ],
        },
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": 1}}}],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "a dot"},
        {"role": "assistant", "content": "A dot."},
    ]
    assert found["messages"][0]["role"] == "system"


def test_messages_that_a_compaction_replaced_have_a_separate_list() -> None:
    session = st.memory()
    session.append(st.user("Old question"))
    session.append(answer("Old answer"))
    new = session.append(st.user("New question"))
    session.append(st.Compaction(summary="They talked.", first_kept=new.id))
    session.append(answer("New answer"))

    before, after = [[message["content"] for message in each["messages"]] for each in read(session, "sft")]

    assert before == ["Old question", "Old answer"]
    assert "They talked." in after[0]
    assert after[1:] == ["New question", "New answer"]


def test_a_failed_answer_and_a_question_without_one_are_left_out() -> None:
    session, made = make_two_answers()
    session.append(st.user("And then?"))
    failed = session.create_branch("failed", at=made["first"], current=False)
    failed.append(st.user("Again?"))
    failed.append(st.assistant("", model="m", provider="p", stop_reason="error"))

    assert [each["messages"][-1]["content"] for each in read(session, "sft")] == ["So.", "Or so."]


def test_an_archived_branch_is_not_trained_on() -> None:
    session, _ = make_two_answers()
    session.archive_branch("other")

    assert [each["messages"][-1]["content"] for each in read(session, "sft")] == ["So."]


def test_a_session_without_answers_has_no_message_lists() -> None:
    session = st.memory()
    session.append(st.user("How?"))

    with pytest.raises(InvalidOperation, match="no branch has an answer"):
        session.export("sft")


def test_the_labelled_branch_is_chosen_and_the_shared_part_is_the_prompt() -> None:
    session, made = make_two_answers()
    session.label(made["second"], "chosen")

    assert read(session, "preference") == [
        {
            "prompt": [{"role": "user", "content": "How?"}],
            "chosen": [{"role": "assistant", "content": "Or so."}],
            "rejected": [{"role": "assistant", "content": "So."}],
        }
    ]


def test_two_labels_leave_out_branches_with_neither() -> None:
    session, made = make_two_answers()
    third = session.create_branch("third", at=made["question"], current=False)
    third.append(answer("Perhaps."))
    session.label(made["first"], "good")
    session.label(made["second"], "bad")

    pairs = read(session, "preference", prefer="label:good/bad")

    assert [(pair["chosen"][0]["content"], pair["rejected"][0]["content"]) for pair in pairs] == [("So.", "Or so.")]
    assert len(read(session, "preference", prefer="label:good")) == 2


def test_the_winner_of_a_comparison_is_chosen() -> None:
    session, _ = make_two_answers()

    [pair] = read(session, "preference", prefer="cost")

    assert pair["chosen"][0]["content"] == "Or so."


def test_a_tie_gives_no_pair() -> None:
    session, _ = make_two_answers()

    with pytest.raises(InvalidOperation, match="a tie by tokens"):
        session.export("preference", prefer="tokens")


@pytest.mark.parametrize(("better", "chosen"), [("higher", "So."), ("lower", "Or so.")])
def test_the_best_score_of_an_experiment_is_chosen(better: str, chosen: str) -> None:
    session, made = make_two_answers()
    records: list[JsonObject] = [{"kind": "plan", "metric": "quality", "better": better}]
    records += [
        {"kind": "run", "made": {"answer": made[name].id}, "scores": {"quality": score, "speed": None}}
        for name, score in (("first", 0.9), ("second", 0.2))
    ]
    for record in records:
        session.append(st.Custom(custom_type=EXPERIMENT_RECORD, data=record))

    [pair] = read(session, "preference", prefer="score:quality")

    assert pair["chosen"][0]["content"] == chosen
    with pytest.raises(InvalidOperation, match="no score 'other'; scores: quality"):
        session.export("preference", prefer="score:other")


def test_the_same_question_asked_twice_belongs_to_the_prompt() -> None:
    session = st.memory()
    start = session.append(st.system("Be brief."))
    session.append(st.user("How?"))
    good = session.append(answer("So."))
    other = session.create_branch("other", at=start, current=False)
    other.append(st.user("How?"))
    other.append(answer("Or so."))
    session.label(good, "chosen")

    [pair] = read(session, "preference")

    assert [message["role"] for message in pair["prompt"]] == ["system", "user"]


def test_branches_that_part_at_a_question_are_reported() -> None:
    session, made = make_two_answers()
    session.label(made["first"], "chosen")
    session.append(st.user("Why?"))
    good = session.append(answer("Because."))
    other = session.create_branch("why", at=made["first"], current=False)
    other.append(st.user("Why not?"))
    other.append(answer("No."))
    session.label(good, "chosen")
    told: list[str] = []

    pieces = list(st.stream_export(session.stream_lines(), "preference", report=told.append))

    assert len(b"".join(pieces).splitlines()) == 1
    assert told == ["1 parting without a pair: the branches part at a question or a tool result, not at an answer"]


@pytest.mark.parametrize("rule", ["", "taste", "score:", "score"])
def test_an_unknown_rule_is_refused(rule: str) -> None:
    session, _ = make_two_answers()

    with pytest.raises(InvalidOperation, match=r"no rule|no entry has the label"):
        session.export("preference", prefer=rule)


def test_only_preferences_take_a_rule() -> None:
    session, _ = make_two_answers()

    with pytest.raises(InvalidOperation, match="choose the format preference"):
        session.export("sft", prefer="cost")


@pytest.mark.parametrize("form", ["sft", "preference", "atif", "inspect"])
def test_secrets_are_redacted_in_every_format(form: str) -> None:
    key = "sk-ant-api03-" + "Ab3dEf6hIj9lMn2pQr5tUv8x" * 4
    session = st.memory()
    question = session.append(st.user(f"My key is {key}"))
    good = session.append(answer(f"Use {key}."))
    session.create_branch("other", at=question, current=False).append(answer("No."))
    session.label(good, "chosen")
    redactor = st.Redactor()

    content = session.export(form, redactor=redactor).content

    assert key.encode() not in content
    assert redactor.report.total > 0


@pytest.mark.parametrize("form", ["sft", "preference", "atif", "inspect"])
@given(data=sessions())
def test_any_session_is_exported_or_refused(form: str, data: bytes) -> None:
    lines = data.split(b"\n")[:-1]

    try:
        content = export(lines, form).content
    except InvalidOperation:
        assert form in ("sft", "preference")
    else:
        assert all(json.loads(line) for line in (content.splitlines() if form == "sft" else [content]))
