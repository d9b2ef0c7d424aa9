"""Summarize abandoned branches in a custom format: here, one line for each entry.

Copy it to `~/.sessiontree/extensions/`, or try it with `sessiontree -p -e custom_summarizer.py "…"`.
"""

import sessiontree as st


def setup(api):
    @api.on("session_before_tree")
    async def summarize(event, ctx):
        entries = event.preparation.entries_to_summarize
        if not event.preparation.user_wants_summary or not entries:
            return None
        lines = [f"- {st.format_entry_row(entry)}" for entry in entries]
        return {"summary": {"summary": "What was tried:\n" + "\n".join(lines), "details": {"custom": True}}}
