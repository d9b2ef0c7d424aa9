"""Key bindings: the table of all keys, user configuration, hints, and an app that handles keys in order.

The names in the table are the names under `[keys]` in the configuration and in the list of `/hotkeys`.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple, TypeVar, cast

from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.app import App
from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, key_to_character
from textual.message_pump import MessagePump
from textual.screen import Screen

T = TypeVar("T")


class Key(NamedTuple):
    name: str
    keys: str
    """Separated by commas."""
    help: str


EDITOR = (
    Key("submit", "enter", "send the message or run the command; while the agent works, send it after the next step"),
    Key("follow_up", "alt+enter", "queue the message until the agent is done"),
    Key("newline", "shift+enter,ctrl+j", "insert a line break (or type a backslash before Enter)"),
    Key("take_back", "alt+up", "edit the queued messages"),
    Key("complete", "tab", "complete a command, an argument or an @file"),
    Key("previous", "up", "move up; on the first line, show the previous input"),
    Key("next", "down", "move down; on the last line, show the next input"),
    Key("external_editor", "ctrl+g", "edit in $EDITOR"),
    Key("clear", "ctrl+c", "copy the selection, or clear the editor; press twice to quit"),
    Key("leave", "ctrl+d", "quit, if the editor is empty"),
    Key("paste_image", "ctrl+v", "paste the image on the clipboard of the desktop, or what was copied in the app"),
)
CHAT = (
    Key("abort", "escape", "abort the current run; twice in an empty editor, run the `double_escape` action"),
    Key("tree", "ctrl+t", "open the tree"),
    Key("sessions", "ctrl+r", "open the session picker"),
    Key("models", "ctrl+l", "choose a model"),
    Key("thinking", "shift+tab", "cycle the thinking level"),
    Key("unfold", "ctrl+o", "expand or collapse tool output and thinking"),
    Key("browse", "ctrl+up", "browse the conversation block by block"),
    Key("page_up", "pageup", "scroll up a page"),
    Key("page_down", "pagedown", "scroll down a page"),
    Key("permission", "alt+p", "answer the question about a tool call"),
    Key("hotkeys", "f1", "list the keys"),
)
BROWSE = (
    Key("block_up", "up,k", "previous block"),
    Key("block_down", "down,j", "next block"),
    Key("block_fold", "enter,space", "expand or collapse the block"),
    Key("block_copy", "y,c", "copy the block"),
    Key("block_first", "home,g", "first block"),
    Key("block_last", "end,G", "last block"),
    Key("browse_end", "escape,ctrl+down,q", "return to the editor"),
)
SESSIONS = (
    Key("session_scope", "tab", "toggle between this folder and all folders"),
    Key("session_named", "ctrl+n", "toggle between named and all sessions"),
    Key("session_archived", "ctrl+a", "toggle between archived and active sessions"),
    Key("session_rename", "ctrl+r", "rename the session"),
    Key("session_archive", "ctrl+s", "archive or unarchive the session"),
    Key("session_delete", "ctrl+x,delete", "delete the session, after confirmation"),
)
MODELS = (Key("model_favorite", "ctrl+f", "star the model; starred models come first"),)
TREE = (
    Key("tree_up", "up", "previous row"),
    Key("tree_down", "down", "next row"),
    Key("tree_page_up", "pageup,left", "scroll up a page"),
    Key("tree_page_down", "pagedown,right", "scroll down a page"),
    Key("tree_first", "home", "first row"),
    Key("tree_last", "end", "last row"),
    Key("tree_turn_up", "alt+up", "previous user or assistant message"),
    Key("tree_turn_down", "alt+down", "next user or assistant message"),
    Key(
        "tree_fold", "ctrl+left,alt+left", "collapse the segment; inside it, go to its start, then to the segment above"
    ),
    Key("tree_unfold", "ctrl+right,alt+right", "expand the segment, or go to the next one"),
    Key("tree_choose", "enter", "go to the entry"),
    Key("tree_summarize", "shift+enter,ctrl+s", "go to the entry and summarize the branch you leave"),
    Key("tree_escape", "escape", "clear the search, or close the tree"),
    Key("tree_cancel", "ctrl+c", "close the tree"),
    Key("tree_filter", "ctrl+f", "next filter"),
    Key("tree_filter_back", "alt+f", "previous filter"),
    Key("tree_default", "ctrl+d", "default filter: hide bookkeeping entries"),
    Key("tree_no_tools", "ctrl+t", "toggle the filter that also hides tool results"),
    Key("tree_user_only", "ctrl+u", "toggle the filter for user messages"),
    Key("tree_labeled_only", "ctrl+l", "toggle the filter for labeled entries"),
    Key("tree_all", "ctrl+o,ctrl+a", "toggle between all entries and the default filter"),
    Key("tree_label", "L,shift+l", "label the entry (not during a search)"),
    Key("tree_copy", "ctrl+x", "copy the text of the entry"),
    Key("tree_detail", "tab", "cycle the upper part: conversation, entry, model context, off"),
    Key("tree_detail_up", "ctrl+up", "scroll the upper part up"),
    Key("tree_detail_down", "ctrl+down", "scroll the upper part down"),
    Key("tree_mark", "ctrl+k", "mark the entry; two marked entries are compared"),
    Key("tree_beside", "ctrl+e", "compare the two marked entries full screen"),
)

AREAS: dict[str, tuple[Key, ...]] = {
    "editor": EDITOR,
    "chat": CHAT,
    "conversation": BROWSE,
    "models": MODELS,
    "sessions": SESSIONS,
    "tree": TREE,
}
"""All keys by the part of the app where they are active."""


NO_KEY = "none"
"""The place of a missing key. Actions that the configuration disables are bound to it."""
SHORT_NAMES = {"escape": "esc"}
"""Short names of keys, for hints. The configuration accepts them too."""
LONG_NAMES = {short: key for key, short in SHORT_NAMES.items()}

MODIFIERS = frozenset({"alt", "ctrl", "hyper", "meta", "shift", "super"})
RARE_KEYS = """\
caps_lock scroll_lock num_lock print_screen pause menu kp_begin decimal divide multiply subtract add equal separator
media_play media_pause media_play_pause media_reverse media_stop media_fast_forward media_rewind media_track_next
media_track_previous media_record lower_volume raise_volume mute_volume
"""
"""Keys that only some terminals report and that are missing in Textual's list."""
NAMED_KEYS = frozenset(
    {
        *(key.value for key in Keys if key.value.replace("+", "").isalnum() and key is not Keys.Return),
        Keys.ControlAt.value,
        *KEY_NAME_REPLACEMENTS.values(),
        *RARE_KEYS.split(),
        *(f"f{number}" for number in range(25, 36)),
    }
)
"""Keys with special names. All other keys are named by the Unicode name of their character."""


