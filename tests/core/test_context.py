import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.context import (
    NO_RESULT,
    GrowingContext,
    State,
    build_context,
    build_path_context,
    find_context_path,
    find_model_above,
    fold_system,
    read_state,
)
from sessiontree.core.context_explanation import encode_explanation, explain
from sessiontree.core.entries import (
    AgentAction,
    BranchPoint,
    BranchSummary,
    Compaction,
    ContextEdit,
    Custom,
    CustomMessage,
    Label,
    ModeChange,
    ModelChange,
    ResetBoundary,
    RuleInjection,
    ThinkingLevelChange,
)
from sessiontree.core.messages import (
    assistant,
    estimate_tokens,
    get_answered_call,
    get_tool_calls,
    is_failed_turn,
    tool_call,
    tool_result,
    user,
)
from sessiontree.core.tree import Tree
from sessiontree.errors import NotFound
from sessiontree.library.catalog import memory
from tests.builders import TIME_MS, grow, say
from tests.strategies import damaged_entry_lists, dump_messages, entry_lists, mark, places


def build_last_context(tree, leaf=None):
    """Return the context at `leaf`, by default at the last entry."""
    return build_context(tree, leaf or tree.entries[-1].id)


def get_sources(tree, leaf=None):
    return "".join(build_last_context(tree, leaf).sources)


def get_roles(messages):
    return [message["role"] for message in messages]


def explain_reasons(tree, leaf=None):
    """Return the reason of each entry on the path."""
    return {item.entry.id: item.reason for item in explain(tree, leaf or tree.entries[-1].id).entries}


def make_calls(*ids, stop="toolUse"):
    return assistant([tool_call(id, "read", {}) for id in ids], stop_reason=stop)


def make_result(id, text="x"):
    return tool_result(id, "read", text)


def make_compaction(first_kept=None, **fields):
    return Compaction(summary="S", first_kept=first_kept, **fields)


# Messages


def test_a_conversation_is_its_messages():
    tree = grow("a>b a>c", b=assistant("reply"))

    seen = build_last_context(tree, "b")

    assert (seen.leaf, seen.sources) == ("b", ("a", "b"))
    assert get_roles(seen.messages) == ["user", "assistant"]


def test_the_context_before_the_first_entry_is_empty():
    seen = build_context(grow("a"), None)

    assert (seen.leaf, seen.messages, seen.model, seen.thinking_level) == (None, (), None, "off")
    assert seen.to_llm() == []


def test_an_unknown_leaf_is_an_error_not_the_last_entry():
    with pytest.raises(NotFound, match="gone"):
        build_context(grow("a"), "gone")


def test_missing_content_is_empty_content():
    tree = grow("a>b>c", a=say("user"), b=say("system"), c=say("bashExecution"))

    assert [message.get("content") for message in build_last_context(tree).messages] == [[], "", None]


@pytest.mark.parametrize("given", [build_context, lambda tree, leaf: explain(tree, leaf).context])
def test_changing_a_context_does_not_change_the_session(given):
    turn = assistant([tool_call("1", "read", {"paths": ["a"]})], usage={"input": 1})
    tree = grow("a>b>c>d>e", b=turn, c=ModeChange(mode="plan", data={"steps": [1]}), d={"type": "message"})
    before = repr(given(tree, "e"))

    changed = given(tree, "e")
    changed.state.mode_data["steps"].append(2)
    for message in changed.messages:
        if message.get("role") == "assistant":
            message["content"][0]["arguments"]["paths"].append("b")
            message["usage"]["cost"]["total"] = 5
        message["content"] = "CHANGED"

    assert repr(given(tree, "e")) == before


@pytest.mark.parametrize("wire", [{"message": {"role": "user"}}, {"message": {"role": "assistant"}}, {}])
def test_missing_content_is_a_new_object_in_each_context(wire):
    def read():
        return build_path_context(grow("a", a={"type": "message", **wire}).path("a")).messages[0]

    before, changed = repr(read()), read()
    changed.setdefault("content", []).append("CHANGED")

    assert repr(read()) == before


