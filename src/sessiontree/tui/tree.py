"""The tree screen: choosing a place of a session, in the lower half of the terminal.

It moves nothing. It returns a `Choice`, or nothing; whoever opened it navigates. Labels are written at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

from msgspec.structs import asdict
from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from sessiontree.commands import leaving
from sessiontree.commands.leaving import ANSWERS, Leaving, focused, written
from sessiontree.commands.text import short
from sessiontree.comparison import diff
from sessiontree.config import Config
from sessiontree.core.entries import EntryId
from sessiontree.core.safe import safe
from sessiontree.errors import SessionTreeError
from sessiontree.session import Session
from sessiontree.tui.beside import Beside, BesideScreen, Sides, of_diff
from sessiontree.tui.clipboard import send_to_clipboard
from sessiontree.tui.dialogs import Chooser, Write
from sessiontree.tui.keys import faults, hints, keymap
from sessiontree.tui.ordered import OrderedApp
from sessiontree.tui.terminal import TerminalDriver
from sessiontree.tui.theme import DARK, LIGHT, NOTICES, terminal_is_light, theme_for
from sessiontree.tui.tree_detail import described, seen_from, words_of
from sessiontree.tui.tree_view import MARKS, TreeView

Summaries: TypeAlias = Literal["ask", "unasked", "none"]
"""Whether one asks for a summary of what is left, makes one only by its own key, or none can be made."""

REST_SECONDS = 0.08
"""The details of an entry are shown once the cursor has rested on it so long."""
PANES = ("", "text", "model")


class Choice(Leaving, frozen=True, kw_only=True):
    """The entry that was chosen, and what is to become of what is left."""

    entry: EntryId


class TreeScreen(ModalScreen[Choice | None]):
    DEFAULT_CSS = """
    TreeScreen { background: $background 40%; align: left bottom; }
    TreeScreen > .pane {
        height: 1fr; background: $background; padding: 0 2; display: none;
        scrollbar-size-vertical: 1; scrollbar-background: $background; scrollbar-color: $panel;
    }
    TreeScreen > .pane > Static { width: 1fr; height: auto; }
    TreeScreen > Beside { padding: 0 2; display: none; }
    TreeScreen > .panel { height: 50%; min-height: 6; background: $surface; border-top: heavy $primary; }
    TreeScreen .title, TreeScreen .foot { height: 1; padding: 0 2; text-wrap: nowrap; text-overflow: ellipsis; }
    TreeScreen .foot { color: $muted; }
    TreeScreen Input, TreeScreen Input:focus {
        height: 1; border: none; padding: 0 2; background: $panel; display: none;
    }
    """
    AUTO_FOCUS = "TreeView"

    def __init__(
        self,
        session: Session,
        *,
        summaries: Summaries = "ask",
        pane: bool = False,
        branch: str | None = None,
        at: EntryId | None = None,
        question: str = "",
    ) -> None:
        """The tree as it is seen from a branch, the current one by default, with the cursor there or at `at`.

        `question` says what an entry is chosen for, where that is not to go there.
        """
        super().__init__()
        self._session = session
        self._branch = branch
        self._question = question
        self._summaries = summaries
        self._pane = "text" if pane else ""
        self._told = ""
        """What was done last."""
        self._told_at: object = None
        """Where the cursor was then: what was done is told until one goes on."""
        self._hint = ""
        """The keys that one needs most, as they are bound."""
        self._labeled: EntryId | None = None
        self._shown_marks: list[EntryId] = []
        self._then: Callable[[], None] | None = None
        """What is to be done once the rows are there that were asked for."""
        self._about = Static(markup=False)
        """What the pane says."""
        self._beside = Beside(titled=True)
        self._beside.can_focus = False
        self.view = TreeView(session, branch=branch, at=at)

    @property
    def _app(self) -> App[object]:
        return self.app  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="pane", can_focus=False):
            yield self._about
        yield self._beside
        with Vertical(classes="panel"):
            yield Static(classes="title", markup=False)
            yield self.view
            yield Input(placeholder="label (empty takes it away)", select_on_focus=False)
            yield Static(classes="foot", markup=False)

    def on_mount(self) -> None:
        self._hint = hints(
            self,
            ("tree_choose", "choose" if self._question else "go"),
            ("tree_escape", "leave"),
            ("tree_detail", "details"),
            ("tree_label", "label"),
            ("tree_mark", "mark"),
            ("tree_filter", "filter"),
        )
        self._show_lines()
        self._rest()

    # What is shown

    def on_tree_view_changed(self, event: TreeView.Changed) -> None:
        self._show_lines()
        self._rest()
        if self._then is not None and self.view.progress is None:
            then, self._then = self._then, None
            then()

    def on_tree_view_working(self, event: TreeView.Working) -> None:
        self._show_foot()

    def on_tree_view_left(self, event: TreeView.Left) -> None:
        self.dismiss(None)

    def _show_lines(self) -> None:
        view = self.view
        name = safe(self._session.name or "unnamed")
        title = Text(no_wrap=True, overflow="ellipsis")
        title.append(name, style="bold")
        if view.query_text:
            title.append("  search: ")
            title.append(safe(view.query_text), style="bold reverse")
        else:
            asked = self._question or f"on branch {self._branch or self._session.heads.current}"
            title.append(f" · {safe(asked)} · type to search", style="dim")
        self.query_one(".title", Static).update(title)
        self._show_foot()

    def _show_foot(self) -> None:
        view = self.view
        at, of = view.place
        working = f" · {view.progress:.0%}" if view.progress is not None else ""
        said = self._told if self._told and self._told_at == self._place else self._hint
        foot = Text(f"{at}/{of} · {view.filter}{working} · {said}", no_wrap=True, overflow="ellipsis")
        self.query_one(".foot", Static).update(foot)

    def tell(self, text: str) -> None:
        """Say something in the last line."""
        self._told, self._told_at = safe(text), self._place
        self._show_foot()

    @property
    def _place(self) -> object:
        view = self.view
        return view.chosen, view.filter, view.query_text, tuple(view.marks)

    # Details

    def action_detail(self) -> None:
        self._pane = PANES[(PANES.index(self._pane) + 1) % len(PANES)]
        self.view.marks = self.view.marks if self._pane else []
        self._rest()

    def action_detail_scroll(self, by: int) -> None:
        shown = self._beside if self._beside.display else self.query_one(".pane", VerticalScroll)
        shown.scroll_relative(y=by * 3, animate=False)

    def action_beside(self) -> None:
        if len(self.view.marks) == MARKS:
            self.run_worker(self._whole_screen(), group="beside", exclusive=True)
        else:
            self.tell("mark two entries first")

    async def _whole_screen(self) -> None:
        self._app.push_screen(BesideScreen(await asyncio.to_thread(self._sides, list(self.view.marks))))

    def _rest(self) -> None:
        """Show the details of where the cursor is, once it stays there."""
        self.run_worker(self._detail, group="detail", exclusive=True)

    async def _detail(self) -> None:
        pane = self.query_one(".pane", VerticalScroll)
        chosen, marks = self.view.chosen, list(self.view.marks)
        both = len(marks) == MARKS
        self._beside.display = both
        pane.display = not both and bool(self._pane) and chosen is not None
        if both:
            if marks != self._shown_marks:
                self._shown_marks = marks
                self._beside.show(await asyncio.to_thread(self._sides, marks))
        elif pane.display and chosen is not None:
            await asyncio.sleep(REST_SECONDS)
            self._about.update(await asyncio.to_thread(self._details, chosen))
            pane.scroll_home(animate=False)

    def _details(self, chosen: EntryId) -> Text:
        return seen_from(self._session.tree, chosen) if self._pane == "model" else described(self._session, chosen)

    def _sides(self, marks: list[EntryId]) -> Sides:
        a, b = marks
        return of_diff(diff(self._session.tree, (f"1 {short(a)}", a), (f"2 {short(b)}", b)))

    # What is done with an entry

    def action_copy(self) -> None:
        if self.view.chosen is not None:
            self.tell(send_to_clipboard(self._app, words_of(self._session.tree[self.view.chosen])))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The key of labels is a letter, which belongs to a search that has begun."""
        return not (action == "label" and self.view.query_text)

    def action_label(self) -> None:
        if self.view.chosen is not None:
            self._labeled = self.view.chosen
            field = self.query_one(Input)
            field.value = self._session.tree.label(self._labeled) or ""
            field.display = True
            field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        labeled = self._labeled
        self._end_label()
        if labeled is None or (self._session.tree.label(labeled) or "") == event.value.strip():
            return
        try:
            self._session.label(self._session.tree[labeled], event.value)
        except SessionTreeError as error:
            self.tell(str(error))
        else:
            self.tell("labeled" if event.value.strip() else "the label is gone")
            self.view.look_again()

    def key_escape(self) -> None:
        self._end_label()

    def _end_label(self) -> None:
        self._labeled = None
        self.query_one(Input).display = False
        self.view.focus()

    # Choosing

    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_choose(self) -> None:
        self._once_there(lambda: self._choose(asks=self._summaries == "ask"))

    def action_summarize(self) -> None:
        if self._summaries == "none":
            self.tell("no summary can be made here")
        else:
            self._once_there(self._choose_summarized)

    def _once_there(self, do: Callable[[], None]) -> None:
        """Do something with the entry under the cursor; while rows are being made, with the one that will be there."""
        if self.view.progress is None:
            do()
        else:
            self._then = do

    def _choose_summarized(self) -> None:
        chosen = self.view.chosen
        if chosen is not None:
            self.dismiss(Choice(entry=chosen, summarize=self._leaves_something(chosen)))

    def _choose(self, *, asks: bool) -> None:
        chosen = self.view.chosen
        if chosen is None:
            return
        if asks and self._leaves_something(chosen):
            self._app.push_screen(Chooser(leaving.QUESTION, ANSWERS), partial(self._decided, chosen))
        else:
            self.dismiss(Choice(entry=chosen))

    def _decided(self, chosen: EntryId, option: int | None) -> None:
        """Do what was said about what is left; without an answer, one is in the tree again."""

        def go(said: Leaving | None) -> None:
            if said is not None:
                self.dismiss(Choice(entry=chosen, **asdict(said)))

        answer = None if option is None else ANSWERS[option]
        if answer == leaving.FOCUSED:
            self._app.push_screen(Write(leaving.FOCUS), lambda focus: go(focused(focus)))
        elif answer == leaving.WRITTEN:
            self._app.push_screen(Write(leaving.SUMMARY), lambda words: go(written(words)))
        elif answer is not None:
            go(Leaving(summarize=answer == leaving.SUMMARIZE))

    def _leaves_something(self, chosen: EntryId) -> bool:
        """Whether going there leaves a part of the path behind."""
        outline = self.view.outline
        if outline is None or outline.shape.leaf is None:
            return False
        shape = outline.shape
        position = shape.positions[chosen]
        while position >= 0 and shape.ids[position] not in shape.path:
            position = shape.above[position]
        return position < 0 or shape.ids[position] != shape.leaf


class TreeApp(OrderedApp[Choice | None]):
    """The tree of a session by itself."""

    CSS = NOTICES
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, session: Session, settings: Config, *, light: bool = False) -> None:
        super().__init__(driver_class=TerminalDriver, ansi_color="NO_COLOR" in os.environ)
        self._session = session
        self._settings = settings
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = "ansi-dark" if self.no_color else theme_for(light).name
        self.set_keymap(keymap(settings.keys))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {"muted": "ansi_default" if self.no_color else DARK.variables["muted"]}

    def on_mount(self) -> None:
        summaries = "unasked" if self._settings.summary.skip_prompt else "ask"
        self.push_screen(TreeScreen(self._session, summaries=summaries, pane=True), self.exit)
        for fault in faults(self._settings.keys):
            self.notify(safe(fault), severity="warning", markup=False)


def choose(session: Session, settings: Config) -> Choice | None:
    """Have a place chosen in the terminal."""
    return TreeApp(session, settings, light=terminal_is_light()).run()
