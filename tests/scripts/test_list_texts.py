"""The list of the texts that a front end shows."""

from __future__ import annotations

import pytest
from scripts.list_texts import list_texts

TEXTS = {
    "app": ["Allow for this session", "Press {}", "open the tree", "Type a message, / for commands, ! for the shell"],
    "page": ["Redact secrets", "Result of {}", "No messages yet. Write the first one below.", "Open swarm"],
}


@pytest.mark.parametrize("front_end", TEXTS)
def test_the_list_has_the_texts_for_people_and_no_code(front_end: str) -> None:
    lines = list(list_texts(front_end))
    texts = [line.split(": ", 1)[1] for line in lines]

    assert [text for text in TEXTS[front_end] if text not in texts] == []
    assert [line for line in lines if "=>" in line or "$background" in line or "className" in line] == []
    assert lines == sorted(lines, key=lambda line: (line.split(":")[0], int(line.split(":")[1])))