def test_a_custom_message_is_in_the_context_as_written():
    body = CustomMessage(custom_type="note", content="see", display=False, details={"x": 1})

    [message] = build_last_context(grow("a", a=body)).messages

    assert message == {
        "role": "custom",
        "customType": "note",
        "content": "see",
        "display": False,
        "details": {"x": 1},
        "timestamp": TIME_MS,
    }


def test_a_custom_message_without_content_or_details_is_empty():
    [message] = build_last_context(grow("a", a=CustomMessage(custom_type="note", content=None))).messages

    assert message["content"] == []
    assert "details" not in message


def test_a_branch_summary_is_in_the_context_unless_it_is_empty():
    tree = grow("a>b", a=BranchSummary(summary="tried", abandoned_leaf="z"), b=BranchSummary(summary=""))

    [message] = build_last_context(tree).messages

    assert message == {"role": "branchSummary", "summary": "tried", "fromId": "z", "timestamp": TIME_MS}


def test_settings_and_bookkeeping_make_no_messages():
    tree = grow(
        "a>b>c>d>e>f>g",
        b=ModelChange(model="m"),
        c=Custom(custom_type="x"),
        d=BranchPoint(name="side"),
        e=AgentAction(action="spawn", agent="a"),
        f=Label(target="a", text="x"),
        g={"type": "from_the_future"},
    )

    assert get_sources(tree) == "a"


# Compaction and resets


@pytest.mark.parametrize(
    ("first_kept", "speak"), [("b", "Kbcd"), ("c", "Kcd"), ("K", "Kd"), ("gone", "Kd"), (None, "Kd"), ("d", "Kd")]
)
def test_a_compaction_comes_first_then_the_kept_entries_then_later_ones(first_kept, speak):
    tree = grow("a>b>c>K>d", K=make_compaction(first_kept, tokens_before=99))

    assert get_sources(tree) == speak
    assert build_last_context(tree).messages[0] == {
        "role": "compactionSummary",
        "summary": "S",
        "tokensBefore": 99,
        "timestamp": TIME_MS,
    }


def test_an_older_compaction_in_the_kept_range_is_ignored():
    assert get_sources(grow("a>J>b>K>c", J=make_compaction("a"), K=make_compaction("a"))) == "Kabc"


def test_a_stored_system_message_comes_before_the_summary_and_replaces_older_ones():
    tree = grow(
        "a>b>K>c", a=say("system", "old"), K=make_compaction("a", system_message={"role": "system", "content": "new"})
    )

    seen = build_last_context(tree)

    assert get_roles(seen.messages) == ["system", "compactionSummary", "user", "user"]
    assert seen.messages[0]["content"] == "new"
    assert seen.sources == ("K", "K", "b", "c")


def test_a_system_message_after_the_compaction_is_in_the_context():
    assert get_sources(grow("a>K>b", K=make_compaction(), b=say("system", "x"))) == "Kb"


def test_nothing_before_a_reset_reaches_the_model():
    assert get_sources(grow("a>R>b", R=ResetBoundary())) == "b"


def test_the_later_of_reset_and_compaction_counts():
    assert get_sources(grow("a>K>b>R>c", K=make_compaction("a"), R=ResetBoundary())) == "c"
    assert get_sources(grow("a>R>b>K>c", R=ResetBoundary(), K=make_compaction("a"))) == "Kbc"


def test_a_malformed_compaction_keeps_nothing():
    assert get_sources(grow("a>K>b", K={"type": "compaction", "summary": 5, "firstKeptEntryId": [1]})) == "Kb"


# Edits


def get_contents(tree, leaf=None):
    return [message.get("content") for message in build_last_context(tree, leaf).messages]


def make_edit(target, content=None):
    return ContextEdit(target=target, replacement=None if content is None else {"content": content})


def test_an_edit_replaces_the_content_of_its_target_from_there_on():
    tree = grow("a>b>E", E=make_edit("a", "new"))

    assert get_contents(tree, "E") == ["new", "b"]
    assert get_contents(tree, "b") == ["a", "b"]


