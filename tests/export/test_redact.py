"""Redaction: planted secrets are gone from every field, and the session still reads."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st_

import sessiontree as st
from sessiontree.errors import InvalidOperation
from sessiontree.export import FORMS, Redactor, export
from sessiontree.export.snapshot import read_snapshot
from sessiontree.format.codec import read_object
from tests.export.hostile import hostile_lines
from tests.export.sessions import SECRET, story

PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAA\nAAAA\n-----END OPENSSH PRIVATE KEY-----"
SHAPES = {
    "token": [
        SECRET,
        "sk-proj-" + "aB3_" * 10,
        "ghp_" + "a1B2" * 9,
        "github_pat_11ABCDE_" + "x" * 30,
        "glpat-" + "a1B2c" * 5,
        "xoxb-1234567890-abcdefABCDEF",
        "AKIA" + "Q3EGRABCDEFGHIJK",
        "AIza" + "SyA1_b" * 6,
        "hf_" + "abcdEF" * 6,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    ],
    "private key": [PEM],
    "named secret": ["password=hunter2hunter2", "API_KEY: 0123456789abcdef", '"client_secret": "very-secret-value"'],
    "password in an address": ["postgres://ada:lovelace1815@db.example.org/main"],
    "home path": ["/home/ada/project", "/Users/ada/project", "C:\\Users\\ada\\project", "/root/notes"],
}
PRIVATE = ["lovelace1815", "hunter2hunter2", "0123456789abcdef", "very-secret-value", "b3BlbnNzaC1rZXktdjEAAAA"]


def gone(text: str, shape: str) -> bool:
    """Whether what is private in a shape is no longer in the text."""
    hidden = next((word for word in PRIVATE if word in shape), shape)
    return hidden not in text and "ada" not in text.replace("metadata", "")


@pytest.mark.parametrize(("what", "shape"), [(what, shape) for what, shapes in SHAPES.items() for shape in shapes])
def test_each_shape_of_secret_is_taken_out_and_counted_by_what_it_is(what: str, shape: str) -> None:
    redactor = Redactor()

    assert gone(redactor.text(f"before {shape} after"), shape)
    assert redactor.text(shape) != shape
    assert what in redactor.report.counts


@pytest.mark.parametrize(
    "text", ["the tokens are few", "src/home/page.py", "https://example.org/home/page", "sk-8", "a secret garden"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor().text(text) == text


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_in_any_field_of_any_entry_is_in_no_form_of_the_export(form: str) -> None:
    lines = hostile_lines([SECRET])

    exported = export(lines, form, redactor=Redactor())

    assert SECRET in b"".join(lines).decode()
    assert SECRET.encode() not in exported.content
    assert exported.report is not None
    assert exported.report.counts["token"] > 100


@pytest.mark.parametrize("shape", [shape for shapes in SHAPES.values() for shape in shapes])
def test_every_shape_is_gone_from_every_field(shape: str) -> None:
    lines = hostile_lines([shape])

    text = export(lines, "jsonl", redactor=Redactor()).content.decode()

    assert gone(text.replace("\\\\", "\\"), shape)


REPEATED = (
    *(
        "-----BEGIN PRIVATE KEY",
        "-----BEGIN " + " " * 50,
        "eyJaaaaaaaa-",
        "eyJaaaaaaaa.",
        "SG.aaaaaaaaaaaaaaaa-",
        "sk-",
    ),
    *(
        "://a:b",
        "://",
        "x@",
        "password ",
        "password= ",
        "password='",
        "password: ",
        'password=\\"a',
        "secret_",
        "token=",
    ),
    *("Authorization: a", "cookie:", "password: |\n  ", "<password>", "curl -u ", "--token", "api_", "key", "aaaa\n"),
    *("/home/", "-home-", "\\", "1.", "st_", "A", "|", "is ", " ", "ya29.aaaaaaaaaaaaaaaaaaaa-"),
)
BEGUN = {"-----BEGIN ": "PRIVATE KEY", "eyJaaaaaaaa.": "-eyJaaaaaaaa", "://": "a:", "password": " ", "C:": "\\"}
REDACTS = """
import json, resource, sys
from sessiontree.export import Redactor
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for text in json.load(sys.stdin):
    Redactor().text(text)
