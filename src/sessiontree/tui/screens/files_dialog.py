"""The files dialog: what a move changes, with a preview of the files that it can restore."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.errors import SessionTreeError
from sessiontree.files.restore_plan import PathConflict, PathRestore, RestorePlan
from sessiontree.slash_commands.host import FILES_QUESTION, FilesAnswer, list_files_choices
from sessiontree.tui.screens.dialogs import Dialog, PageDialog
from sessiontree.tui.widgets.controls import SafeStatic

MAX_DIFF_LINES = 5000
"""Lines of the diff that are shown."""
MAX_PATHS = 1000
"""Changed paths that are listed. Conflicts are all listed."""


class FilesDialog(Dialog[FilesAnswer]):
    """Choose between the conversation, the files and both. Conflicts are kept unless the user marks them."""

    DEFAULT_CSS = """
    FilesDialog OptionList:focus { background-tint: transparent; }
    FilesDialog .summary { margin-top: 1; }
    FilesDialog #paths, FilesDialog #paths:focus {
        max-height: 8; scrollbar-size-vertical: 1; scrollbar-background: $surface; scrollbar-color: $panel;
    }
    FilesDialog #paths:blur > .option-list--option-highlighted { background: $surface; text-style: none; }
    FilesDialog .others { color: $warning; }
    """
    HINT = ("Enter to select", "Tab for paths", "Space to mark", "D for diff", "Esc to cancel")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,shift+tab", "change_list", priority=True),
        Binding("space", "mark", priority=True),
        # With priority too, or a quick Enter would be handled before them.
        Binding("up", "step(-1)", priority=True),
        Binding("down", "step(1)", priority=True),
        Binding("enter", "accept", priority=True),
        Binding("d", "diff", priority=True),
    ]

    def __init__(self, plan: RestorePlan, read_diff: Callable[[], Awaitable[str]]) -> None:
        super().__init__(FILES_QUESTION)
        self._plan = plan
        self._files_choices = list_files_choices(plan)
        self._read_diff = read_diff
        self._taken: set[str] = set()

    def compose_question(self) -> ComposeResult:
        yield OptionList(*self._files_choices, id="choices", markup=False)
        yield SafeStatic(self._plan.summary, classes="summary")
        yield OptionList(*self._build_rows(), id="paths", markup=False)
        if self._plan.others:
            yield SafeStatic(f"Also changed files here: {', '.join(self._plan.others)}", classes="others")

    def on_mount(self) -> None:
        self._choices.highlighted = 0
        self._choices.focus()
        self._paths.highlighted = 0

    @property
    def _choices(self) -> OptionList:
        return self.query_one("#choices", OptionList)

    @property
    def _paths(self) -> OptionList:
        return self.query_one("#paths", OptionList)

    def _build_rows(self) -> list[Option]:
        rows = [Option(self._format_conflict(conflict)) for conflict in self._plan.conflicts]
        rows += [Option(_format_change(change)) for change in self._plan.changes[:MAX_PATHS]]
        if len(self._plan.changes) > MAX_PATHS:
            rows.append(Option(f"… {len(self._plan.changes) - MAX_PATHS} more"))
        return rows

    def _format_conflict(self, conflict: PathConflict) -> Text:
        mark = " " if not conflict.can_take else "[x]" if conflict.path in self._taken else "[ ]"
        action = "restore" if conflict.path in self._taken else "keep"
        text = f"{mark:<3} {action:<7} {escape_line(conflict.path)} ({conflict.reason})"
        return Text(text, no_wrap=True, overflow="ellipsis")

    # Keys

    def action_change_list(self) -> None:
        (self._paths if self._choices.has_focus else self._choices).focus()

    def action_step(self, by: int) -> None:
        shown = self._choices if self._choices.has_focus else self._paths
        shown.action_cursor_down() if by > 0 else shown.action_cursor_up()

    def action_mark(self) -> None:
        """Mark the conflict under the cursor to be restored, or keep it again."""
        row = self._paths.highlighted
        if not self._paths.has_focus or row is None or row >= len(self._plan.conflicts):
            return
        conflict = self._plan.conflicts[row]
        if not conflict.can_take:
            self.notify("Move away what is there first", timeout=2)
            return
        self._taken ^= {conflict.path}
        self._paths.replace_option_prompt_at_index(row, self._format_conflict(conflict))
        self.query_one(".summary", SafeStatic).set_text(self._plan.take(self._taken).summary)

    def action_accept(self) -> None:
        row = self._choices.highlighted
        files = list(self._files_choices.values())[row or 0]
        taken = () if files == "conversation" else tuple(sorted(self._taken))
        self.dismiss(FilesAnswer(files=files, take=taken))

    def action_diff(self) -> None:
        self.run_worker(self._show_diff(), group="diff", exclusive=True)

    async def _show_diff(self) -> None:
        try:
            text = await self._read_diff()
        except SessionTreeError as error:
            self.notify(escape_line(str(error)), severity="warning", markup=False)
            return
        self.app.push_screen(PageDialog("Changes on disk if you restore the files", _color_diff(text)))


def _format_change(change: PathRestore) -> Text:
    return Text(f"    {change.action:<7} {escape_line(change.path)}", no_wrap=True, overflow="ellipsis")


def _color_diff(text: str) -> Text:
    lines = text.splitlines()
    shown = Text()
    for line in lines[:MAX_DIFF_LINES]:
        style = "green" if line.startswith("+") else "red" if line.startswith("-") else ""
        style = "bold" if line.startswith("diff ") else style
        shown.append(f"{escape_lines(line)}\n", style=style)
    if len(lines) > MAX_DIFF_LINES:
        shown.append(f"… {len(lines) - MAX_DIFF_LINES} more lines")
    return shown