def test_an_edit_without_replacement_removes_its_target():
    tree = grow(
        "a>b>c>K>D>E>F",
        a=CustomMessage(custom_type="x", content="x"),
        b=BranchSummary(summary="x"),
        K=make_compaction("a"),
        D=make_edit("a"),
        E=make_edit("b"),
        F=make_edit("K"),
    )

    assert get_sources(tree) == "c"


def test_the_last_edit_counts():
    assert get_contents(grow("a>D>E", D=make_edit("a"), E=make_edit("a", "back"))) == ["back"]


@pytest.mark.parametrize("body", [assistant("x"), tool_result("c1", "read", "x")])
def test_replacement_text_of_a_turn_or_a_result_becomes_a_block(body):
    assert get_contents(grow("a>E", a=body, E=make_edit("a", "new"))) == [[{"type": "text", "text": "new"}]]


def test_an_edit_without_content_empties_its_target():
    assert get_contents(grow("a>E", E=ContextEdit(target="a", replacement={}))) == [[]]


def test_entries_that_cannot_be_edited_stay_unchanged():
    tree = grow(
        "a>b>E>F",
        a=say("bashExecution", command="ls"),
        b=make_compaction(),
        E=make_edit("b", "new"),
        F=make_edit("a", "new"),
    )

    assert get_contents(tree) == [None]
    assert get_contents(grow("a>E", a=say("system", "x"), E=make_edit("a", "new"))) == ["x"]


def test_an_edit_applies_until_it_is_compacted():
    assert get_contents(grow("a>E>K", E=make_edit("a", "new"), K=make_compaction("a"))) == [None, "new"]
    assert get_contents(grow("a>E>K>b", E=make_edit("b", "new"), K=make_compaction("K"))) == [None, "b"]


# State


def read_last_state(shape="a", **bodies):
    return build_last_context(grow(shape, **bodies)).state


def test_the_model_is_the_last_one_set_or_the_last_that_answered():
    answered = assistant("x", provider="p1", model="m1")

    assert read_last_state("a>b", a=ModelChange(provider="p", model="m"), b=answered).model_wire == {
        "provider": "p1",
        "modelId": "m1",
    }
    assert read_last_state("a>b", a=answered, b=ModelChange(provider="p", model="m")).model == "m"
    assert read_last_state("a>b", a=answered, b=say("assistant", "x")).model == "m1"


@pytest.mark.parametrize(("role", "model"), [(None, "new"), ("default", "new"), ("smol", "old"), ("fallback", "old")])
def test_only_the_default_role_names_the_model_of_the_conversation(role, model):
    assert read_last_state("a>b", a=ModelChange(model="old"), b=ModelChange(model="new", role=role)).model == model


def test_a_model_change_without_a_model_changes_nothing():
    assert read_last_state("a>b", a=ModelChange(model="m"), b=ModelChange(provider="p")).model == "m"


def test_the_thinking_level_is_off_until_it_is_set_and_when_it_is_null():
    assert read_last_state().thinking_level == "off"
    assert read_last_state("a>b", a=ThinkingLevelChange("high")).thinking_level == "high"
    assert read_last_state("a>b", a=ThinkingLevelChange("high"), b=ThinkingLevelChange(None)).thinking_level == "off"


def test_a_mode_stays_until_it_is_cleared():
    plan = ModeChange(mode="plan", data={"step": 1})

    assert (read_last_state("a", a=plan).mode, read_last_state("a", a=plan).mode_data) == ("plan", {"step": 1})
    assert (read_last_state("a>b", a=plan, b=ModeChange(mode="none", data=2)).mode_data) is None
    assert read_last_state("a>b", a=plan, b=ModeChange(mode="none")).mode is None


def test_injected_rules_are_collected_once_each():
    rules = {"a": RuleInjection(("r1", "r2")), "b": RuleInjection(("r2", "r3"))}

    assert read_last_state("a>b", **rules).rules == ("r1", "r2", "r3")


def test_state_survives_compactions_and_resets():
    held = read_last_state("a>b>R", a=ModelChange(model="m"), b=make_compaction(), R=ResetBoundary())

    assert held.model == "m"


