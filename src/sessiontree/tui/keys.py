"""Keys: everything that a key does, in one table, with the keys that do it unless the configuration says otherwise.

A name here is what `[keys]` in the configuration binds anew and what `/hotkeys` lists. Screens bind by it, and say
by it which keys there are.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any, NamedTuple

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, key_to_character
from textual.screen import Screen


class Key(NamedTuple):
    name: str
    keys: str
    """With commas between."""
    help: str


EDITOR = (
    Key("submit", "enter", "say it, or run the command; while the agent works, say it after its next step"),
    Key("follow_up", "alt+enter", "say it when the agent is done"),
    Key("newline", "shift+enter,ctrl+j", "begin a new line (so does a backslash before enter)"),
    Key("take_back", "alt+up", "take back what waits to be said"),
    Key("complete", "tab", "complete a command, an argument or an @file"),
    Key("previous", "up", "the line above; from the first, what was said before"),
    Key("next", "down", "the line below; from the last, what was said after"),
    Key("external_editor", "ctrl+g", "write in $EDITOR"),
    Key("clear", "ctrl+c", "copy what is selected, or clear the editor; twice, quit"),
    Key("leave", "ctrl+d", "quit, when the editor is empty"),
)
CHAT = (
    Key("abort", "escape", "abort what runs; twice in an empty editor, what `double_escape` says"),
    Key("tree", "ctrl+t", "the tree"),
    Key("sessions", "ctrl+r", "the sessions"),
    Key("models", "ctrl+l", "another model"),
    Key("thinking", "shift+tab", "more thinking, or none again"),
    Key("unfold", "ctrl+o", "unfold what tools said and the model thought, or fold it"),
    Key("browse", "ctrl+up", "go through the conversation block by block"),
    Key("page_up", "pageup", "a page up"),
    Key("page_down", "pagedown", "a page down"),
    Key("permission", "alt+p", "answer the question about a tool call"),
    Key("hotkeys", "f1", "the keys"),
)
BROWSE = (
    Key("block_up", "up,k", "the block above"),
    Key("block_down", "down,j", "the block below"),
    Key("block_fold", "enter,space", "unfold or fold this one"),
    Key("block_copy", "y,c", "copy this one"),
    Key("block_first", "home,g", "the beginning"),
    Key("block_last", "end,G", "the end"),
    Key("browse_end", "escape,ctrl+down,q", "back to the editor"),
)
SESSIONS = (
    Key("session_scope", "tab", "this folder, or all"),
    Key("session_named", "ctrl+n", "only those with a name, or all"),
    Key("session_archived", "ctrl+a", "the archived ones, or the others"),
    Key("session_rename", "ctrl+r", "give it a name"),
    Key("session_archive", "ctrl+s", "archive it, or bring it back"),
    Key("session_delete", "ctrl+x,delete", "delete it, after asking"),
)
TREE = (
    Key("tree_up", "up", "the row above"),
    Key("tree_down", "down", "the row below"),
    Key("tree_page_up", "pageup,left", "a page up"),
    Key("tree_page_down", "pagedown,right", "a page down"),
    Key("tree_first", "home", "the first row"),
    Key("tree_last", "end", "the last row"),
    Key("tree_turn_up", "alt+up", "what the user or the assistant said before"),
    Key("tree_turn_down", "alt+down", "what the user or the assistant said next"),
    Key("tree_fold", "ctrl+left,alt+left", "fold the segment; from inside it, to its beginning, then to the one above"),
    Key("tree_unfold", "ctrl+right,alt+right", "unfold the segment; or to the next one"),
    Key("tree_choose", "enter", "go there"),
    Key("tree_summarize", "shift+enter,ctrl+s", "go there, and summarize what is left"),
    Key("tree_escape", "escape", "clear the search; or leave the tree"),
    Key("tree_cancel", "ctrl+c", "leave the tree"),
    Key("tree_filter", "ctrl+o", "the next filter"),
    Key("tree_filter_back", "ctrl+shift+o,alt+o", "the filter before"),
    Key("tree_default", "ctrl+d", "show all but bookkeeping"),
    Key("tree_no_tools", "ctrl+t", "the same without tool results, or with them again"),
    Key("tree_user_only", "ctrl+u", "show only what the user said, or all again"),
    Key("tree_labeled_only", "ctrl+l", "show only what has a label, or all again"),
    Key("tree_all", "ctrl+a", "show everything, or not"),
    Key("tree_label", "L,shift+l", "label the entry (while nothing is searched)"),
    Key("tree_copy", "ctrl+x", "copy what the entry says"),
    Key("tree_detail", "tab", "the entry in full, what the model would see from there, or neither"),
    Key("tree_detail_up", "ctrl+up", "scroll what is shown of the entry up"),
    Key("tree_detail_down", "ctrl+down", "scroll what is shown of the entry down"),
    Key("tree_mark", "ctrl+k", "mark the entry; two that are marked are shown side by side"),
    Key("tree_beside", "ctrl+e", "show the two that are marked on the whole screen"),
)

AREAS: dict[str, tuple[Key, ...]] = {
    "editor": EDITOR,
    "chat": CHAT,
    "conversation": BROWSE,
    "sessions": SESSIONS,
    "tree": TREE,
}
"""All keys by where they work."""


NO_KEY = "none"
"""What is bound where the configuration says that nothing is to be."""
SHORT_NAMES = {"escape": "esc"}
"""Keys that hints call otherwise. The configuration may do so too."""
LONG_NAMES = {short: key for key, short in SHORT_NAMES.items()}

MODIFIERS = frozenset({"alt", "ctrl", "hyper", "meta", "shift", "super"})
RARE_KEYS = """\
caps_lock scroll_lock num_lock print_screen pause menu kp_begin decimal divide multiply subtract add equal separator
media_play media_pause media_play_pause media_reverse media_stop media_fast_forward media_rewind media_track_next
media_track_previous media_record lower_volume raise_volume mute_volume
"""
"""Keys that only some terminals tell of, and that are not in Textual's own list."""
NAMED_KEYS = frozenset(
    {
        *(key.value for key in Keys if key.value.replace("+", "").isalnum() and key is not Keys.Return),
        Keys.ControlAt.value,
        *KEY_NAME_REPLACEMENTS.values(),
        *RARE_KEYS.split(),
        *(f"f{number}" for number in range(25, 36)),
    }
)
"""Keys with names of their own; those of other signs are the names that Unicode has for them."""


