"""An agent with a tool of its own: it is steered, goes back, and answers again on another branch.

Run it with `python examples/agent.py`; its model answers from a script, so that it needs no key and no network.
For a real one, put `sessiontree.model.selection.find_model("openai:gpt-5.5")` in place of the script.
"""

import asyncio

import sessiontree as st
from sessiontree.core.messages import ToolCall
from sessiontree.hooks.events import Event, MessageDelta, RunEnd, ToolEnd
from sessiontree.model.scripted import ScriptedModel

STOCK = {"apple": 3, "pear": 0}


@st.tool(concurrent=True)
def stock(fruit: str) -> str:
    """How many there are of a fruit."""
    if fruit not in STOCK:
        raise st.ToolError(f"there is no {fruit!r}; there are {', '.join(STOCK)}")
    return str(STOCK[fruit])


def show(event: Event) -> None:
    if isinstance(event, MessageDelta) and event.kind == "text":
        print(event.text, end="", flush=True)
    elif isinstance(event, ToolEnd):
        print(f"[{event.call.name} {event.call.arguments}]")
    elif isinstance(event, RunEnd):
        print()


async def main() -> None:
    session = st.memory()
    model = ScriptedModel(
        [
            [ToolCall("c1", "stock", {"fruit": "apple"}), ToolCall("c2", "stock", {"fruit": "plum"})],
            "There are 3 apples and no plums.",
            "Three apples, sir.",
        ]
    )
    agent = st.Agent(session.head, model, tools=[stock], system="Answer in one sentence.")
    agent.hooks.listen(show)

    first = await agent.prompt("What is in stock?")
    assert first.text == "There are 3 apples and no plums."

    # Another way to ask, beside the first: the question is chosen, and asked anew.
    question = next(entry for entry in session.head.path() if entry.type == "message")
    plan = session.navigate(question)
    assert plan.editor_text == "What is in stock?"
    second = await agent.prompt(f"{plan.editor_text} Politely.")
    assert second.text == "Three apples, sir."
    assert len(model.requests[-1].messages) == 1  # nothing of the other branch

    session.undo()
    assert session.head.path()[-1].id == first.message.id


asyncio.run(main())