def test_a_compaction_with_state_replaces_all_earlier_state():
    wire = State(provider="p", model="m", thinking_level="low", mode="plan", mode_data=1, rules=("r1",)).to_wire()
    settings = {"a": ModelChange(model="other"), "b": RuleInjection(("r0",)), "d": RuleInjection(("r1", "r2"))}

    held = read_last_state("a>b>K>d", K=make_compaction(state=wire), **settings)

    assert held == State(provider="p", model="m", thinking_level="low", mode="plan", mode_data=1, rules=("r1", "r2"))


@pytest.mark.parametrize(
    "wire", [{}, {"model": 5, "thinkingLevel": [], "mode": 1, "rules": "odd"}, {"model": {"modelId": 1}}]
)
def test_invalid_state_in_a_compaction_is_ignored(wire):
    assert read_last_state("a>K", a=ModelChange(model="m"), K=make_compaction(state=wire)) == State()


def test_a_model_without_a_provider_stays_without_one():
    alone = State(model="m")

    assert read_last_state("K", K=make_compaction(state=alone.to_wire())) == alone


def test_rules_in_state_that_are_not_text_are_ignored():
    assert read_last_state("K", K=make_compaction(state={"rules": ["r1", 5]})).rules == ("r1",)


def test_state_is_written_without_unset_fields():
    assert State().to_wire() == {"model": None, "thinkingLevel": "off"}


@pytest.mark.parametrize("wire", [State(provider="p", model="m").to_wire(), State().to_wire(), {}])
def test_the_search_for_the_model_stops_at_a_compaction_with_state(wire):
    tree = grow("a>K>b", a=ModelChange(provider="old", model="old"), K=make_compaction(state=wire))
    held = build_last_context(tree).state

    assert find_model_above(tree.walk_up("b")) == (held.provider, held.model)
    assert held.model != "old"


# Folding system messages


def test_without_system_messages_there_is_nothing_to_fold():
    assert fold_system([{"role": "user", "content": "x"}]) is None


def test_system_messages_are_folded_into_one():
    a, b, c = ({"name": name} for name in "abc")
    first = {"role": "system", "content": "one", "sections": {"s": "1", "t": "2"}, "toolsAdded": [a, b]}
    then = {
        "role": "system",
        "content": "two",
        "sections": {"s": None, "u": "3"},
        "toolsRemoved": [{"name": "a"}, "odd"],
        "toolsAdded": [c, {**b, "v": 2}],
    }

    folded = fold_system([first, {"role": "user", "content": "x"}, then])

    assert folded == {
        "role": "system",
        "content": "one\n\ntwo",
        "sections": {"t": "2", "u": "3"},
        "toolsAdded": [c, {"name": "b", "v": 2}],
    }


def test_folding_plain_or_malformed_system_messages_gives_plain_text():
    odd = {"role": "system", "content": "", "sections": "odd", "toolsAdded": "odd"}

    assert fold_system([{"role": "system", "content": "x"}, odd]) == {"role": "system", "content": "x"}


# Requests


def build_llm_request(shape, **bodies):
    return build_last_context(grow(shape, **bodies)).to_llm()


def get_texts(messages):
    return [message["content"][0]["text"] if get_answered_call(message) else message["role"] for message in messages]


@pytest.mark.parametrize(
    ("shape", "bodies", "awaits"),
    [
        ("a", {"a": user("Why?")}, True),
        ("a>b", {"a": user("Why?"), "b": assistant("Because.")}, False),
        ("a>b>c", {"a": user("Why?"), "b": make_calls("c1"), "c": make_result("c1", "one")}, True),
        ("a>b", {"a": user("Why?"), "b": make_calls("c1")}, True),  # with a placeholder result
        ("a>b", {"a": user("Why?"), "b": assistant("Be", stop_reason="aborted")}, True),
    ],
)
def test_a_context_awaits_an_answer_unless_the_assistant_spoke_last(shape, bodies, awaits):
    assert build_last_context(grow(shape, **bodies)).awaits_answer is awaits


def test_an_empty_context_awaits_no_answer():
    assert not build_context(grow("a"), None).awaits_answer


