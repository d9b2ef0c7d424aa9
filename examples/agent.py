"""An agent with a custom tool answers a question, goes back, and answers again on another branch.

Run it with `python examples/agent.py`; its model answers from a script and needs no key and no network.
For a real model, use `st.find_model("openai:gpt-5.5")` instead.
"""

import asyncio

import sessiontree as st

STOCK = {"apple": 3, "pear": 0}


@st.tool(concurrent=True)
def stock(fruit: str) -> str:
    """Return the number of pieces of a fruit in stock."""
    if fruit not in STOCK:
        raise st.ToolError(f"fruit {fruit!r} not found; fruits: {', '.join(STOCK)}")
    return str(STOCK[fruit])


def show(event: st.events.Event) -> None:
    if isinstance(event, st.events.MessageDelta) and event.kind == "text":
        print(event.text, end="", flush=True)
    elif isinstance(event, st.events.ToolEnd):
        print(f"[{event.call.name} {event.call.arguments}]")
    elif isinstance(event, st.events.RunEnd):
        print()


async def main() -> None:
    session = st.memory()
    model = st.ScriptedModel(
        [
            [st.ToolCall("c1", "stock", {"fruit": "apple"}), st.ToolCall("c2", "stock", {"fruit": "plum"})],
            "There are 3 apples and no plums.",
            "Three apples, sir.",
        ]
    )
    agent = st.Agent(session.head, model, tools=[stock], system="Answer in one sentence.")
    agent.hooks.listen(show)

    first = await agent.run("What is in stock?")
    assert first.text == "There are 3 apples and no plums."

    # Select the question and ask it in another way, next to the first answer.
    question = next(entry for entry in session.head.path() if entry.type == "message")
    plan = session.navigate_sync(question)
    assert plan.editor_text == "What is in stock?"
    second = await agent.run(f"{plan.editor_text} Politely.")
    assert second.text == "Three apples, sir."
    assert len(model.requests[-1].messages) == 1  # the other branch is not sent

    session.undo()
    assert session.head.path()[-1].id == first.message.id


asyncio.run(main())
