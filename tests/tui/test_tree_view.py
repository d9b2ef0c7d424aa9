"""Keys and rows of the tree widget in a running app."""

from __future__ import annotations

import sys

import pytest

import sessiontree as st
from sessiontree.config import Config
from sessiontree.core.entries import Compaction, ThinkingLevelChange
from sessiontree.core.messages import assistant, tool_call, tool_result, user
from sessiontree.tui.keys import TREE
from sessiontree.tui.screens.tree_screen import TreeApp


def create_two_branches():
    """user, assistant, [read], then two branches: `cache`, which is active, and `dict`."""
    session = st.memory("speed")
    session.append(user("How do I make this faster?"))
    session.append(assistant([tool_call("c1", "read", {"path": "slow.py"})]))
    session.append(tool_result("c1", "read", "def slow(): pass"))
    answer = session.append(assistant("A cache, or a dict?"))
    session.label(answer, "two-ways")
    for name in ("dict", "cache"):
        session.create_branch(name, at="two-ways")
        session.append(user(f"With a {name}."))
        session.append(assistant(f"The {name} is done."))
    return session


class Driver:
    """Drives the app under test."""

    def __init__(self, app, pilot):
        self.app = app
        self.pilot = pilot

    @property
    def screen(self):
        return self.app.screen

    @property
    def view(self):
        return self.app.screen_stack[1].view

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.wait_until_idle()

    async def wait_until_idle(self):
        for _ in range(200):
            await self.pilot.pause()
            if self.view.progress is None and self.view.outline is not None:
                return
            await self.pilot.pause(0.02)
        raise AssertionError("the rows never came")

    def read_rows(self):
        view = self.view
        return [view.render_line(y).text.rstrip() for y in range(min(view.size.height, len(view._folds)))]

    @property
    def cursor(self):
        """The text of the cursor row."""
        [row] = [row for row in self.read_rows() if row.startswith("›")]
        return row[1:].strip()

    def read_screen(self):
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())

    async def wait_for_text(self, words, *, there=True):
        """Wait until the screen contains these texts, or no longer contains them."""
        for _ in range(500):
            if (words in self.read_screen()) == there:
                return self.read_screen()
            await self.pilot.pause(0.02)
        raise AssertionError(f"{words!r} {'never came' if there else 'stayed'}; the screen is\n{self.read_screen()}")


class OpenTree:
    def __init__(self, session, *, size=(80, 40), keys=None, app=None):
        self.app = app or TreeApp(session, Config(keys=keys or {}))
        self.size = size

    async def __aenter__(self):
        self._context = self.app.run_test(size=self.size, notifications=True)
        driver = Driver(self.app, await self._context.__aenter__())
        await driver.wait_until_idle()
        return driver

    async def __aexit__(self, *error):
        await self._context.__aexit__(*error)


# Drawing


async def test_the_tree_looks_like_the_command_output_with_a_cursor():
    async with OpenTree(create_two_branches()) as tree:
        assert tree.read_rows() == [
            "  • user: How do I make this faster?",
            "  • [read: slow.py]",
            "  • [two-ways] assistant: A cache, or a dict? (main)",
            "  ├⊟ • [branch cache]",
            "  │     • user: With a cache.",
            "› │     • assistant: The cache is done. (cache) ← active",
            "  └⊟ [branch dict]",
            "        user: With a dict.",
            "        assistant: The dict is done. (dict)",
        ]


async def test_a_compaction_shows_its_token_count():
    session = st.memory()
    first = session.append(user("hi"))
    session.append(Compaction(summary="so far", first_kept=first.id, tokens_before=12_345))

    async with OpenTree(session) as tree:
        assert tree.read_rows()[1] == "› • [compaction: 12k tokens] (main) ← active"


@pytest.mark.parametrize(("size", "half"), [((80, 24), 17), ((160, 48), 24)])
async def test_the_panel_takes_half_of_the_terminal_and_at_least_17_rows(size, half):
    async with OpenTree(create_two_branches(), size=size) as tree:
        assert tree.screen.query_one(".panel").outer_size.height == half