def test_an_unanswered_call_gets_an_error_placeholder():
    [_, made_up, after] = build_llm_request("a>b", a=make_calls("c1"))

    assert made_up == {
        "role": "toolResult",
        "toolCallId": "c1",
        "toolName": "read",
        "content": [{"type": "text", "text": NO_RESULT}],
        "isError": True,
    }
    assert after["role"] == "user"


def test_a_placeholder_result_has_the_timestamp_of_its_call():
    [_, made_up] = build_llm_request("a", a=say("assistant", [tool_call("c1", "read", {})], timestamp=7))

    assert made_up["timestamp"] == 7


def test_results_directly_follow_their_turn_in_the_order_of_the_calls():
    sent = build_llm_request(
        "a>b>c>d", a=make_calls("c1", "c2"), b=make_result("c2", "two"), d=make_result("c1", "one")
    )

    assert get_texts(sent) == ["assistant", "one", "two", "user"]


def test_a_result_whose_call_is_not_in_the_context_is_not_sent():
    assert build_llm_request("a>K>b", a=make_calls("c1"), K=make_compaction("K"), b=make_result("c1"))[1:] == []


def test_a_result_without_a_call_id_is_sent_as_a_user_message():
    [sent] = build_llm_request("a", a=say("toolResult", "42", toolName="calc", timestamp=7))

    assert sent == {"role": "user", "content": [{"type": "text", "text": "Output of calc:\n42"}], "timestamp": 7}
    [sent] = build_llm_request("a", a=say("toolResult", "42"))
    assert sent == {"role": "user", "content": [{"type": "text", "text": "Output of a tool:\n42"}]}


def test_a_second_result_for_one_call_is_not_sent():
    assert get_texts(
        build_llm_request("a>b>c", a=make_calls("c1"), b=make_result("c1", "one"), c=make_result("c1", "two"))
    ) == [
        "assistant",
        "one",
    ]


def test_a_reused_call_id_is_answered_by_the_result_after_it():
    sent = build_llm_request("a>b>c>d>e", a=make_calls("c1"), c=make_calls("c1"), d=make_result("c1", "second"))

    assert get_texts(sent) == ["assistant", NO_RESULT, "user", "assistant", "second", "user"]


def test_a_turn_may_call_twice_with_one_id():
    sent = build_llm_request(
        "a>b>c", a=make_calls("c1", "c1", "c1"), b=make_result("c1", "one"), c=make_result("c1", "two")
    )

    assert get_texts(sent) == ["assistant", "one", "two", NO_RESULT]


def test_a_result_that_comes_before_its_call_does_not_answer_it():
    assert get_texts(build_llm_request("a>b", a=make_result("c1", "early"), b=make_calls("c1"))) == [
        "assistant",
        NO_RESULT,
    ]


@pytest.mark.parametrize("stop", ["error", "aborted"])
def test_failed_turns_are_left_out_of_requests_with_their_results(stop):
    bodies = {"b": make_calls("c1", stop=stop), "c": make_result("c1")}

    assert get_roles(build_llm_request("a>b>c>d", **bodies)) == ["user", "user"]
    assert get_roles(build_last_context(grow("a>b>c>d", **bodies)).convert_messages()) == [
        "user",
        "assistant",
        "toolResult",
        "user",
    ]


def test_a_retried_turn_with_the_same_call_id_has_its_own_result():
    sent = build_llm_request(
        "a>b>c>d",
        a=make_calls("c1", stop="error"),
        b=make_result("c1", "failed"),
        c=make_calls("c1"),
        d=make_result("c1", "good"),
    )

    assert get_texts(sent) == ["assistant", "good"]


def test_an_edit_that_removes_a_call_removes_its_result():
    assert get_roles(
        build_llm_request("a>b>E", a=make_calls("c1"), b=make_result("c1"), E=make_edit("a", "never mind"))
    ) == ["assistant"]


