"""Reading, writing and editing files."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from pathlib import Path

import pytest

from sessiontree.agent.tool import Tool, ToolError
from sessiontree.agent.tools import edit, find, grep, ls, read, write
from sessiontree.agent.tools.file_access import MAX_IMAGE_FILE_BYTES
from sessiontree.agent.tools.file_tools import MAX_DIFFED_BYTES
from sessiontree.agent.tools.output_limits import MAX_BYTES, MAX_LINES
from sessiontree.agent.tools.unified_diff import MAX_DIFF_CHARS
from sessiontree.model.request_images import ImageFilter, RequestImage
from tests.agent.tools.conftest import Call, get_text

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


async def test_a_file_is_read_as_it_is(call: Call, folder: Path) -> None:
    (folder / "a.py").write_text("one\ntwo\n")

    assert get_text(await call(read, path="a.py")) == "one\ntwo"
    assert get_text(await call(read, path="@a.py")) == "one\ntwo"
    assert get_text(await call(read, path=str(folder / "a.py"))) == "one\ntwo"


async def test_write_and_edit_use_exactly_the_named_file(call: Call, folder: Path) -> None:
    (folder / "types").mkdir()
    (folder / "types/index.d.ts").write_text("precious")

    assert get_text(await call(write, path="@types/index.d.ts", content="new")) == "Created @types/index.d.ts: 3 bytes."
    assert get_text(await call(read, path="@types/index.d.ts")) == "new"
    with pytest.raises(ToolError, match="file @types/other not found"):
        await call(edit, path="@types/other", old_text="precious", new_text="")

    assert (folder / "types/index.d.ts").read_text() == "precious"
    assert (folder / "@types/index.d.ts").read_text() == "new"


async def test_dot_dot_after_a_link_is_resolved_by_the_system(call: Call, folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "b/sub").mkdir(parents=True)
    (folder / "a/link").symlink_to(folder / "b/sub")
    (folder / "a/x").write_text("next to the link")
    (folder / "b/x").write_text("next to its target")

    assert get_text(await call(read, path="a/link/../x")) == "next to its target"
    assert get_text(await call(ls, path="a/link/..")) == "sub/\nx"
    assert get_text(await call(grep, pattern="next to", path="a/link/..")) == "a/link/../x:1: next to its target"
    assert get_text(await call(find, pattern="x", path="a/link/..")) == "a/link/../x"
    await call(edit, path="a/link/../x", old_text="next to", new_text="by")
    assert (folder / "b/x").read_text() == "by its target"
    assert get_text(await call(write, path="a/link/../x", content="new")) == "Replaced a/link/../x: 3 bytes."
    assert (folder / "b/x").read_text() == "new"
    assert (folder / "a/x").read_text() == "next to the link"


async def test_replacing_a_file_is_reported_for_every_spelling_of_its_path(call: Call, folder: Path) -> None:
    (folder / "a").write_text("old")

    for path in ("a/", "gone/../a", "./a"):
        assert get_text(await call(write, path=path, content="new")) == f"Replaced {path}: 3 bytes."


async def test_a_partial_read_explains_how_to_continue(call: Call, folder: Path) -> None:
    (folder / "a").write_text("".join(f"{number}\n" for number in range(1, 11)))

    said = get_text(await call(read, path="a", offset=3, limit=2))

    assert said == "3\n4\n\n[These are lines 3 to 4 of 10. Continue with offset=5.]"
    assert get_text(await call(read, path="a", offset=9)) == "9\n10"


async def test_a_long_file_stops_at_the_limit_of_lines(call: Call, folder: Path) -> None:
    (folder / "a").write_text("x\n" * (MAX_LINES + 5))

    said = get_text(await call(read, path="a"))

    assert said.count("x") == MAX_LINES
    assert said.endswith(
        f"[These are lines 1 to {MAX_LINES} of {MAX_LINES + 5}. Continue with offset={MAX_LINES + 1}.]"
    )


async def test_a_file_of_long_lines_stops_at_the_limit_of_bytes(call: Call, folder: Path) -> None:
    (folder / "a").write_text(("y" * 999 + "\n") * 100)

    said = get_text(await call(read, path="a"))

    assert said.count("y") == 999 * (MAX_BYTES // 1000)
    assert "of 100." in said


async def test_a_line_that_is_too_long_is_cut_off_with_a_note(call: Call, folder: Path) -> None:
    (folder / "a").write_text("z" * (3 * MAX_BYTES) + "\nnext\n")

    said = get_text(await call(read, path="a"))

    assert said.count("z") == MAX_BYTES
    assert "Line 1 is longer" in said
    assert "These are lines 1 to 1 of 2. Continue with offset=2." in said


async def test_an_image_is_returned_as_an_image_block(call: Call, folder: Path) -> None:
    (folder / "a.dat").write_bytes(PNG)

    output = await call(read, path="a.dat")

    assert isinstance(output.content, list)
    assert output.content[1] == {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}


async def test_the_largest_readable_image_can_be_sent(call: Call, folder: Path) -> None:
    (folder / "largest.png").write_bytes(PNG.ljust(MAX_IMAGE_FILE_BYTES, b"\0"))
    (folder / "larger.png").write_bytes(PNG.ljust(MAX_IMAGE_FILE_BYTES + 1, b"\0"))

    message = {"role": "toolResult", "content": (await call(read, path="largest.png")).content}
    assert isinstance(ImageFilter([message], accepts_images=True).prepare(message["content"][1]), RequestImage)
    with pytest.raises(ToolError, match=r"limited to 3\.75 MB"):
        await call(read, path="larger.png")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("gone", "file gone not found"),
        (".", "is a folder"),
        ("pipe", "is not a regular file"),
        ("binary", "is a binary file of 4 bytes"),
        ("latin", "is a binary file"),
        ("", "is not a valid path"),
    ],
)
async def test_unreadable_files_are_refused_with_a_reason(call: Call, folder: Path, path: str, reason: str) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "binary").write_bytes(b"a\0b\n")
    (folder / "latin").write_bytes("übermäßig viel".encode("latin-1"))

    with pytest.raises(ToolError, match=reason):
        await call(read, path=path)


async def test_reading_after_the_end_is_an_error(call: Call, folder: Path) -> None:
    (folder / "a").write_text("one\n")
    (folder / "empty").write_text("")

    with pytest.raises(ToolError, match="has only 1 line"):
        await call(read, path="a", offset=2)
    assert get_text(await call(read, path="empty")) == "empty is empty."


async def test_a_file_is_written_with_its_folders(call: Call, folder: Path) -> None:
    assert get_text(await call(write, path="a/b/c.txt", content="hé\n")) == "Created a/b/c.txt: 4 bytes."

    assert (folder / "a/b/c.txt").read_text() == "hé\n"
    assert os.listdir(folder / "a/b") == ["c.txt"]
    assert get_text(await call(write, path="a/b/c.txt", content="")) == "Replaced a/b/c.txt: 0 bytes."


async def test_writing_keeps_the_mode_of_a_file_and_follows_links(call: Call, folder: Path) -> None:
    script = folder / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    (folder / "link").symlink_to(script)

    await call(write, path="link", content="new")

    assert script.read_text() == "new"
    assert script.stat().st_mode & 0o777 == 0o750
    assert (folder / "link").is_symlink()


async def test_a_new_file_has_the_mode_that_the_umask_gives(call: Call, folder: Path) -> None:
    old = os.umask(0o027)
    try:
        await call(write, path="a", content="")
    finally:
        os.umask(old)

    assert (folder / "a").stat().st_mode & 0o777 == 0o640


async def test_a_folder_cannot_be_replaced_by_a_file(call: Call, folder: Path) -> None:
    (folder / "d").mkdir()

    with pytest.raises(ToolError, match="is a folder"):
        await call(write, path="d", content="x")
    with pytest.raises(ToolError, match="surrogate"):
        await call(write, path="a", content="\ud800")
    assert not (folder / "a").exists()


async def test_rewriting_a_file_shows_the_diff(call: Call, folder: Path) -> None:
    (folder / "a.py").write_text("one\ntwo\nthree\n")

    output = await call(write, path="a.py", content="one\n2\nthree\n")

    assert output.details == {
        "diff": "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n",
        "firstChangedLine": 2,
    }


@pytest.mark.parametrize("old", [None, b"same\n", b"\0\0", b"x" * (MAX_DIFFED_BYTES + 1)])
async def test_a_new_unchanged_binary_or_very_large_file_has_no_diff(
    call: Call, folder: Path, old: bytes | None
) -> None:
    if old is not None:
        (folder / "a").write_bytes(old)

    output = await call(write, path="a", content="same\n")

    assert output.details is None
    assert (folder / "a").read_text() == "same\n"


async def test_the_stored_diff_has_a_limit(call: Call, folder: Path) -> None:
    (folder / "a").write_text("old\n" * 100_000)
    for tool, arguments in (
        (edit, {"old_text": "old", "new_text": "older", "replace_all": True}),
        (write, {"content": "new\n" * 100_000}),
    ):
        output = await call(tool, path="a", **arguments)
        assert len(output.details["diff"]) <= MAX_DIFF_CHARS + 100


async def test_an_edit_replaces_one_piece_and_shows_the_diff(call: Call, folder: Path) -> None:
    (folder / "a.py").write_text("one\ntwo\nthree\n")

    output = await call(edit, path="a.py", old_text="two", new_text="2")

    assert (folder / "a.py").read_text() == "one\n2\nthree\n"
    assert get_text(output) == "Edited a.py at line 2."
    assert output.details == {
        "diff": "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n",
        "firstChangedLine": 2,
    }


async def test_an_edit_that_could_mean_several_places_is_refused(call: Call, folder: Path) -> None:
    (folder / "a").write_text("x\ny\nx\n")

    with pytest.raises(ToolError, match=r"2 times in \w+, at lines 1, 3"):
        await call(edit, path="a", old_text="x", new_text="z")
    assert (folder / "a").read_text() == "x\ny\nx\n"

    await call(edit, path="a", old_text="x", new_text="z", replace_all=True)
    assert (folder / "a").read_text() == "z\ny\nz\n"


async def test_an_edit_of_places_that_overlap_is_refused(call: Call, folder: Path) -> None:
    (folder / "a").write_text("}\n}\n}\n")

    with pytest.raises(ToolError, match=r"2 times in \w+, at lines 1, 2"):
        await call(edit, path="a", old_text="}\n}\n", new_text="}\n")
    assert (folder / "a").read_text() == "}\n}\n}\n"


async def test_an_edit_of_missing_text_is_refused_with_a_hint(call: Call, folder: Path) -> None:
    (folder / "a").write_text("def f():\n    return 1\n")

    with pytest.raises(ToolError, match="line 2 differs only in whitespace"):
        await call(edit, path="a", old_text="  return 1 ", new_text="  return 2")
    with pytest.raises(ToolError, match="read the file again"):
        await call(edit, path="a", old_text="return 3", new_text="return 2")
    with pytest.raises(ToolError, match="are equal"):
        await call(edit, path="a", old_text="return 1", new_text="return 1")


async def test_an_edit_keeps_the_line_endings_of_other_lines(call: Call, folder: Path) -> None:
    (folder / "a").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\nlast")

    await call(edit, path="a", old_text="one\ntwo", new_text="1\n2")

    assert (folder / "a").read_bytes() == b"\xef\xbb\xbf1\r\n2\r\nthree\nlast"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"one\r\ntwo\r\n", "two", "two\nthree", b"one\r\ntwo\r\nthree\r\n"),
        (b"one\r\ntwo", "two", "two\nthree", b"one\r\ntwo\r\nthree"),
        (b"one\r\ntwo\n", "two", "two\nthree", b"one\r\ntwo\nthree\n"),
        (b"a x x\r\nb x\nc x", "x", "y\nz", b"a y\r\nz y\r\nz\r\nb y\nz\nc y\nz"),
        (b"one\r\ntwo\r\n", "one\r\ntwo", "one\ntwo", b"one\ntwo\r\n"),
    ],
)
async def test_new_lines_use_the_line_ending_of_the_edited_line(
    call: Call, folder: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    (folder / "a").write_bytes(before)

    await call(edit, path="a", old_text=old, new_text=new, replace_all=True)

    assert (folder / "a").read_bytes() == after


async def test_invalid_utf_8_survives_an_edit_elsewhere(call: Call, folder: Path) -> None:
    (folder / "a").write_bytes(b"text\n" * 2000 + b"end\xff\xfe\n")

    await call(edit, path="a", old_text="end", new_text="word")

    assert (folder / "a").read_bytes() == b"text\n" * 2000 + b"word\xff\xfe\n"


@pytest.mark.parametrize("half", [0xD800, 0xDCFF])
async def test_an_edit_writes_no_half_characters(call: Call, folder: Path, half: int) -> None:
    (folder / "a").write_text("abc")

    with pytest.raises(ToolError, match="new_text contains half of a surrogate pair"):
        await call(edit, path="a", old_text="b", new_text=chr(half))
    assert (folder / "a").read_text() == "abc"


@pytest.mark.parametrize(("tool", "said"), [(edit, "Edited a at line 1."), (write, "Replaced a: 3 bytes.")])
async def test_a_completed_write_is_reported_after_an_abort(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, tool: Tool, said: str
) -> None:
    (folder / "a").write_text("old")
    begun, go, replace = threading.Event(), threading.Event(), os.replace

    def slowly(*paths: str) -> None:
        begun.set()
        assert go.wait(10)
        replace(*paths)

    monkeypatch.setattr(os, "replace", slowly)
    arguments = {"content": "new"} if tool is write else {"old_text": "old", "new_text": "new"}
    task = asyncio.create_task(call(tool, path="a", **arguments))
    assert await asyncio.to_thread(begun.wait, 10)

    task.cancel()
    await asyncio.sleep(0)
    go.set()

    assert get_text(await task) == said
    assert (folder / "a").read_text() == "new"


async def test_a_folder_is_listed_in_order_with_folders_marked(call: Call, folder: Path) -> None:
    (folder / "b").mkdir()
    for name in ("c", "a", ".hidden"):
        (folder / name).touch()

    assert get_text(await call(ls)) == ".hidden\na\nb/\nc"
    assert get_text(await call(ls, limit=2)) == ".hidden\na\n\n[2 of 4 names]"
    assert get_text(await call(ls, path="b")) == "b is empty."
    with pytest.raises(ToolError, match="folder nowhere not found"):
        await call(ls, path="nowhere")