async def test_suffixes_stay_visible_after_a_long_text():
    session = st.memory()
    session.append(user("word " * 100))

    async with OpenTree(session) as tree:
        [row] = tree.read_rows()
        assert row.endswith("… (main) ← active")


async def test_a_wide_tree_pans_and_every_row_keeps_room_for_its_text():
    session = st.memory()
    place = session.append(user("root"))
    for number in range(30):
        session.append(user(f"aside {number} and more words"), parent=place)
        place = session.append(user(f"level {number} and more words"), parent=place)

    async with OpenTree(session, size=(60, 80)) as tree:
        assert tree.cursor.endswith("user: level 29 and more … (main) ← active")
        assert all("user: level" in row or "user: aside" in row or "user: root" in row for row in tree.read_rows())
        assert tree.cursor.startswith("…")
        await tree.press("home")
        assert tree.cursor == "• user: root"


@pytest.mark.parametrize("width", [80, 120, 200])
async def test_a_deep_tree_leaves_most_of_the_width_to_the_text(width):
    session = st.memory()
    place = session.append(user("root"))
    for number in range(80):
        session.append(user(f"aside {number} {'x' * 200}"), parent=place)
        place = session.append(user(f"level {number} {'x' * 200}"), parent=place)

    async with OpenTree(session, size=(width, 60)) as tree:
        for keys in ((), ("up",) * 5, ("home",), ("pagedown",) * 3):
            await tree.press(*keys)
            assert tree.cursor.index("user: ") <= width // 4 + 4
            assert all(row.index("user: ") <= width // 2 + 4 for row in tree.read_rows())


async def test_the_cursor_row_is_centered():
    session = st.memory()
    session.extend([user(f"message {number}") for number in range(100)])

    async with OpenTree(session, size=(80, 24)) as tree:
        middle = tree.view.size.height // 2
        await tree.press("home")
        assert tree.view.scroll_offset.y == 0
        for keys in (("down",) * 30, ("up",) * 3, ("pagedown",), ("alt+down",)):
            await tree.press(*keys)
            assert tree.view.cursor_position[0] - 1 - tree.view.scroll_offset.y == middle
        await tree.press("end")
        assert tree.view.scroll_offset.y == tree.view.max_scroll_y


async def test_a_click_does_not_scroll():
    session = st.memory()
    session.extend([user(f"message {number}") for number in range(100)])

    async with OpenTree(session, size=(80, 24)) as tree:
        await tree.press("home")
        await tree.press(*["down"] * 30)
        top = tree.view.scroll_offset.y
        await tree.pilot.click(tree.view, offset=(10, 1))
        await tree.wait_until_idle()
        assert tree.view.scroll_offset.y == top
        assert f"message {top + 1}" in tree.cursor


async def test_long_labels_and_many_branches_leave_room_for_the_text():
    session = st.memory()
    place = session.append(user("what it is about"))
    session.label(place, "label " * 20)
    for number in range(6):
        session.create_branch(f"branch-{number}-{'x' * 40}", at=place, current=False)
    session.append(assistant("no branch is at the first entry but main"))
    session.move(place)
    for name in list(session.heads.heads)[1:]:
        session.move(place, branch=name)

    async with OpenTree(session, size=(160, 40)) as tree:
        assert "[label label label label…] user: what it is about" in tree.cursor
        assert "(and 4 more) ← active" in tree.cursor


async def test_hostile_text_is_shown_as_text():
    session = st.memory("\x1b]0;owned\x07")
    entry = session.append(user("red \x1b[31m and \x9b2J \u202e back"))
    session.label(entry, "\x1b[2J")

    async with OpenTree(session) as tree:
        await tree.wait_for_text("▌ red \\x1b[31m")
        await tree.press("tab", "tab")
        await tree.wait_for_text("From here the model sees")
        shown = await tree.wait_for_text("\\x1b[31m")
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)


async def test_an_empty_session_is_reported():
    async with OpenTree(st.memory()) as tree:
        await tree.wait_for_text("This session is empty.")


# Moving