def bind(name: str, action: str, *, priority: bool = False) -> Binding:
    """Return a binding of the named keys to an action."""
    key = next(key for keys in AREAS.values() for key in keys if key.name == name)
    return Binding(key.keys, action, key.help, id=name, priority=priority, show=False)


def format_hints(screen: Screen[Any], *hints: str | tuple[str, str], width: int | None = None) -> str:
    """Return the hints of a screen as one line: `Enter to open · Tab to toggle folders`.

    A hint is a text, or the name of a key in the table and a text. The key is shown as it is bound; hints for keys
    that are not bound are left out, and so are the last ones if the line would be longer than `width`.
    """
    active = reversed(screen.active_bindings.items())
    keys = {bound.binding.id: _format_key(key) for key, bound in active if key != NO_KEY}
    parts = [
        hint if isinstance(hint, str) else f"{keys[hint[0]]} {hint[1]}" if hint[0] in keys else "" for hint in hints
    ]
    shown = [part for part in parts if part]
    while width is not None and shown and len(" · ".join(shown)) > width:
        shown.pop()
    return " · ".join(shown)


def _format_key(key: str) -> str:
    """Return a key as people write it: `Ctrl+O`, `Esc`, `L`."""
    parts = [SHORT_NAMES.get(part, part) for part in key.split("+")]
    return "+".join(part[:1].upper() + part[1:] for part in parts)


def build_keymap(config: Mapping[str, str | list[str]]) -> dict[str, str]:
    """Return the configured keys as a Textual keymap.

    Invalid keys are ignored. If all keys of an action are invalid, it keeps its default keys.
    """
    bound = {
        name: [key for key in map(_normalize_key, _split_keys(keys)) if key is not None]
        for name, keys in config.items()
    }
    return {name: ",".join(keys) or NO_KEY for name, keys in bound.items() if keys or not _split_keys(config[name])}


def find_key_errors(config: Mapping[str, str | list[str]]) -> list[str]:
    """Return an error message for every invalid name and key in the configuration."""
    defaults = {key.name: key.keys for keys in AREAS.values() for key in keys}
    bound = {**defaults, **build_keymap(config)}
    errors: list[str] = []
    for name, keys in config.items():
        if name not in defaults:
            errors.append(f"unknown name {name!r} under [keys] in the configuration; /hotkeys lists the names")
            continue
        for key in _split_keys(keys):
            if _normalize_key(key) is None:
                active = bound[name].replace(",", ", ")
                errors.append(f"unknown key {key!r} for {name!r} under [keys] in the configuration; using {active}")
    return errors


