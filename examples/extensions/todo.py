"""A to-do list for each place in the tree: every branch has its own list.

Each change is an entry that the model does not see, and the list is computed from the entries between the root and
the current place. It is therefore correct after you navigate, fork or restart.
"""

from typing import Literal

STATE = "todo"


def setup(api):
    def read_items():
        found: dict[str, bool] = {}
        for entry in api.path(STATE):
            found[entry.body.data["text"]] = entry.body.data["done"]
        return found

    def format_items():
        return "\n".join(f"[{'x' if done else ' '}] {text}" for text, done in read_items().items()) or "Nothing to do"

    @api.register_tool
    def todo(action: Literal["add", "done", "list"], text: str = "") -> str:
        """Manage a to-do list: add an item, mark it as done, or show the list."""
        if action != "list":
            api.append_entry(STATE, {"text": text, "done": action == "done"})
        return format_items()

    @api.register_command("todo")
    def show(args, ctx):
        """Show the to-do list, or add an item."""
        if args:
            api.append_entry(STATE, {"text": args, "done": False})
        ctx.ui.notify(format_items())

    @api.register_renderer(STATE)
    def render(entry):
        return f"{'done' if entry.body.data['done'] else 'to do'}: {entry.body.data['text']}"