async def test_up_and_down_move_by_rows_and_wrap():
    async with OpenTree(create_two_branches()) as tree:
        await tree.press("up")
        assert "With a cache." in tree.cursor
        await tree.press("down", "down")
        assert "[branch dict]" in tree.cursor
        await tree.press("home")
        assert "faster" in tree.cursor
        await tree.press("up")
        assert "The dict is done." in tree.cursor
        await tree.press("down")
        assert "faster" in tree.cursor
        await tree.press("end")
        assert "The dict is done." in tree.cursor


async def test_page_keys_move_by_the_visible_height_and_stop_at_the_ends():
    session = st.memory()
    session.extend([user(f"message {number}") for number in range(100)])

    async with OpenTree(session, size=(80, 24)) as tree:
        page = tree.view.size.height - 1
        for key, place in (("pageup", 100 - page), ("left", 100 - 2 * page), ("pagedown", 100 - page), ("right", 100)):
            await tree.press(key)
            assert tree.view.cursor_position == (place, 100)
        await tree.press("right")
        assert tree.view.cursor_position == (100, 100)
        assert "message 99" in tree.cursor


async def test_turn_keys_skip_tool_results():
    async with OpenTree(create_two_branches()) as tree:
        await tree.press("home", "alt+down")
        assert "two-ways" in tree.cursor
        await tree.press("alt+up")
        assert "faster" in tree.cursor
        await tree.press("alt+up")
        assert "faster" in tree.cursor


async def test_a_segment_is_folded_at_its_start_and_unfolded():
    async with OpenTree(create_two_branches()) as tree:
        await tree.press("ctrl+left")
        assert "[branch cache]" in tree.cursor
        await tree.press("alt+left")
        assert tree.read_rows()[3] == "› ├⊞ • [branch cache] (+2) (cache: hidden below) ↓ active"
        assert len(tree.read_rows()) == 7
        await tree.press("ctrl+left")
        assert "faster" in tree.cursor, "folded already: to the segment above"
        await tree.press("ctrl+right")
        assert "⊞" in tree.cursor
        await tree.press("alt+right")
        assert len(tree.read_rows()) == 9
        await tree.press("ctrl+right")
        assert "[branch dict]" in tree.cursor
        await tree.press("ctrl+right")
        assert "The dict is done." in tree.cursor, "there is no further segment"


# Filters


@pytest.mark.parametrize(
    ("key", "filter", "count"),
    [
        ("ctrl+d", "default", 9),
        ("ctrl+t", "no-tools", 8),
        ("ctrl+u", "user-only", 3),
        ("ctrl+l", "labeled-only", 1),
        ("ctrl+a", "all", 12),
    ],
)
async def test_each_filter_key_toggles_its_filter(key, filter, count):
    async with OpenTree(create_two_branches()) as tree:
        await tree.press(key)
        assert (tree.view.filter, len(tree.read_rows())) == (filter, count)
        await tree.press(key)
        assert (tree.view.filter, len(tree.read_rows())) == ("default", 9)


async def test_filters_cycle_in_both_directions():
    async with OpenTree(create_two_branches()) as tree:
        seen = []
        for _ in range(5):
            await tree.press("ctrl+f")
            seen.append(tree.view.filter)
        assert seen == ["no-tools", "user-only", "labeled-only", "all", "default"]
        await tree.press("alt+f")
        assert tree.view.filter == "all"


async def test_one_key_toggles_between_everything_and_the_default():
    async with OpenTree(create_two_branches()) as tree:
        for expected in ("all", "default", "all"):
            await tree.press("ctrl+o")
            assert tree.view.filter == expected


async def test_the_cursor_returns_to_its_entry_when_it_is_visible_again():
    async with OpenTree(create_two_branches()) as tree:
        await tree.press("home", "down")
        assert "[read: slow.py]" in tree.cursor
        await tree.press("ctrl+t")
        assert "faster" in tree.cursor, "hidden: the nearest row above"
        await tree.press("ctrl+t")
        assert "[read: slow.py]" in tree.cursor


