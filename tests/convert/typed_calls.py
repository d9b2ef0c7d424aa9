"""Calls as users write them. `test_typing.py` checks their types; they are not run."""

# pyright: strict
import anthropic
import openai
from google import genai
from google.genai import types
from pydantic_ai import Agent

import sessiontree as st


def ask(session: st.Session) -> None:
    context = session.head.context()
    chat = openai.OpenAI().chat.completions.create(model="m", messages=context.to_openai())
    session.head.extend(st.from_openai([chat]))
    response = openai.OpenAI().responses.create(model="m", input=context.to_openai_responses())
    session.head.extend(st.from_openai_responses([response]))
    messages = context.to_anthropic()
    answer = anthropic.Anthropic().messages.create(model="m", max_tokens=9, system=messages.system, messages=messages)
    session.head.extend(st.from_anthropic([answer]))
    contents = context.to_gemini()
    config = types.GenerateContentConfig(system_instruction=contents.system or None)
    # The SDK's own type mentions Pillow, which is not installed here.
    client = genai.Client()
    result = client.models.generate_content(  # pyright: ignore[reportUnknownMemberType]
        model="m", contents=contents, config=config
    )
    session.head.extend(st.from_gemini([result]))
    run = Agent("test").run_sync("Hello", message_history=context.to_pydantic_ai())
    session.head.extend(st.from_pydantic_ai(run.new_messages()))
    for omission in contents.omitted:
        print(omission.entry, omission.position, omission.block, omission.reason)