def test_tokens_are_those_of_the_request():
    seen = build_last_context(grow("a>b", a=user("1234"), b=make_calls("c1")))

    assert seen.tokens() == 1 + estimate_tokens(seen.messages[1]) + -(-len(NO_RESULT) // 4)


# Explaining


def test_an_explanation_states_in_which_form_an_entry_reaches_the_model():
    tree = grow(
        "a>b>c>d>e>E",
        b=CustomMessage(custom_type="x", content="x"),
        c=make_calls("c1"),
        d=say("developer", "x"),
        e=user("typo"),
        E=make_edit("e", "fixed"),
    )

    assert explain_reasons(tree) == {
        "a": "as it is",
        "b": "as user",
        "c": "as it is, with a placeholder for a missing tool result",
        "d": "as system",
        "e": "as edited",
        "E": "an edit of another entry",
    }


def test_an_explanation_states_why_an_entry_does_not_reach_the_model():
    tree = grow(
        "a>b>c>d>e>f>g>h>E>i",
        a=make_calls("c1", stop="aborted"),
        b=make_result("c1"),
        c=make_result("lost"),
        d=say("bashExecution", command="x", excludeFromContext=True),
        e=say("martian", "x"),
        f=BranchSummary(summary=""),
        g=Label(target="a", text="x"),
        E=make_edit("h"),
        i={"type": "from_the_future"},
    )

    assert explain_reasons(tree) == {
        "a": "the turn ended with aborted",
        "b": "the turn of its tool call failed",
        "c": "its tool call is not in the context",
        "d": "a shell command excluded from the context",
        "e": "messages of role 'martian' are not sent",
        "f": "an empty summary",
        "g": "an annotation",
        "h": "left out by a context edit",
        "E": "an edit of another entry",
        "i": "entries of type 'from_the_future' are not sent",
    }


def test_a_second_result_is_distinguished_from_an_orphaned_one():
    tree = grow("a>b>c", a=make_calls("c1"), b=make_result("c1"), c=make_result("c1"))

    assert explain_reasons(tree)["c"] == "its tool call is answered by another result"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (Custom(custom_type="x"), "state of an extension"),
        (BranchPoint(name="x"), "marks the start of a branch"),
        (AgentAction(action="spawn", agent="a"), "a record of what an agent did"),
        (ModelChange(model="m"), "a setting"),
        (ThinkingLevelChange("high"), "a setting"),
        (ModeChange(mode="plan"), "a setting"),
        (RuleInjection(("r",)), "a setting"),
    ],
)
def test_an_explanation_names_the_kind_of_an_unsent_entry(body, reason):
    assert explain_reasons(grow("a", a=body)) == {"a": reason}


def test_an_entry_names_the_compaction_that_represents_it():
    tree = grow("a>J>s>b>K>c", J=make_compaction(), s=say("system", "x"), K=make_compaction("J"))

    explained = {item.entry.id: (item.reason, item.represented_by) for item in explain(tree, "c").entries}

    assert explained == {
        "a": ("summarized by a compaction", "K"),
        "J": ("an older compaction", "K"),
        "s": ("an older system message", "K"),
        "b": ("as it is", None),
        "K": ("as user", None),
        "c": ("as it is", None),
    }


def test_an_entry_before_a_reset_names_the_reset():
    assert explain_reasons(grow("a>R>b", R=ResetBoundary())) == {
        "a": "before the reset at R",
        "R": "before the reset at R",
        "b": "as it is",
    }


def test_an_edit_without_effect_is_not_explained_as_an_edit():
    assert explain_reasons(grow("a>E", a=say("bashExecution", command="ls"), E=make_edit("a", "x")))["a"] == "as user"


def test_an_explanation_is_encoded_entry_by_entry():
    tree = grow("a>l", a=user("one"), l=Label(target="a", text="here"))

    one, two = encode_explanation(explain(tree, "l"))

    assert one == {
        "id": "a", "type": "message", "role": "user", "reaches": True, "reason": "as it is", "omitted": [],
        "representedBy": None, "tokens": 1,
    }  # fmt: skip
    assert (two["type"], two["role"], two["reaches"]) == ("label", None, False)