async def test_connectors_bridge_filtered_entries():
    async with OpenTree(create_two_branches()) as tree:
        await tree.press("ctrl+u")
        assert tree.read_rows() == [
            "  • user: How do I make this faster? (main: hidden below)",
            "› ├─ • user: With a cache. (cache: hidden below) ↓ active",
            "  └─ user: With a dict. (dict: hidden below)",
        ]


async def test_a_search_keeps_branch_names_and_the_active_mark():
    async with OpenTree(create_two_branches(), size=(100, 30)) as tree:
        await tree.press(*"faster")
        assert tree.read_rows() == [
            "› • user: How do I make this faster? (main, dict, cache: hidden below) ↓ active",
        ]
        await tree.press("escape")
        await tree.press(*"done")
        assert tree.read_rows() == [
            "› • assistant: The cache is done. (cache) ← active",
            "  assistant: The dict is done. (dict)",
        ]


async def test_a_branch_with_a_hidden_head_is_named_at_the_nearest_visible_row():
    session = create_two_branches()
    session.append(ThinkingLevelChange("high"), branch="dict")
    async with OpenTree(session) as tree:
        assert tree.read_rows()[-1] == "        assistant: The dict is done. (dict)"
        await tree.press("ctrl+a")
        assert "        [thinking: high] (dict)" in tree.read_rows()
        assert "        assistant: The dict is done." in tree.read_rows()


# Searching


async def test_typing_searches_for_all_words_in_any_order():
    async with OpenTree(create_two_branches()) as tree:
        await tree.press(*"dict", "space", *"user")
        assert tree.read_rows() == ["› user: With a dict. (dict: hidden below)"]
        await tree.wait_for_text("search: dict user")
        await tree.press(*["backspace"] * 4)
        assert len(tree.read_rows()) == 4
        await tree.press("escape")
        assert len(tree.read_rows()) == 9


async def test_a_search_finds_labels_and_accepts_a_capital_l():
    async with OpenTree(create_two_branches()) as tree:
        await tree.press(*"two-ways")
        assert len(tree.read_rows()) == 1
        await tree.press("L")
        assert tree.view.query_text == "two-waysL"
        await tree.wait_for_text('No matches for "two-waysL" in the filter default')
        await tree.press("escape", *"faster")
        assert len(tree.read_rows()) == 1, "the keyboard is still here"


async def test_pasted_text_is_searched():
    async with OpenTree(create_two_branches()) as tree:
        from textual.events import Paste

        tree.view.post_message(Paste("cache\nis done"))
        await tree.wait_until_idle()
        assert tree.view.query_text == "cache is done"
        assert len(tree.read_rows()) == 1


# A tree that grows, keys, and work


async def test_new_entries_appear_and_the_cursor_stays():
    session = create_two_branches()
    async with OpenTree(session) as tree:
        await tree.press("up")
        session.append(user("More."))
        tree.view.refresh_tree()
        await tree.wait_until_idle()
        assert "With a cache." in tree.cursor
        assert any("user: More. (cache) ← active" in row for row in tree.read_rows())


async def test_folds_stay_when_the_session_grows():
    session = create_two_branches()
    async with OpenTree(session) as tree:
        await tree.press("end", "ctrl+left", "ctrl+left")
        assert "⊞" in tree.cursor
        session.append(user("More."))
        tree.view.refresh_tree()
        await tree.wait_until_idle()
        assert "⊞ [branch dict] (+2)" in tree.cursor