def _split_keys(keys: str | list[str]) -> list[str]:
    words = keys.split(",") if isinstance(keys, str) else keys
    return [word for word in map(str.strip, words) if word not in ("", NO_KEY)]


def _normalize_key(key: str) -> str | None:
    """Return the key as Textual spells it, or `None`."""
    if key in NAMED_KEYS:
        return key
    *modifiers, name = key.split("+") if len(key) > 1 else [key]
    if not MODIFIERS.issuperset(modifiers):
        return None
    name = LONG_NAMES.get(name, name)
    if len(name) == 1 and name.isalnum():
        known = not modifiers or name == name.lower()
    elif len(name) == 1:
        name = _find_key_name(name)
        known = bool(name)
    else:
        name = KEY_NAME_REPLACEMENTS.get(name, name)
        sign = key_to_character(name)  # also finds control characters such as `del`, which no key prints
        known = name in NAMED_KEYS or (sign is not None and not sign.isalnum() and _find_key_name(sign) == name)
    return "+".join([*sorted(set(modifiers)), name]) if known else None


def _find_key_name(sign: str) -> str:
    """Return the name of the key that types a character; empty if there is none."""
    name = unicodedata.name(sign, "").lower().replace("-", "_").replace(" ", "_") if sign.isprintable() else ""
    return KEY_NAME_REPLACEMENTS.get(name, name)


def list_keys(keymap: Mapping[str, str]) -> list[tuple[str, list[Key]]]:
    """Return all areas with their keys, as they are bound."""
    return [
        (area, [key._replace(keys=keymap.get(key.name, key.keys).replace(",", ", ")) for key in keys])
        for area, keys in AREAS.items()
    ]


class LegacyKey(Enum):
    """Keys of terminals without the extended keyboard protocol that Textual does not know."""

    ALT_ENTER = "alt+enter"


cast("dict[str, Any]", ANSI_SEQUENCES_KEYS).setdefault("\x1b\r", (LegacyKey.ALT_ENTER,))

JOINERS = "\u200c\u200d"
"""Zero-width characters that people type: in Persian and Hindi words, and in emoji."""


class TypedCharacter(events.Key):
    """A character that is text, though Python calls it not printable: a joiner, or a wide or no-break space."""

    @property
    def is_printable(self) -> bool:
        return True


TypedCharacter.handler_name = events.Key.handler_name


def is_unprintable_text(character: str | None) -> bool:
    """Return whether Textual would drop a character that belongs to the text."""
    if character is None or len(character) != 1 or character.isprintable():
        return False
    return character in JOINERS or unicodedata.category(character) == "Zs"


MAX_WAIT_SECONDS = 0.5
"""Maximum time a key waits for earlier keys. A busy widget must not block the keyboard."""


class OrderedKeysApp(App[T]):
    """Handles each key only after the widgets have handled the earlier ones.

    Textual runs priority bindings at once but queues other keys for their widget. Without this class, a quick Enter
    selects from a list before the letters typed earlier have filtered it.
    """

    def watch_app_focus(self, focus: bool) -> None:
        """Give the keys to a screen that opened while the terminal was not focused. Textual leaves it without focus."""
        if focus and self.is_running and self.screen.focused is None:
            selector = self.AUTO_FOCUS if self.screen.AUTO_FOCUS is None else self.screen.AUTO_FOCUS
            widgets = self.screen.query(selector) if selector else ()
            self.screen.set_focus(next((widget for widget in widgets if widget.focusable), None))

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not event.is_forwarded:
            if event.key.startswith("alt+"):
                event.character = None  # Textual names the letter, and editors would insert it and ignore the binding
            elif is_unprintable_text(event.character):
                event = TypedCharacter(event.key, event.character)
            with suppress(TimeoutError):
                async with asyncio.timeout(MAX_WAIT_SECONDS):
                    await self._wait_for_earlier_keys()
        await super().on_event(event)

    async def _wait_for_earlier_keys(self) -> None:
        """Wait for the focused widget, then for its ancestors, which receive its messages."""
        first = self.focused or self.screen
        await _wait_until_idle(first)
        for pump in first.ancestors_with_self:
            if pump is self:
                return
            await _wait_until_idle(pump)


async def _wait_until_idle(pump: MessagePump) -> None:
    """Wait until a widget has handled all messages in its queue."""
    done = asyncio.Event()
    if pump.call_later(done.set):
        await done.wait()
