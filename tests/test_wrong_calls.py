"""Wrong calls that a newcomer makes, each with the error message that names the expected form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sessiontree as st


def read_file(path: str) -> str:
    """Read a file."""
    return path


def untyped(path):
    return path


def script(*answers: Any) -> st.ScriptedModel:
    return st.ScriptedModel(answers)


def switch_to_label(session: st.Session) -> None:
    first, _ = session.extend([st.user("one"), st.user("two")])
    session.label(first, "start")
    session.switch("start")


TWO_ARMS = [st.Arm(name="a", prompt="a"), st.Arm(name="b", prompt="b")]

CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    # sessions
    "a view instead of a message": (
        lambda s: s.append(st.UserMessage("hi")),
        "UserMessage is a view of a stored message; make one with st.user(…)",
    ),
    "text instead of a message": (
        lambda s: s.append("hi"),
        "an entry needs a body such as st.user(\"hi\"), not str; write st.user('hi')",
    ),
    "a dictionary instead of a message": (
        lambda s: s.head.append({"role": "user", "content": "hi"}),
        'an entry needs a body such as st.user("hi"), not dict',
    ),
    "text in a list of messages": (
        lambda s: s.extend([st.user("hi"), "hello"]),
        "not str; write st.user('hello')",
    ),
    "one message instead of a list": (
        lambda s: s.head.extend(st.user("x")),
        'extend needs a list such as [st.user("hi")], not Message; use append for one entry',
    ),
    "one item instead of a list": (
        lambda s: s.extend(st.Item(st.user("x"))),
        'extend needs a list such as [st.user("hi")], not Item; use append for one entry',
    ),
    "a label without a text": (
        lambda s: s.label("x"),
        'label needs a place and a text, such as session.label("HEAD", "start")',
    ),
    "a number as a label": (
        lambda s: s.label(s.append(st.user("x")), 3),
        "a label is text, not int",
    ),
    "a number instead of a session to open": (
        lambda s: st.open(3),
        "open needs the path, name or id of a session, not int",
    ),
    "an open session instead of its name": (
        lambda s: st.open(s),
        "open needs the path, name or id of a session, not Session",
    ),
    "a list as the name of a session": (
        lambda s: st.create(["x"]),
        "the name of a session is text, not list",
    ),
    "a number as the name of a session": (
        lambda s: s.rename(3),
        "the name of a session is text, not int",
    ),
    "a number as a branch": (
        lambda s: s.branch(3),
        "a branch is given by its name, not by int",
    ),
    "a branch that does not exist": (
        lambda s: s.append(st.user("x"), branch="cache"),
        "branch 'cache' not found; branches: main",
    ),
    "a handle as the name of a branch": (
        lambda s: s.append(st.user("x"), branch=s.head),
        "a branch is given by its name, not by Branch",
    ),
    "an empty name of a branch": (
        lambda s: s.create_branch(""),
        "invalid branch name '': it is empty",
    ),
    "a number as the name of a new branch": (
        lambda s: s.create_branch(3),
        "the name of a branch is text, not int",
    ),
    "a switch to a label": (
        switch_to_label,
        "'start' is a label, not a branch; use navigate to go to a label",
    ),
    "a number as a place": (
        lambda s: s.context(3),
        "a place is a name, an entry, a branch or None, not int",
    ),
    "a number as a timestamp": (
        lambda s: s.extend([st.Item(st.user("x"), timestamp=1.5)]),
        'a timestamp is an ISO time such as "2026-03-01T09:30:00.000Z", not 1.5',
    ),
    "a comparison without a session": (
        lambda s: st.compare("auth", ["main"]),
        "compare needs a session, not str; open one with st.open",
    ),
    "an entry instead of its body": (
        lambda s: s.append(s.append(st.user("x"))),
        "not Entry; to append a copy, write entry.body",
    ),
    "a number as a query": (
        lambda s: st.search(3),
        'a query is text such as "cache role:user", not int',
    ),
    "negative tokens": (
        lambda s: s.append(st.assistant("x", usage={"input": -5})),
        'usage has "input": -5; use numbers from 0, as in {"input": 10, "output": 5, "cost": 0.01}',
    ),
    "a negative cost": (
        lambda s: s.append(st.assistant("x", usage={"cost": -0.1})),
        'usage has "cost": -0.1; use numbers from 0',
    ),
    "a value as the result of a tool": (
        lambda s: s.append(st.tool_result("c1", "read", {"lines": 3})),
        "a content block has no type; the content of a toolResult message is text, or a list of st.Text(text) and ",
    ),
    "a message of Gemini with content instead of parts": (
        lambda s: st.from_gemini([{"role": "user", "content": "x"}]),
        "contents[0].parts: expected a list of parts, not nothing",
    ),
    "run_sync with a function that was not called": (
        lambda s: st.run_sync(s.head.navigate),
        "run_sync takes an operation that is async, such as st.run_sync(branch.navigate(place)), not method",
    ),
    # agents
    "a session in place of a tree": (
        lambda s: st.explain(s, s.head.leaf),
        "explain needs a tree such as session.tree, not Session",
    ),
    "a session in place of a tree for the context": (
        lambda s: st.build_context(s, None),
        "build_context needs a tree such as session.tree, not Session",
    ),
    "a summary without a model": (
        lambda s: (s.append(st.user("hi")), s.append(st.assistant("hello")), st.run_sync(s.head.compact())),
        'a summary needs a model; pass model="provider:model", or your own summary',
    ),
    "a number in place of the name of a model": (
        lambda s: st.find_model(3),
        'a model is given by its name, such as "openai:gpt-5.5", not by int',
    ),
    "the name of a session instead of a session": (
        lambda s: st.Agent("auth"),
        "an agent works on a session or a branch, not on the text 'auth'; open a session with st.open('auth') first",
    ),
    "a model in place of the session": (
        lambda s: st.Agent(script()),
        "an agent works on a session or a branch, not on a model; pass the model as model=…",
    ),
    "a number in place of the session": (
        lambda s: st.Agent(3, script()),
        "an agent works on a session or a branch, not on 3 (int)",
    ),
    "a message as the answer of a scripted model": (
        lambda s: st.ScriptedModel([st.assistant("hi")]),
        "an answer of a script is a text, an st.ToolCall, a list of these or a function, not Message(",
    ),
    "a handler in place of the context of hooks": (
        lambda s: st.Hooks(print),
        "hooks take an st.HookContext, not <built-in function print>; add handlers with hooks.on(…)",
    ),
    "an unknown model": (
        lambda s: st.Agent(s.head, "x"),
        "provider 'x' not found; use provider:model; providers: ",
    ),
    "a class in place of a model": (
        lambda s: st.Agent(s, st.ScriptedModel),
        'a model is a name such as "openai:gpt-5.5", or a model from st.find_model, not ',
    ),
    "a number among the tools": (
        lambda s: st.Agent(s, script(), tools=[3]),
        "a tool is a function or an st.Tool, not 3 (int)",
    ),
    "the name of a built-in tool among the tools": (
        lambda s: st.Agent(s, script(), tools=["read"]),
        "a tool is a function or an st.Tool, not 'read' (str); a built-in tool is in st.builtin_tools('read')",
    ),
    "one function in place of a list of tools": (
        lambda s: st.Agent(s, script(), tools=read_file),
        "tools is a list: write tools=[read_file]",
    ),
    "text in place of a list of tools": (
        lambda s: st.Agent(s, script(), tools="read"),
        "tools is a list of functions and tools, not 'read' (str)",
    ),
    "the same tool twice": (
        lambda s: st.Agent(s, script(), tools=[read_file, read_file]),
        "two tools have the name 'read_file'; rename one with st.tool(name=…)",
    ),
    "a tool without types": (
        lambda s: st.Agent(s, script(), tools=[untyped]),
        "untyped cannot be a tool: its parameter 'path' has no type",
    ),
    "a lambda as a tool": (
        lambda s: st.Agent(s, script(), tools=[lambda path: path]),
        "a lambda cannot be a tool: define a function with a name and types",
    ),
    "a number as the system prompt": (
        lambda s: st.Agent(s, script(), system=3),
        "system is text, not 3 (int)",
    ),
    "a list of handlers in place of hooks": (
        lambda s: st.Agent(s, script(), hooks=[print]),
        "hooks is an st.Hooks, not [<built-in function print>] (list)",
    ),
    "a word that is no thinking level": (
        lambda s: st.Agent(s, script(), thinking="very"),
        "thinking is one of off, minimal, low, medium, high, xhigh, not 'very' (str)",
    ),
    "a number as the folder": (
        lambda s: st.Agent(s, script(), cwd=3),
        "cwd is the path of a folder, not 3 (int)",
    ),
    "a word in place of permissions": (
        lambda s: st.Agent(s, script(), permissions="allow-all"),
        "permissions is an st.Permissions, not 'allow-all' (str)",
    ),
    "a dictionary in place of settings": (
        lambda s: st.Agent(s, script(), settings={"model": "x"}),
        "settings is an st.Config, not {'model': 'x'} (dict)",
    ),
    "a number as a prompt": (
        lambda s: st.Agent(s, script()).run_sync(3),
        "a prompt is text, not 3 (int)",
    ),
    "one image in place of a list": (
        lambda s: st.Agent(s, script()).run_sync("Look", st.Image(b"", "image/png")),
        "images is a list such as [st.Image(data, media_type)], not Image",
    ),
    "a path in place of the bytes of an image": (
        lambda s: s.append(st.user(["Look", st.Image("a.png", "image/png")])),
        'an image needs its bytes, such as Path("a.png").read_bytes(), not str',
    ),
    "a call in place of its id": (
        lambda s: s.append(st.tool_result(st.ToolCall("c1", "read", {}), "read", "text")),
        "a tool result needs the id of its call, such as call.id, not ToolCall",
    ),
    "a value in place of an output type": (
        lambda s: st.Agent(s, script()).run_sync("Go", output=object()),
        "cannot be an output type: ",
    ),
    # fan-outs and experiments
    "one prompt in place of variants": (
        lambda s: st.run_sync(st.fan_out(s, "HEAD", "one", model=script())),
        "variants is a list of prompts or st.Variant, not 'one' (str)",
    ),
    "a number as a variant": (
        lambda s: st.run_sync(st.fan_out(s, "HEAD", [3], model=script())),
        "a variant is a prompt or an st.Variant, not 3 (int)",
    ),
    "a fan-out with an unknown model": (
        lambda s: st.run_sync(st.fan_out(s, "HEAD", ["one"], model="nobody:nothing")),
        "provider 'nobody' not found",
    ),
    "prompts in place of arms": (
        lambda s: st.run_sync(st.experiment(s, "HEAD", ["short", "long"], model=script())),
        'an arm is an st.Arm(name="…", prompt="…"), not \'short\' (str)',
    ),
    "an experiment with an unknown model": (
        lambda s: st.run_sync(st.experiment(s, "HEAD", TWO_ARMS, model="nobody:nothing")),
        "provider 'nobody' not found",
    ),
    "an experiment with a number as a tool": (
        lambda s: st.run_sync(st.experiment(s, "HEAD", TWO_ARMS, model=script(), tools=[3])),
        "a tool is a function or an st.Tool, not 3 (int)",
    ),
    # swarms
    "a number in place of a budget": (
        lambda s: st.Swarm(s, "team", "Look", model=script(), budget=5),
        "a budget is an st.Budget, not 5 (int); for US dollars write st.Budget(cost=5)",
    ),
    "a text as a limit of a budget": (
        lambda s: st.Swarm(s, "team", "Look", model=script(), budget=st.Budget(cost="5")),
        "a budget is a number of dollars, not '5'",
    ),
    "a swarm on the name of a session": (
        lambda s: st.Swarm("auth", "team", "Look", model=script()),
        "a swarm works on a session, not on 'auth' (str); open a session with st.open('auth') first",
    ),
    "a swarm with names in place of agents": (
        lambda s: st.Swarm(s, "team", "Look", model=script(), agents=["a", "b"]),
        "agents is a number, or a list of st.AgentSpec, not a list with 'a' (str)",
    ),
    "a swarm with one function as tools": (
        lambda s: st.Swarm(s, "team", "Look", model=script(), tools=read_file),
        "tools is a list: write tools=[read_file]",
    ),
}


@pytest.mark.parametrize(("make", "sentence"), CALLS.values(), ids=CALLS)
def test_a_wrong_call_raises_an_error_with_the_expected_form(make: Callable[[st.Session], Any], sentence: str) -> None:
    with pytest.raises(st.SessionTreeError) as raised:
        make(st.memory())

    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
