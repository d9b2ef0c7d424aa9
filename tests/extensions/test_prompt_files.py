"""The front matter and the placeholders of prompt files."""

from __future__ import annotations

import pytest

from sessiontree.errors import FormatError
from sessiontree.extensions.prompt_files import build_prompt_command, parse_prompt_file


def fill_prompt(text: str, typed: str) -> str:
    return parse_prompt_file("a.md", text.encode()).fill(typed)


def test_front_matter_sets_the_description_and_the_argument_hint() -> None:
    text = (
        b'\xef\xbb\xbf---\r\ndescription: "Review: a file"\r\nargument-hint: FILE\r\nmodel: any\r\n---\r\nReview $1\r\n'
    )

    command = build_prompt_command("review", "review.md", text)

    assert command.help == "Review: a file"
    assert command.usage == "/review [FILE]"
    assert parse_prompt_file("review.md", text).text == "Review $1"


def test_front_matter_of_other_programs_may_have_lists_and_comments() -> None:
    text = b"---\n# ours\nallowed-tools:\n  - Read\n- Bash\ndescription: 'It''s a review'\n---\nReview $1"

    assert build_prompt_command("review", "review.md", text).help == "It's a review"


def test_without_a_description_the_first_line_is_the_help() -> None:
    assert build_prompt_command("a", "a.md", b"# Look at this\n\nAnd that.").help == "Look at this"


@pytest.mark.parametrize(
    ("text", "typed", "expected"),
    [
        ("$1 and $2", "a 'b c' d", "a and b c"),
        ("$1-$2-$9", "a", "a--"),
        ("all: $@ ", "a  'b c'", "all: a  'b c'"),
        ("all: $ARGUMENTS.", "a b", "all: a b."),
        ("$1 $1", "$2 x", "$2 $2"),
        ("costs $100, $0 and $ARGUMENTSX", "", "costs $100, $0 and $ARGUMENTSX"),
        ("do it", "now", "do it\n\nnow"),
        ("do it", "", "do it"),
    ],
)
def test_typed_arguments_are_filled_in_once(text: str, typed: str, expected: str) -> None:
    assert fill_prompt(text, typed) == expected.strip()


def test_lines_between_rules_later_on_are_text() -> None:
    assert fill_prompt("Hello\n---\na: b\n---\n", "") == "Hello\n---\na: b\n---"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xfe", "not valid UTF-8"),
        (b"---\nnonsense\n---\nx", "is not `key: value`"),
        (b"---\na: b\n---\n", "the prompt is empty"),
    ],
)
def test_invalid_prompt_files_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        parse_prompt_file("a.md", data)