def test_any_entry_can_be_explained_without_moving_there():
    tree = grow("a>b>c")

    assert [item.entry.id for item in explain(tree, "b").entries] == ["a", "b"]
    assert explain(tree, None).entries == ()
    assert explain(tree, None).tokens == 0


# Properties


def assert_paired(messages):
    """Assert that every turn is followed by exactly the results of its calls."""
    remaining = list(messages)
    while remaining:
        message = remaining.pop(0)
        assert get_answered_call(message) is None, "a result without its call"
        for call in get_tool_calls(message):
            assert remaining, "a call without its result"
            assert get_answered_call(remaining.pop(0)) == call.id


@given(entry_lists(), st.data())
def test_every_call_has_a_result_and_every_result_a_call(entries, data):
    messages = build_context(Tree(entries), data.draw(places(entries))).to_llm()

    assert_paired(messages)
    assert not any(is_failed_turn(message) for message in messages)


@given(damaged_entry_lists(), st.data())
def test_every_call_has_a_result_in_damaged_sessions_too(entries, data):
    messages = build_context(Tree(entries), data.draw(places(entries))).to_llm()

    assert_paired(messages)
    assert not any(is_failed_turn(message) for message in messages)


@given(entry_lists(), st.data())
def test_an_entry_reaches_the_model_exactly_if_the_request_contains_it(entries, data):
    tree, leaf = Tree(entries), data.draw(places(entries))

    explanation = explain(tree, leaf)

    heard = dump_messages(explanation.context.to_llm())
    assert {item.entry.id for item in explanation.entries if item.reaches_model} == {
        entry.id for entry in tree.path(leaf) if mark(entry.id) in heard
    }


@given(damaged_entry_lists(), st.data())
def test_an_explanation_covers_the_path_and_adds_up_to_the_request(entries, data):
    tree, leaf = Tree(entries), data.draw(places(entries))

    explanation = explain(tree, leaf)

    assert [item.entry for item in explanation.entries] == tree.path(leaf)
    assert explanation.context == build_context(tree, leaf)
    assert explanation.tokens == explanation.context.tokens()
    assert all(item.reaches_model or item.tokens == 0 for item in explanation.entries)


@given(damaged_entry_lists(), st.data())
def test_state_survives_a_round_trip(entries, data):
    held = build_context(Tree(entries), data.draw(places(entries))).state

    again = build_context(grow("K", K=make_compaction(state=held.to_wire())), "K").state

    assert again == held


@given(damaged_entry_lists(), st.data())
def test_the_search_for_the_model_finds_the_one_in_effect(entries, data):
    tree, leaf = Tree(entries), data.draw(places(entries))

    held = build_context(tree, leaf).state

    assert find_model_above(tree.walk_up(leaf)) == (held.provider, held.model)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 99)), max_size=30), st.booleans())
def test_entries_before_a_compaction_are_not_needed_for_the_context(steps: list[tuple[int, int]], stated: bool) -> None:
    session = memory()
    for kind, number in steps:
        path = session.head.path()
        anchor = path[number % len(path)].id if path and number % 3 else None
        spoken = [entry.id for entry in path if entry.type == "message"]
        match kind:
            case 0 | 1:
                session.append(user(f"question {number}"))
            case 2:
                session.append(assistant(f"answer {number}", provider="p", model=f"m{number % 3}"))
            case 3:
                session.append(ThinkingLevelChange(["low", "high"][number % 2]))
            case 4 | 5:
                state = {"model": None, "thinkingLevel": "low"} if stated and number % 2 else None
                session.append(Compaction(summary=f"summary {number}", first_kept=anchor, state=state))
            case 6 if spoken:
                session.append(ContextEdit(target=spoken[number % len(spoken)], replacement=None))
            case _:
                session.append(ResetBoundary())

    tree, leaf = session.tree, session.head.leaf
    assert build_context(tree, leaf) == build_path_context(tree.path(leaf))


def test_a_long_history_before_a_compaction_is_not_read() -> None:
    session = memory()
    session.extend([user(str(number)) for number in range(100)])
    kept = session.append(user("kept"))
    session.append(Compaction(summary="s", first_kept=kept.id))

    assert [entry.type for entry in find_context_path(session.tree, session.head.leaf)] == ["message", "compaction"]


