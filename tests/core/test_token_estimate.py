import pytest

from sessiontree.core.token_estimate import estimate_tokens


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("four", 1), ("fives", 2), ("x" * 400, 100)])
def test_four_characters_are_one_token_rounded_up(text, tokens):
    assert estimate_tokens({"role": "user", "content": text}) == tokens


def test_thinking_images_and_calls_count_too_and_unknown_blocks_do_not():
    assert estimate_tokens({"role": "assistant", "content": [{"type": "thinking", "thinking": "12345678"}]}) == 2
    assert estimate_tokens({"role": "user", "content": [{"type": "image", "data": "x" * 9999}]}) == 1200
    assert estimate_tokens({"role": "user", "content": [{"type": "hologram", "text": "12345678"}]}) == 0


def test_a_call_costs_its_name_and_its_arguments_as_compact_json():
    call = {"type": "toolCall", "id": "c", "name": "read", "arguments": {"path": "ä"}}

    assert estimate_tokens({"role": "assistant", "content": [call]}) == 4  # read{"path":"ä"} has 16 characters


def test_a_shell_command_costs_its_text_and_its_output():
    assert (
        estimate_tokens({"role": "bashExecution", "command": "1234", "output": "12345678", "content": "ignored"}) == 3
    )
    assert estimate_tokens({"role": "pythonExecution", "code": "1234"}) == 1


@pytest.mark.parametrize("role", ["compactionSummary", "branchSummary"])
def test_a_summary_costs_its_text(role):
    assert estimate_tokens({"role": role, "summary": "12345678"}) == 2


def test_a_system_message_costs_its_content_its_sections_and_its_tools():
    plain = {"role": "system", "content": "1234"}

    assert estimate_tokens(plain) == 1
    assert estimate_tokens({**plain, "sections": {"a": "1234", "gone": None}}) == 2
    assert estimate_tokens({**plain, "toolsAdded": ["12"]}) == 3  # 1234["12"] has 10 characters
    assert estimate_tokens({**plain, "sections": "odd", "toolsAdded": []}) == 1
