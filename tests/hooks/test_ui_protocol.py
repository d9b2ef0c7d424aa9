from sessiontree.hooks.ui_protocol import NoUi


async def test_where_nobody_looks_nothing_is_chosen_and_everything_is_declined() -> None:
    ui = NoUi()

    assert ui.has_person is False
    assert await ui.select("Which?", ["a", "b"]) is None
    assert await ui.confirm("Sure?") is False
    assert await ui.confirm("Sure?", default=True) is True
    assert await ui.input("Name?") is None
    assert await ui.editor("Text?", "draft") is None
    assert await ui.custom(object()) is None


def test_what_nobody_sees_is_kept() -> None:
    ui = NoUi()

    ui.notify("hello")
    ui.notify("careful", "warning")
    ui.status("job", "running")

    assert ui.notices == [("info", "hello"), ("warning", "careful")]