"""


def test_a_text_made_to_be_slow_takes_time_that_grows_with_its_length_alone() -> None:
    """Time that grows with the square of the length would be many minutes of the processor here."""
    texts = [piece * (150_000 // len(piece)) for piece in REPEATED]
    texts += [start + piece * (600_000 // len(piece)) for start, piece in BEGUN.items()]

    done = subprocess.run([sys.executable, "-c", REDACTS], input=json.dumps(texts), text=True, timeout=170)

    assert done.returncode == 0


def test_the_tree_stays_whole_when_ids_and_names_of_branches_hold_secrets() -> None:
    session = st.memory()
    session.append(st.user("one"))
    for number in range(3):
        session.create_branch(f"{SECRET}{number}", at="main")
        session.append(st.assistant(f"branch {number}"))

    whole = read_snapshot(export(session.lines(), "jsonl", redactor=Redactor()).content.split(b"\n")[:-1])

    assert len(whole.heads.heads) == 4
    assert len(set(whole.heads.heads.values())) == 4
    assert SECRET not in "".join(whole.heads.heads)
    assert not whole.problems


def test_redacted_jsonl_says_so_and_cannot_be_gone_on_with(tmp_path: Any) -> None:
    file = tmp_path / "redacted.jsonl"
    file.write_bytes(export(story().lines(), "jsonl", redactor=Redactor()).content)

    session = st.open(file)

    assert read_object(file.read_bytes().split(b"\n")[0])["redacted"] is True
    assert session.read_only is not None
    with pytest.raises(st.ReadOnly, match="redacted"):
        session.append(st.user("more"))
    with pytest.raises(st.ReadOnly, match="redacted"):
        st.fork(session)


def test_a_part_of_a_redacted_session_says_so_too() -> None:
    redacted = export(story().lines(), "jsonl", redactor=Redactor()).content.split(b"\n")[:-1]

    part = export(redacted, "jsonl", branch="cache").content.split(b"\n")[0]

    assert read_object(part)["redacted"] is True


def test_patterns_of_the_user_are_taken_out_and_words_of_the_format_stay() -> None:
    redactor = Redactor([r"(?i)dict", "message"])

    whole = read_snapshot(export(story().lines(), "jsonl", redactor=redactor).content.split(b"\n")[:-1])

    assert b"Take the dict" not in b"".join(whole.lines)
    assert any(entry.type == "message" for entry in whole.tree)
    assert redactor.report.counts["pattern 1"] > 2


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(InvalidOperation, match="no regular expression"):
        Redactor(["("])


def test_a_home_of_another_shape_is_known_when_it_is_given() -> None:
    assert Redactor(homes=["/srv/people/ada"]).text("in /srv/people/ada/work") == "in ~/work"


def test_a_line_that_cannot_be_read_is_left_out_and_counted() -> None:
    lines = [*story().lines(), b'{"broken": "' + SECRET.encode()]

    exported = export(lines, "jsonl", redactor=Redactor())

    assert SECRET.encode() not in exported.content
    assert exported.report is not None
    assert exported.report.lines_left_out == 1


def test_a_secret_hidden_behind_a_second_key_of_the_same_name_is_gone() -> None:
    raw = b'{"type":"custom","id":"x","parentId":null,"customType":"y","data":"' + SECRET.encode() + b'","data":"fine"}'

    assert SECRET.encode() not in export([story().lines()[0], raw], "jsonl", redactor=Redactor()).content


def test_lines_without_secrets_keep_their_bytes() -> None:
    lines = story().lines()

    redacted = Redactor().lines(lines)

    assert redacted[1:] == lines[1:]


words = st_.sampled_from([*PRIVATE[:3], SECRET, "fine", "/home/ada/x", "password"])
values = st_.recursive(words, lambda inner: st_.lists(inner, max_size=3) | st_.dictionaries(words, inner, max_size=3))


@given(values)
def test_however_deep_a_token_lies_it_is_found(value: Any) -> None:
    line = json.dumps({"type": "custom", "id": "x", "parentId": None, "customType": "y", "data": value}).encode()

    (redacted,) = Redactor().lines([line])

    assert SECRET.encode() not in redacted
    assert b"/home/ada" not in redacted