async def test_the_tree_is_usable_without_colors(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with OpenTree(create_two_branches()) as tree:
        await tree.press("up")
        assert tree.cursor == "│     • user: With a cache."


async def test_every_key_can_be_rebound():
    keys = {"tree_up": "k", "tree_filter": ["f5", "f6"]}
    async with OpenTree(create_two_branches(), size=(120, 40), keys=keys) as tree:
        await tree.wait_for_text("F5 filter")
        await tree.press("k", "f6")
        assert tree.view.filter == "no-tools"
        assert tree.view.query_text == ""
        assert "With a cache." in tree.cursor


def test_every_key_of_the_table_is_bound():
    from sessiontree.tui.widgets.tree_view import TreeView

    assert {binding.id for binding in TreeView.BINDINGS} == {key.name for key in TREE}


def count_calls(function):
    """Count the calls of functions in this package."""
    count = 0

    def count_call(frame, event, argument):
        nonlocal count
        if event == "call" and "/sessiontree/" in frame.f_code.co_filename:
            count += 1

    sys.setprofile(count_call)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def create_large(entries):
    session = st.memory()
    bodies = [user(f"message {number}") for number in range(entries // 2)]
    half = session.extend(bodies)
    session.extend(bodies, parent=half[len(half) // 2])
    return session


def list_actions(view):
    return [
        ("step", lambda: view.action_step(1)),
        ("page", lambda: view.action_page(1)),
        ("edge", lambda: view.action_edge(1)),
        ("turn", lambda: view.action_turn(-1)),
        ("to the beginning of the segment", lambda: view.action_fold()),
        ("fold", lambda: view.action_fold()),
        ("unfold", lambda: view.action_unfold()),
        ("mark", lambda: view.action_mark()),
        ("draw", lambda: redraw(view)),
    ]


def redraw(view):
    view._texts.clear()
    for y in range(10):
        view.render_line(y)


async def test_the_work_for_a_key_does_not_grow_with_the_tree():
    counts = []
    for entries in (200, 6000):
        async with OpenTree(create_large(entries), size=(80, 24)) as tree:
            tree.view.action_edge(0)
            counts.append({what: count_calls(doing) for what, doing in list_actions(tree.view)})
            await tree.pilot.pause()

    small, big = counts
    assert all(small.values())
    assert {name: count for name, count in big.items() if count > 1.2 * small[name] + 5} == {}


async def test_layout_of_a_large_tree_runs_in_slices_and_keys_respond(monkeypatch):
    monkeypatch.setattr("sessiontree.tui.widgets.tree_view.FRAME_SECONDS", 0.0)
    async with OpenTree(create_large(4000), size=(80, 24)) as tree:
        tree.view.action_filter("all")
        assert tree.view.progress is not None
        tree.view.action_filter("user-only")
        tree.view.action_step(-1)
        await tree.wait_until_idle()
        assert tree.view.outline.filter == "user-only"


# Trees that are shown in part


def create_windowed(monkeypatch, count=200):
    monkeypatch.setattr("sessiontree.tui.widgets.tree_view.MAX_WHOLE_TREE", 100)
    monkeypatch.setattr("sessiontree.tui.widgets.tree_view.WINDOW_ENTRIES", 20)
    session = st.memory("large")
    session.extend([user(f"number {number}") for number in range(count)])
    return session


async def test_a_large_tree_opens_with_the_rows_around_the_cursor(monkeypatch):
    async with OpenTree(create_windowed(monkeypatch)) as tree:
        assert tree.view.is_window
        assert tree.view.cursor_position == (11, 11)
        assert tree.cursor == "• user: number 199 (main) ← active"
        assert "11/11 nearby" in tree.read_screen()


@pytest.mark.parametrize(
    ("keys", "cursor"), [(("home",), "number 0"), (("down",), "number 0"), (("up",) * 12, "number 187")]
)
async def test_a_move_out_of_the_nearby_rows_lays_out_the_whole_tree(monkeypatch, keys, cursor):
    async with OpenTree(create_windowed(monkeypatch)) as tree:
        await tree.press(*keys)

        assert not tree.view.is_window
        assert tree.view.cursor_position[1] == 200
        assert cursor in tree.cursor


async def test_a_search_and_an_empty_filter_look_at_the_whole_tree(monkeypatch):
    session = create_windowed(monkeypatch)
    async with OpenTree(session) as tree:
        await tree.press(*"number", "space", *"42")
        assert [row for row in tree.read_rows() if "number 42" in row]
    session.label("HEAD~150", "far")
    async with OpenTree(session) as tree:
        await tree.press("ctrl+l")
        assert "[far]" in tree.cursor
