"""Names: functions are verbs, class names are unique, and module names describe their content."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import sessiontree

ROOT = Path(sessiontree.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

QUESTION_WORDS = {"how", "what", "when", "where", "whether", "which", "who", "whoever", "whose", "why"}
IRREGULAR_PARTICIPLES = {
    "became", "become", "begun", "bound", "broken", "brought", "built", "chosen", "come", "done", "drawn", "driven",
    "fallen", "felt", "found", "given", "gone", "grown", "heard", "held", "hidden", "kept", "known", "laid", "left",
    "lent", "lost", "made", "meant", "met", "paid", "ran", "said", "seen", "sent", "shown", "spent", "spoken", "stood",
    "taken", "taught", "thought", "thrown", "told", "took", "understood", "went", "woken", "worn", "written", "wrote",
}  # fmt: skip
VERBS_IN_ED = {"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"}
SAME_ROLE = {
    "__init__": "packages",
    "app": "the entry point of a front end",
    "base": "the protocol of a layer",
    "events": "the same noun: events of hooks, swarms and the REST API",
    "experiment": "experiments, and the command that runs them",
    "fan_out": "continuing a place in several ways, and the command that does it",
    "openai_agents": "the framework: its files, and its adapter",
    "pydantic_ai": "the framework: its messages, and its adapter",
    "sessions": "the same noun in each front end",
    "swarm": "swarms, and the command that runs them",
    "tree": "the same noun in each front end",
}
"""Modules that may share a name, and why a reader who knows one of them is not misled about the others."""


def iter_functions() -> Iterator[tuple[str, str]]:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
                yield node.name, f"{path.relative_to(ROOT)}:{node.lineno}"


def is_participle(word: str) -> bool:
    return word in IRREGULAR_PARTICIPLES or (
        bool(re.fullmatch(r"[a-z]{2,}ed", word)) and word not in VERBS_IN_ED and not word.endswith("eed")
    )


def names_a_state(name: str) -> bool:
    first = name.strip("_").split("_")[0]
    return first in QUESTION_WORDS or is_participle(first)


def test_fewer_than_two_percent_of_functions_start_with_a_participle_or_a_question_word() -> None:
    functions = list(iter_functions())
    bad = [(name, place) for name, place in functions if names_a_state(name)]

    assert len(functions) > 2000
    assert len(bad) < len(functions) * 0.02, bad


def test_the_rule_notices_names_that_are_not_verbs() -> None:
    assert all(map(names_a_state, ["_said", "told", "what_waits", "whether_open", "made_branch", "listed", "_kept"]))
    assert not any(map(names_a_state, ["find_leaf", "is_open", "feed", "_need", "build_tree", "read"]))


def test_class_names_are_unique_in_the_package() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))

    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_modules_share_a_name_only_if_they_have_the_same_role() -> None:
    names = Counter(path.stem for path in MODULES)

    assert {name for name, count in names.items() if count > 1} - SAME_ROLE.keys() == set()


def test_no_session_module_and_nothing_above_it_asks_where_a_session_lives() -> None:
    """Only stores, repositories and the durable work queue know kinds of places."""
    allowed = {"store", "library"}
    for path in MODULES:
        if path.relative_to(ROOT).parts[0] not in allowed:
            text = path.read_text()
            assert "is_database_address" not in text, path
            assert not re.search(r"isinstance\([^)]*(JsonlStore|PostgresStore|MemoryStore)", text), path


TESTS = Path(__file__).parent
DIALECT = re.compile(
    r"_(nobody|somebody|whoever|anew|meanwhile|beside|at_work|goes_on|of_its_own|of_ones_own|makes_no_sense|taken_away"
    r"|given_up|told|said|not_there|spoils?|all_the_same|of_ours|of_their_own|leads?_nowhere)(?=_|$)"
)
"""Phrases that tests had before they were written in plain English."""


def test_test_names_contain_no_dialect() -> None:
    names = [name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())]

    assert len(names) > 3500
    assert [name for name in names if DIALECT.search(name)] == []


def test_the_dialect_rule_notices_a_phrase_and_ignores_parts_of_words() -> None:
    assert DIALECT.search("test_a_page_that_nobody_sees_holds_no_connection")
    assert DIALECT.search("test_a_session_is_loaded_anew")
    assert not DIALECT.search("test_a_session_is_reloaded_besides_others")
