"""Parsing, finding, completing and refusing command lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.session import Session
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.registry import (
    Argument,
    Command,
    CommandOutcome,
    CommandRegistry,
    Completion,
    WordReader,
    get_builtin_commands,
    parse_line,
    quote_word,
)
from tests.slash_commands.conftest import MakeController, ScriptedModels, make_scripted_model, run, talk

ALL = (
    "/tree /fork /clone /branch /branch-here /branches /switch /pop /undo /retry /clear /label /name /merge "
    "/cherry-pick /rebase /compact /uncompact /context /cost /diff /compare /export /export-branch /search /resume "
    "/new /session /model /thinking /permissions /plan /mcp /copy /save-unsaved /reload /help /quit"
)


async def _echo(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    return CommandOutcome(text="|".join(args))


def _make_command(*arguments: Argument) -> Command:
    return Command(name="echo", help="Say it again", run=_echo, arguments=arguments)


def test_every_command_has_a_help_sentence() -> None:
    commands = get_builtin_commands()

    assert sorted(f"/{command.name}" for command in commands) == sorted(ALL.split())
    assert all(command.help and not command.help.endswith(".") for command in commands)


def test_a_line_that_starts_with_a_path_is_not_a_command() -> None:
    assert parse_line("/usr/bin is full") is None
    assert parse_line("what does /tree do") is None
    assert parse_line("/branch-here  a b ") == ("branch-here", "a b")


def test_quotes_group_words_and_an_apostrophe_is_a_letter() -> None:
    words = _make_command(Argument(name="WORD", repeated=True))
    text = _make_command(Argument(name="WORD"), Argument(name="TEXT", rest=True))

    assert words.parse("""a "b c" 'd e' don't""") == ["a", "b c", "d e", "don't"]
    assert text.parse("""a don't  "forget" it""") == ["a", """don't  "forget" it"""]


def test_empty_quotes_are_an_argument() -> None:
    command = _make_command(Argument(name="TEXT"), Argument(name="PLACE"))

    assert command.parse('"" root') == ["", "root"]
    assert command.parse("''") == [""]
    assert command.parse(" ") == []


@pytest.mark.parametrize("word", ["plain", "two ways", "a\tb", "don't", '"said"', "'tis", 'the "other" one', ""])
def test_a_quoted_word_is_parsed_back(word: str) -> None:
    assert list(WordReader(f"a {quote_word(word)} b")) == ["a", word, "b"]


def test_too_many_or_too_few_arguments_are_refused_with_the_usage() -> None:
    command = _make_command(Argument(name="PLACE", required=True), Argument(name="FILE"))

    with pytest.raises(InvalidOperation, match=r"too many arguments for /echo; usage: /echo PLACE \[FILE\]"):
        command.parse("a b c")
    with pytest.raises(InvalidOperation, match="missing arguments for /echo"):
        command.parse(" ")


async def test_an_unknown_command_suggests_similar_names(make_controller: MakeController) -> None:
    with pytest.raises(NotFound, match=r"command '/brnch' not found; similar: /branch"):
        await run(make_controller(), "/brnch")
    with pytest.raises(NotFound, match="/help lists all commands"):
        await run(make_controller(), "/zzzzz")


def test_a_duplicate_command_name_is_refused_with_its_source() -> None:
    registry = CommandRegistry(get_builtin_commands())

    with pytest.raises(InvalidOperation, match="/tree already exists, from sessiontree"):
        registry.add(Command(name="tree", help="", run=_echo))
    with pytest.raises(InvalidOperation, match="is not a valid command name"):
        registry.add(Command(name="a b", help="", run=_echo))


async def test_a_removed_command_is_not_found(make_controller: MakeController) -> None:
    at = make_controller()
    off = at.commands.add(_make_command(Argument(name="WORD", repeated=True)))
    assert await run(at, "/echo a b") == "a|b"

    off()

    with pytest.raises(NotFound):
        await run(at, "/echo a b")


def test_names_of_commands_and_their_arguments_are_completed(make_controller: MakeController, session: Session) -> None:
    (first, *_) = talk(session, "hello", "hi")
    session.label(first, "start")
    session.create_branch("cache", current=False)
    at = make_controller(models=ScriptedModels(large=make_scripted_model("large")))

    def choices(line: str) -> tuple[str, ...]:
        return at.commands.complete(at, line).choices

    assert choices("/bra") == ("/branch-here", "/branches", "/branch")
    assert choices("/switch ca") == ("cache",)
    assert choices("/tree st") == ("start",)
    assert choices(f"/tree {first[:6]}") == (first,)
    assert choices("/fork ") == (first,)
    assert choices("/label start ca") == ("cache",)
    assert choices("/cherry-pick start ca") == ("cache",)
    assert choices("/model scripted:") == ("scripted:large",)
    assert choices("/thinking h") == ("high",)
    assert choices("/resume a") == ("auth",)
    assert choices("/help tr") == ("tree",)
    assert choices("/undo x") == ()
    assert choices("hello /tr") == ()
    assert at.commands.complete(at, "/switch ca").start == len("/switch ")


async def test_a_completed_word_is_one_argument(make_controller: MakeController, session: Session) -> None:
    (first, *_) = talk(session, "hello", "hi")
    session.label(first, "two ways")
    session.label(session.heads.leaf or "", """both "a" and 'b' of them""")
    st.create("two nights", cwd=session.cwd).close()
    at = make_controller()

    for line in ("/tree tw", '/tree "tw', '/tree "two w', "/tree 'two w"):
        assert at.commands.complete(at, line) == Completion(start=len("/tree "), choices=('"two ways"',))
    assert at.commands.complete(at, '/label "two ways" "two').start == len('/label "two ways" ')
    assert at.commands.complete(at, '/tree "two ways"').choices == ()
    assert at.commands.complete(at, "/tree bo").choices == ()  # it cannot be typed
    assert at.commands.complete(at, "/resume tw").choices == ("two nights",)  # it takes the rest of the line
    await run(at, '/tree "two ways"')
    assert session.heads.leaf is None
    await run(at, "/resume two nights")
    assert at.session.name == "two nights"


def test_files_are_completed_below_the_folder_of_the_session(make_controller: MakeController, session: Session) -> None:
    import os

    os.makedirs(os.path.join(session.cwd, "old", "deep"))
    at = make_controller()

    assert at.commands.complete(at, "/export o").choices == ("old/",)
    assert at.commands.complete(at, "/export old/").choices == ("old/deep/",)
    assert at.commands.complete(at, "/export nowhere/").choices == ()


PAGE = Path(__file__).parents[2] / "docs" / "command.md"


def test_every_command_is_documented_with_its_usage() -> None:
    text = PAGE.read_text().replace("\\|", "|")

    for command in get_builtin_commands():
        assert f"`{command.usage}`" in text


def test_help_lists_every_command_once() -> None:
    names = [command.name for command in get_builtin_commands()]

    assert len(names) == len(set(names)) == 38
