"""The system prompt: the default, the instructions of user and project, or a custom one."""

from __future__ import annotations

from pathlib import Path

from sessiontree.agent.system_prompt import MAX_INSTRUCTIONS_BYTES, SystemPart, build_coding_prompt, read_instructions
from sessiontree.agent.tools import builtin_tools
from tests.agent.conftest import MakeAgent, get_scripted_model


def test_instructions_come_from_the_user_then_from_the_top_of_the_project_down(tmp_path: Path, home: Path) -> None:
    inner = tmp_path / "repo" / "src" / "part"
    inner.mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    (home / ".sessiontree").mkdir(parents=True)
    for folder, text in {
        tmp_path: "outside",
        tmp_path / "repo": "top",
        inner: "inner",
        home / ".sessiontree": "user",
    }.items():
        (folder / "AGENTS.md").write_text(text)

    assert [part.text.rpartition("\n")[2] for part in read_instructions(str(inner))] == ["user", "top", "inner"]
    assert [Path(part.name).name for part in read_instructions(str(inner))] == ["AGENTS.md"] * 3


def test_outside_a_repository_only_instructions_of_the_folder_are_read(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "AGENTS.md").write_text("above")
    assert read_instructions(str(inner)) == []

    (inner / "AGENTS.md").write_text("here")
    assert [part.name for part in read_instructions(str(inner))] == [str(inner / "AGENTS.md")]


def test_a_link_out_of_the_project_is_not_read(tmp_path: Path, home: Path) -> None:
    inner = tmp_path / "repo" / "src"
    inner.mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    (home / ".sessiontree").mkdir(parents=True)
    (tmp_path / "private").write_text("a secret")
    (tmp_path / "repo" / "CLAUDE.md").write_text("inside")
    (tmp_path / "repo" / "AGENTS.md").symlink_to("CLAUDE.md")
    (inner / "AGENTS.md").symlink_to(tmp_path / "private")
    (home / ".sessiontree" / "AGENTS.md").symlink_to(tmp_path / "private")

    users, top, refused = read_instructions(str(inner))

    assert users.text.endswith("a secret")
    assert top.text.endswith("inside")
    assert refused.text.endswith("[The file is a link to a file outside of the project; it was not read.]")


def test_a_very_long_file_is_cut_off_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("x" * (MAX_INSTRUCTIONS_BYTES + 1))

    (part,) = read_instructions(str(tmp_path))

    assert part.text.count("x") == MAX_INSTRUCTIONS_BYTES
    assert "The file is longer" in part.text


async def test_the_parts_are_sent_and_a_changed_file_applies_from_the_next_run(
    agent: MakeAgent, tmp_path: Path
) -> None:
    made = agent("One", "Two", system=build_coding_prompt, cwd=str(tmp_path), tools=builtin_tools("read", "ls"))

    await made.run("1")
    (tmp_path / "AGENTS.md").write_text("Speak Latin.")
    await made.run("2")

    first, second = (request.system for request in get_scripted_model(made).requests)
    assert "Your tools: read, ls." in first
    assert str(tmp_path) in first
    assert second.endswith("Speak Latin.")
    assert [part.name for part in made.build_system_parts()] == [
        "sessiontree",
        "tools",
        "folder",
        str(tmp_path / "AGENTS.md"),
    ]


async def test_the_system_prompt_can_be_replaced_and_is_not_stored(agent: MakeAgent) -> None:
    parts = [SystemPart(name="a", text="One."), SystemPart(name="b", text="Two.")]
    made = agent("Yes.", system=parts)

    await made.run("Go")

    assert get_scripted_model(made).requests[0].system == "One.\n\nTwo."
    assert all(b"Two." not in line for line in made.branch.session.read_lines())


def test_both_instruction_files_of_a_folder_are_sent_unless_they_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("agents")
    (tmp_path / "CLAUDE.md").write_text("claude")
    assert [Path(part.name).name for part in read_instructions(str(tmp_path))] == ["AGENTS.md", "CLAUDE.md"]

    (tmp_path / "CLAUDE.md").write_text("agents\n")
    assert [Path(part.name).name for part in read_instructions(str(tmp_path))] == ["AGENTS.md"]

    (tmp_path / "AGENTS.md").unlink()
    assert [Path(part.name).name for part in read_instructions(str(tmp_path))] == ["CLAUDE.md"]
