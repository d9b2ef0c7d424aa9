"""Compact with another, cheaper model, in one request.

Set `SUMMARY_MODEL` to `provider:model`. If the request fails, the session is compacted as usual.
"""

import os

import sessiontree as st

PROMPT = "Summarize this conversation for another agent that continues it. Keep every decision and every file name."


def setup(api):
    @api.on("session_before_compact")
    async def compact(event, ctx):
        model = ctx.models.find(os.environ.get("SUMMARY_MODEL"))
        preparation = event.preparation
        messages = [*preparation.messages, *preparation.prefix_messages]
        parts = [PROMPT, preparation.previous_summary, *map(st.format_message, messages), event.custom_instructions]
        asked = {"role": "user", "content": "\n\n".join(part for part in parts if part)}
        answer = await st.complete(model, st.Request(messages=[asked]))
        text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
        ctx.ui.notify(f"compacted by {model.info.name}")
        return {"compaction": {"summary": text, "details": {"model": model.info.name}, "usage": answer["usage"]}}
