"""Results of conversions."""

from sessiontree.core.conversion_result import ConvertedBodies, ConvertedMessages, Omission


def test_an_omission_is_formatted_with_place_content_and_reason() -> None:
    assert str(Omission(block="image", reason="too large", entry="e1")) == "e1: image: too large"
    assert str(Omission(block="image", reason="too large", position="messages[0]")) == "messages[0]: image: too large"
    assert str(Omission(block="image", reason="too large")) == "the context: image: too large"


def test_results_start_empty() -> None:
    assert ConvertedMessages() == ConvertedBodies() == []
    assert ConvertedMessages().omitted == ConvertedBodies().omitted == []
    assert ConvertedMessages().system == ""
