"""Vi keys of the editor: insert, normal and visual mode, with counts, motions and operators."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from textual import events
from textual.widgets.text_area import Selection

from sessiontree.tui.widgets.vi_motions import (
    Motion,
    MotionKind,
    find_change_end,
    find_first_letter,
    find_line_end,
    find_line_start,
    find_motion,
    find_row,
    find_word,
)

if TYPE_CHECKING:
    from sessiontree.tui.widgets.editor import Editor  # cycle: the editor creates it, and it changes the editor

COUNT = r"(?:[1-9]\d*+)?+"
MOTION = r"[hjklwbeWBE0^$G]|gg|[fFtT]."
COMMAND = re.compile(
    rf"(?P<count>{COUNT})(?:(?P<operator>[dcy])(?P<count_2>{COUNT})(?P<target>{MOTION}|[ia][wW]|(?P=operator))"
    rf"|(?P<motion>{MOTION})|(?P<action>[xXsSDCYpPuJiIaAoOvV~.]|r.))",
    re.DOTALL,
)
"""A whole command of normal mode."""
PREFIX = re.compile(rf"{COUNT}(?:[dcy]{COUNT}[iagfFtT]?|[grfFtT])?")
"""The start of a command, which waits for more keys."""
VISUAL_COMMAND = re.compile(rf"(?P<count>{COUNT})(?:(?P<motion>{MOTION}|[ia][wW])|(?P<action>[dxcspyvVo~]))", re.DOTALL)
VISUAL_PREFIX = re.compile(rf"{COUNT}[iagfFtT]?")
ALIASES = {"x": "dl", "X": "dh", "s": "cl", "S": "cc", "D": "d$", "C": "c$", "Y": "yy"}
"""Commands that are short for an operator and a motion."""
MAX_COUNT = 10_000


class ViMode(Enum):
    INSERT = "INSERT"
    NORMAL = "NORMAL"
    VISUAL = "VISUAL"
    VISUAL_LINES = "VISUAL LINES"


class ViKeys:
    """Handles the keys of an editor as vi does. It starts in insert mode."""

    def __init__(self, editor: Editor) -> None:
        self._editor = editor
        self._typed = ""
        """The keys of an unfinished command."""
        self._register, self._register_has_lines = "", False
        self._anchor, self._head = 0, 0
        """The ends of the visual selection. The characters at both belong to it."""
        self._keys: list[str] | None = None
        """The keys of the change since it began, to repeat it; `None` if it cannot be repeated."""
        self._last_change: list[str] = []
        self.enter_insert_mode()

    @property
    def _text(self) -> str:
        return self._editor.text

    @property
    def _at(self) -> int:
        """The position of the cursor in the text."""
        row, column = self._editor.cursor_location
        return find_row(self._text, row) + column

    def _locate(self, at: int) -> tuple[int, int]:
        return self._text.count("\n", 0, at), at - find_line_start(self._text, at)

    def _move(self, to: int) -> None:
        self._editor.move_cursor(self._locate(to))

    def _set_mode(self, mode: ViMode) -> None:
        self.mode = mode
        self._typed = ""
        self._editor.border_title = mode.value
        self._editor.history.checkpoint()

    def enter_insert_mode(self) -> None:
        self._set_mode(ViMode.INSERT)
        self._keys = None

    def _enter_normal_mode(self) -> None:
        self._set_mode(ViMode.NORMAL)
        self._move(self._at)  # ends a selection
        self._keep_cursor_on_letter()

    def _keep_cursor_on_letter(self) -> None:
        if self._at == find_line_end(self._text, self._at) > find_line_start(self._text, self._at):
            self._move(self._at - 1)

    # Keys

    def handle_key(self, event: events.Key) -> bool:
        """Handle a key. Return `False` if it means the same as without vi keys."""
        if self.mode is ViMode.INSERT:
            return self._handle_insert_key(event)
        if event.key == "escape":
            is_handled = bool(self._typed) or self.mode is not ViMode.NORMAL
            self._enter_normal_mode()
            return is_handled
        if event.key == "ctrl+r":
            self._editor.redo()
            self._keep_cursor_on_letter()
        elif event.key == "backspace":
            self._press("h")
        elif event.is_printable and event.character is not None:
            self._press(event.character)
        else:
            self._typed = ""
            return False
        return True

    def _handle_insert_key(self, event: events.Key) -> bool:
        if event.key == "escape" and self._text and not self._editor.is_completing:
            if self._keys is not None:
                self._last_change = [*self._keys, "escape"]
            self._leave_insert_mode()
            return True
        if self._keys is not None and event.is_printable and event.character is not None:
            self._keys.append(event.character)
        elif self._keys is not None and event.key == "backspace":
            self._keys.append(event.key)
        else:
            self._keys = None
        return False

    def _leave_insert_mode(self) -> None:
        if self._at > find_line_start(self._text, self._at):
            self._move(self._at - 1)
        self._enter_normal_mode()

    def _press(self, key: str) -> None:
        """Add a key to the command in normal or visual mode, and run the command if it is complete."""
        is_normal = self.mode is ViMode.NORMAL
        self._typed += key
        found = (COMMAND if is_normal else VISUAL_COMMAND).fullmatch(self._typed)
        if found is not None:
            typed, self._typed = self._typed, ""
            if is_normal:
                self._run(found, typed)
            else:
                self._run_visual(found)
        elif not (PREFIX if is_normal else VISUAL_PREFIX).fullmatch(self._typed):
            self._typed = ""

    def _repeat_change(self) -> None:
        for key in self._last_change:
            if self.mode is not ViMode.INSERT:
                self._press(key)
            elif key == "escape":
                self._leave_insert_mode()
            elif key == "backspace":
                self._editor.action_delete_left()
            else:
                self._editor.insert(key)

    # Normal mode

    def _run(self, command: re.Match[str], typed: str) -> None:
        counts = [int(digits) for digits in (command["count"], command["count_2"]) if digits]
        count = min(counts[0] * counts[-1] if len(counts) == 2 else counts[0], MAX_COUNT) if counts else None
        operator, target, action = command["operator"], command["target"], command["action"]
        if action is not None and action in ALIASES:
            operator, target = ALIASES[action]
        before, self._keys = self._text, list(typed)
        self._editor.history.checkpoint()
        if command["motion"] is not None:
            self._go(command["motion"], count)
        elif operator is not None:
            self._operate(operator, target, count)
        elif action is not None:
            self._act(action, count or 1)
        if self.mode is ViMode.NORMAL:
            if self._text != before and action not in ("u", "."):
                self._last_change = list(typed)
            self._keep_cursor_on_letter()

    def _go(self, keys: str, count: int | None) -> None:
        motion = find_motion(keys, self._text, self._at, count)
        if motion is not None:
            self._move(motion.to)
        elif keys == "k":
            self._editor.action_previous()
        elif keys == "j":
            self._editor.action_next()

    def _operate(self, operator: str, target: str, count: int | None) -> None:
        text, at = self._text, self._at
        if target[0] in "ia":
            self._apply(operator, *find_word(text, at, is_wide=target[1] == "W", with_blanks=target[0] == "a"))
            return
        is_change_in_word = operator == "c" and target in "wW" and text[at : at + 1].strip()
        if is_change_in_word:
            motion = Motion(find_change_end(text, at, count, is_wide=target == "W"))
        elif target == operator:
            motion = find_motion("j", text, at, count - 1) if count and count > 1 else Motion(at, MotionKind.LINES)
        else:
            motion = find_motion(target, text, at, count)
        if motion is None:
            return
        start, end = sorted((at, motion.to))
        if motion.kind is MotionKind.LINES:
            self._apply_to_lines(operator, start, end)
        elif motion.kind is MotionKind.INCLUSIVE:
            self._apply(operator, start, min(end + 1, find_line_end(text, end)))
        elif target in "wW" and start < find_line_end(text, start):
            line_end = text.find("\n", start + len(text[start:end].rstrip()), end)
            self._apply(operator, start, end if line_end < 0 or is_change_in_word else line_end)
        elif "\n" in text[start:end] and end == find_line_start(text, end):
            # A motion to the start of a line does not include the line.
            if text[find_line_start(text, start) : start].strip():
                self._apply(operator, start, end - 1)
            else:
                self._apply_to_lines(operator, start, end - 1)
        else:
            self._apply(operator, start, end)

    def _apply(self, operator: str, start: int, end: int) -> None:
        self._register, self._register_has_lines = self._text[start:end], False
        if operator != "y":
            self._editor.delete_range(self._locate(start), self._locate(end))
        self._move(start)
        if operator == "c":
            self._start_insert()

    def _apply_to_lines(self, operator: str, first: int, last: int) -> None:
        """Apply an operator to the lines of two positions and those between."""
        text = self._text
        start, end = find_line_start(text, first), find_line_end(text, last)
        if operator == "c":
            self._apply(operator, start, end)
        elif operator == "d":
            is_last = end == len(text)
            self._apply(operator, max(start - 1, 0) if is_last else start, end if is_last else end + 1)
            self._move(find_first_letter(self._text, min(start, len(self._text))))
        else:
            self._move(min(self._at, first))
        self._register, self._register_has_lines = text[start:end], True

    def _start_insert(self) -> None:
        keys = self._keys
        self._set_mode(ViMode.INSERT)
        self._keys = keys

    def _act(self, action: str, count: int) -> None:
        text, at = self._text, self._at
        start, end = find_line_start(text, at), find_line_end(text, at)
        match action[0]:
            case "i" | "I" | "a" | "A":
                self._move({"i": at, "I": find_first_letter(text, at), "a": min(at + 1, end), "A": end}[action])
                self._start_insert()
            case "o" | "O":
                at = end if action == "o" else start
                self._editor.replace("\n", self._locate(at), self._locate(at), maintain_selection_offset=False)
                self._move(at + 1 if action == "o" else at)
                self._start_insert()
            case "p" | "P":
                self._put(count, before=action == "P")
            case "u":
                for _ in range(count):
                    self._editor.undo()
            case "J":
                self._join_lines(max(count - 1, 1))
            case "r" | "~":
                if action == "~" or at + count <= end:
                    changed = action[1] * count if action[0] == "r" else text[at : min(at + count, end)].swapcase()
                    self._replace(at, at + len(changed), changed)
                    self._move(at + len(changed) - (action[0] == "r"))
            case "v" | "V":
                self._anchor = self._head = at
                self._set_mode(ViMode.VISUAL if action == "v" else ViMode.VISUAL_LINES)
                self._show_selection()
            case _:
                self._repeat_change()

    def _replace(self, start: int, end: int, text: str) -> None:
        self._editor.replace(text, self._locate(start), self._locate(end), maintain_selection_offset=False)

    def _put(self, count: int, *, before: bool) -> None:
        if not self._register and not self._register_has_lines:
            return
        at, text = self._at, self._text
        start, end = find_line_start(text, at), find_line_end(text, at)
        if self._register_has_lines:
            lines = [self._register] * count
            at = start if before else end
            self._replace(at, at, "\n".join([*lines, ""] if before else ["", *lines]))
            self._move(find_first_letter(self._text, at if before else at + 1))
        else:
            at = at if before else min(at + 1, end)
            self._replace(at, at, self._register * count)
            self._move(at + len(self._register) * count - 1)

    def _join_lines(self, times: int) -> None:
        for _ in range(times):
            end = find_line_end(self._text, self._at)
            if end == len(self._text):
                return
            rest = find_first_letter(self._text, end + 1)
            is_empty = rest == find_line_end(self._text, rest)
            self._replace(end, rest, "" if is_empty or self._text[end - 1 : end] in ("", " ", "\n") else " ")
            self._move(end)

    # Visual mode

    def _run_visual(self, command: re.Match[str]) -> None:
        action = command["action"]
        keys = command["motion"]
        if action is None and keys[0] in "ia":
            start, end = find_word(self._text, self._head, is_wide=keys[1] == "W", with_blanks=keys[0] == "a")
            self._anchor, self._head = start, max(end - 1, start)
            self._show_selection()
        elif action is None:
            count = min(int(command["count"]), MAX_COUNT) if command["count"] else None
            motion = find_motion(keys, self._text, self._head, count)
            if motion is not None:
                self._head = max(min(motion.to, len(self._text) - 1), 0)
            self._show_selection()
        elif action == "o":
            self._anchor, self._head = self._head, self._anchor
            self._show_selection()
        elif action in "vV":
            mode = ViMode.VISUAL if action == "v" else ViMode.VISUAL_LINES
            if self.mode is mode:
                self._enter_normal_mode()
            else:
                self._set_mode(mode)
                self._show_selection()
        else:
            self._apply_to_selection(action)

    def _apply_to_selection(self, action: str) -> None:
        start, end = sorted((self._anchor, self._head))
        has_lines = self.mode is ViMode.VISUAL_LINES
        operator = {"x": "d", "s": "c"}.get(action, action)
        self._keys = None
        self._set_mode(ViMode.NORMAL)
        self._move(start)  # where an undo returns to
        if action in "~p":
            if has_lines:
                start, end = find_line_start(self._text, start), find_line_end(self._text, end) - 1
            changed = self._register if action == "p" else self._text[start : end + 1].swapcase()
            self._replace(start, min(end + 1, len(self._text)), changed)
            self._move(start)
        elif has_lines:
            self._apply_to_lines(operator, start, end)
        else:
            self._apply(operator, start, min(end + 1, len(self._text)))
        if self.mode is ViMode.NORMAL:
            self._keep_cursor_on_letter()

    def _show_selection(self) -> None:
        """Select the characters from the anchor to the head in the editor, both included."""
        text, start, end = self._text, *sorted((self._anchor, self._head))
        if self.mode is ViMode.VISUAL_LINES:
            start, end = find_line_start(text, start), find_line_end(text, end)
        else:
            end = min(end + 1, len(text))
        first, last = self._locate(start), self._locate(end)
        self._editor.selection = Selection(first, last) if self._head >= self._anchor else Selection(last, first)