def bind(name: str, action: str, *, priority: bool = False) -> Binding:
    """The binding of a key of the table to an action."""
    key = next(key for keys in AREAS.values() for key in keys if key.name == name)
    return Binding(key.keys, action, key.help, id=name, priority=priority, show=False)


def format_hints(screen: Screen[Any], *said: str | tuple[str, str]) -> str:
    """What keys do on a screen: `enter opens · tab this folder/all`.

    A key that is always the same is given with what it does, any other one by its name: it is shown as it is bound, and
    left out where it is not.
    """
    active = reversed(screen.active_bindings.items())
    keys = {bound.binding.id: SHORT_NAMES.get(key, key) for key, bound in active if key != NO_KEY}
    shown = [one if isinstance(one, str) else f"{keys[one[0]]} {one[1]}" if one[0] in keys else "" for one in said]
    return " · ".join(filter(None, shown))


def build_keymap(said: Mapping[str, str | list[str]]) -> dict[str, str]:
    """What the configuration says, as Textual takes it. What is no key is left out, and where nothing is left of what
    was said, the keys of the table hold."""
    bound = {
        name: [key for key in map(_normalize_key, _split_keys(keys)) if key is not None] for name, keys in said.items()
    }
    return {name: ",".join(keys) or NO_KEY for name, keys in bound.items() if keys or not _split_keys(said[name])}


def find_key_errors(said: Mapping[str, str | list[str]]) -> list[str]:
    """What is wrong with what the configuration says, a sentence for each."""
    usual = {key.name: key.keys for keys in AREAS.values() for key in keys}
    bound = {**usual, **build_keymap(said)}
    told: list[str] = []
    for name, keys in said.items():
        if name not in usual:
            told.append(f"[keys] in the configuration has {name!r}, which names no key: /hotkeys lists them")
            continue
        for key in _split_keys(keys):
            if _normalize_key(key) is None:
                on = bound[name].replace(",", ", ")
                told.append(f"[keys] in the configuration has {key!r} for {name!r}, which is no key: it is on {on}")
    return told


def _split_keys(keys: str | list[str]) -> list[str]:
    words = keys.split(",") if isinstance(keys, str) else keys
    return [word for word in map(str.strip, words) if word not in ("", NO_KEY)]


def _normalize_key(key: str) -> str | None:
    """A key as Textual tells it, `None` where there is none of that name."""
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
        sign = key_to_character(name)  # of `del` and the like too: Unicode has such names for what no key prints
        known = name in NAMED_KEYS or (sign is not None and not sign.isalnum() and _find_key_name(sign) == name)
    return "+".join([*sorted(set(modifiers)), name]) if known else None


def _find_key_name(sign: str) -> str:
    """The name of a sign's key; empty where it has none."""
    name = unicodedata.name(sign, "").lower().replace("-", "_").replace(" ", "_") if sign.isprintable() else ""
    return KEY_NAME_REPLACEMENTS.get(name, name)


def list_keys(said: Mapping[str, str]) -> list[tuple[str, list[Key]]]:
    """Every area with its keys, as they are bound."""
    return [
        (area, [key._replace(keys=said.get(key.name, key.keys).replace(",", ", ")) for key in keys])
        for area, keys in AREAS.items()
    ]