@given(damaged_entry_lists(), st.data())
def test_the_model_above_an_entry_is_the_one_in_effect(entries, data):
    tree = Tree(entries)
    place = data.draw(places(entries))
    state = read_state(tree.path(place))
    assert find_model_above(tree.walk_up(place)) == (state.provider, state.model)


# Contexts that grow


class CountingTree(Tree):
    """Counts the entries that are visited on the way up."""

    visited = 0

    def walk_up(self, id):
        for entry in super().walk_up(id):
            self.visited += 1
            yield entry


def assert_follows(context, tree, leaf):
    context.follow(tree, leaf)

    whole = build_context(tree, leaf)
    assert context.get_messages() == whole.to_llm()
    assert context.state == whole.state


@given(damaged_entry_lists(), st.data())
def test_a_growing_context_equals_one_built_from_scratch(entries, data):
    tree, context = Tree(), GrowingContext()
    for number, entry in enumerate(entries, 1):
        tree.add(entry)
        if data.draw(st.booleans()):
            assert_follows(context, tree, data.draw(places(entries[:number])))
        else:
            assert_follows(context, tree, entry.id)


def test_a_growing_context_reads_only_what_is_new():
    bodies = {"a": user("x"), "b": make_calls("1", "2"), "c": make_result("2"), "d": make_result("1"), "e": user("y")}
    entries = list(grow("a>b>c>d>e", **bodies))
    tree, context = CountingTree(), GrowingContext()
    visits = []
    for entry in entries:
        tree.add(entry)
        before = tree.visited
        context.follow(tree, entry.id)
        visits.append(tree.visited - before)

    assert visits == [1, 2, 2, 2, 2]
    assert context.get_messages() == build_context(tree, "e").to_llm()


def test_a_list_of_messages_does_not_grow_with_its_context():
    tree, context = grow("a>b", a=make_calls("1"), b=make_result("1")), GrowingContext()
    context.follow(tree, "a")
    before = context.get_messages()

    context.follow(tree, "b")

    assert [message["content"][0].get("text") for message in before[1:]] == [NO_RESULT]
    assert context.get_messages() == build_context(tree, "b").to_llm()


@pytest.mark.parametrize(
    "body",
    [
        make_edit("b", "new"),
        make_edit("d", "new"),
        make_compaction("b"),
        ResetBoundary(),
        ModeChange(mode="plan"),
        RuleInjection(rules=("r",)),
        CustomMessage(custom_type="note", content="see", display=False),
        BranchSummary(summary="s", abandoned_leaf="b"),
        ModelChange(provider="p", model="m"),
        ModelChange(provider="p", model="m", role="smol"),
        ThinkingLevelChange("high"),
        Label(target="a", text="x"),
        assistant("x", stop_reason="error"),
        {"type": "message", "message": {"role": "toolResult", "toolCallId": "", "content": []}},
        {"type": "message", "message": {"role": "assistant", "content": [{"type": "toolCall", "id": ""}]}},
    ],
)
def test_a_growing_context_follows_every_type_of_entry(body):
    tree, context = grow("a>b>c>d>e", b=make_calls("1"), c=body, d=user("y"), e=make_result("1")), GrowingContext()

    for leaf in "abcde":
        assert_follows(context, tree, leaf)


def test_a_growing_context_is_rebuilt_on_another_path_or_tree():
    tree, context = grow("a>b>c a>d", b=user("b"), d=user("d")), GrowingContext()
    for leaf in ("c", "d", "a", None, "c"):
        assert_follows(context, tree, leaf)

    assert_follows(context, grow("a>b>c", b=user("other")), "c")
    with pytest.raises(NotFound):
        context.follow(tree, "missing")
    assert_follows(context, tree, "c")


def test_a_cleared_context_is_rebuilt():
    tree, context = grow("a>b", b=ThinkingLevelChange("high")), GrowingContext()
    context.follow(tree, "b")

    context.clear()

    assert (context.get_messages(), context.state) == ([], State())
    assert_follows(context, tree, "b")
