"""A list of things to do that belongs to the place in the tree: on another branch it is another list.

Nothing is kept in memory. Each change is an entry, which the model does not see; the list is what the entries from the
root to here amount to. So it is right after navigating, after forking, and after a restart.
"""

from typing import Literal

STATE = "todo"


def setup(api):
    def items():
        found: dict[str, bool] = {}
        for entry in api.path(STATE):
            found[entry.body.data["text"]] = entry.body.data["done"]
        return found

    def shown():
        return "\n".join(f"[{'x' if done else ' '}] {text}" for text, done in items().items()) or "nothing to do"

    @api.register_tool
    def todo(action: Literal["add", "done", "list"], text: str = "") -> str:
        """Keep a list of what is to be done: add something, say that it is done, or look at the list."""
        if action != "list":
            api.append_entry(STATE, {"text": text, "done": action == "done"})
        return shown()

    @api.register_command("todo")
    def show(args, ctx):
        """Show what is to be done, or add to it."""
        if args:
            api.append_entry(STATE, {"text": args, "done": False})
        ctx.ui.notify(shown())

    @api.register_renderer(STATE)
    def render(entry):
        return f"{'done' if entry.body.data['done'] else 'to do'}: {entry.body.data['text']}"
