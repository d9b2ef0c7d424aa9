import fnmatch
import random
import subprocess
import time
from pathlib import Path

import pytest

from sessiontree.agent.command_patterns import allows, escape, restricts, split_commands
from tests.reliability.harness import times

HOSTILE = [
    "git status; rm -rf x",
    "git status ;rm -rf x",
    "git status && rm -rf x",
    "git status || rm -rf x",
    "git status | rm -rf x",
    "git status |& rm -rf x",
    "git status & rm -rf x",
    "git status &",
    "git status\nrm -rf x",
    "git status\r\nrm -rf x",
    "git status $(rm -rf x)",
    "git status `rm -rf x`",
    'git status "$(rm -rf x)"',
    'git status "`rm -rf x`"',
    "git status $'\\n' rm",
    "git status > x",
    "git status >> x",
    "git status 2>x",
    "git status < x",
    "git status <(rm -rf x)",
    "git status >(rm -rf x)",
    "git status <<E\nE\nrm -rf x",
    "git status # '\nrm -rf x #'",
    "git status \\\n; rm -rf x",
    "git status \\' ; rm -rf x #'",
    "git status; { rm -rf x; }",
    "(git status; rm -rf x)",
    "git() { rm -rf x; }; git status",
    "{git,status}",
    "git status ${x:=y}",
    "git status $x",
    "PATH=. git status",
    "'git status' x",
    '"git status/evil"',
    "git* status",
    "git\u00a0status; rm -rf x",
    "! git status",
    "if git status; then rm -rf x; fi",
    "git status;;",
    "git status &&",
    "git status 'x",
    "git status\x00",
    "git statusx",
]


@pytest.mark.parametrize("command", HOSTILE)
def test_an_allow_rule_for_one_command_does_not_match_a_hostile_one(command: str) -> None:
    assert not allows("git status *", command)


@pytest.mark.parametrize(
    "command", ["git status", "git status -s", "git  status\t-s", "g'it' \"status\"", "git status 'a;b' \"c|d\"\n"]
)
def test_an_allow_rule_matches_its_command_however_it_is_quoted(command: str) -> None:
    assert allows("git status *", command)


def test_every_part_of_a_compound_command_has_to_be_allowed() -> None:
    assert allows("git status *", "git status && git log | head -3\nls", ["git log *", "head *", "ls"])
    assert not allows("git status *", "git status && git log | head -3; ls", ["git log *", "ls"])


def test_a_star_matches_anything_and_after_a_final_space_also_nothing() -> None:
    assert allows("npm run *", "npm run")
    assert not allows("npm run *", "npm runner")
    assert allows("npm run*", "npm runner")
    assert allows("pytest * -q", "pytest tests/a -q")


def test_an_exact_rule_matches_only_its_command() -> None:
    command = 'for f in *.py; do echo "$f" | tee -a log; done'

    assert allows(escape(command), command)
    assert not allows(escape(command), command + "; rm -rf x")
    assert not allows(escape("rm '*'"), "rm *")
    assert not allows(escape("rm \\*"), "rm *")
    assert allows(escape("rm '*'"), "rm '*'")


def test_a_rule_without_a_pattern_matches_everything() -> None:
    assert allows(None, "a; b $(c)")
    assert allows("*", "a; b $(c)")


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf x",
        "rm",
        "ls; rm x",
        "ls && sudo rm x",
        "sudo -n /bin/rm x",
        "env A=b rm x",
        "echo $(rm x)",
        "for f in a; do rm $f; done",
        "x=1; { rm x; }",
        "ls | xargs rm x",
        "r'm' x",
        "echo `rm x`",
        "\\rm x > y",
    ],
)
def test_a_restricting_rule_finds_its_command_inside_others(command: str) -> None:
    assert restricts("rm *", command)


@pytest.mark.parametrize("command", ["ls", "git rm x", "echo 'rm x'", "rmdir x"])
def test_a_restricting_rule_does_not_match_other_simple_commands(command: str) -> None:
    assert not restricts("rm *", command)


def test_expanding_words_and_quoted_words_are_distinguished() -> None:
    assert split_commands("ls *.py") == ["ls *.py"]
    assert split_commands("ls '*.py'") == ["ls '*.py'"]
    assert split_commands("ls '*'.*") is None


PIECES = [
    *["echo", "ok", "touch canary", "'", '"', "\\", ";", "&", "&&", "|", "||", "|&", "\n", "\r", "\t", " ", "$(", ")"],
    *["`", "${", "}", "{", "$'", "#", "!", "<", ">", ">(", "<(", "<<E", "E", "=", "a=b", "*", "~", "(", ",", "if"],
    *["then", "fi", "do", "done", "function", "eval", "exec", "time", "\x0b", "\x0c", "\u00a0", "\u2028", "[", "]"],
]


def test_bash_runs_nothing_else_when_an_allow_rule_matches_random_commands(tmp_path: Path) -> None:
    """Compare with bash: a command that a rule for `echo` allows must not create the file."""
    dice = random.Random(18)
    admitted = 0
    lines: list[str] = []
    for _ in range(times(12_000, torture=400_000)):
        pieces = dice.choices(PIECES, k=dice.randint(1, 7))
        command = "echo " + dice.choice(["", " "]).join(pieces)
        if allows("echo *", command):
            admitted += 1
            lines.append(command)
    assert admitted > 100
    for start in range(0, len(lines), 50):
        # Each command runs in its own bash, like in the tool.
        script = "\n".join('bash -c "$1" >/dev/null 2>&1 </dev/null; shift' for _ in lines[start : start + 50])
        subprocess.run(["bash", "-c", script, "x", *lines[start : start + 50]], cwd=tmp_path, check=False, timeout=60)
        assert not list(tmp_path.iterdir()), lines[start : start + 50]


@pytest.mark.parametrize(
    "command",
    [
        "bash -c 'sudo x'",
        'sh -c "sudo x"',
        "/bin/sh -ec 'true; sudo x'",
        "bash -c \"bash -c 'sudo x'\"",
        "eval sudo x",
        "eval 'sudo x'",
        "find . -exec sudo x ';'",
        "find . -exec sh -c 'sudo x' ';'",
        "git -c alias.x='!sudo x' x",
        "env -S 'sudo x'",
        "su -c 'sudo x'",
        "watch sudo x",
        "busybox sudo x",
        "taskset 1 sudo x",
        "setpriv --reuid 1 sudo x",
        "unbuffer sudo x",
        "uv run sudo x",
        's"u"do x; $(true)',
        "-- sudo x",
    ],
)
def test_a_restricting_rule_checks_commands_that_run_other_commands(command: str) -> None:
    assert restricts("sudo *", command)


@pytest.mark.parametrize(
    "command", ["git rm x", "echo 'rm x'", "grep -r 'rm x' src", "git commit -m 'rm x'", "bash rm.sh"]
)
def test_a_restricting_rule_does_not_match_arguments_of_other_commands(command: str) -> None:
    assert not restricts("rm *", command)


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("sudo *", "a " * 200_000 + "$x"),
        ("sudo *", "nice " + "a " * 200_000),
        ("*x", "a " * 200_000 + "$x y"),
        ("*x*y*z", "a" * 50_000 + "x" * 50_000 + "y" * 50_000),
        ("git * push * --force", "git " + "a push b " * 20_000),
    ],
)
def test_matching_takes_time_linear_in_the_length_of_the_command(pattern: str, command: str) -> None:
    began = time.process_time()
    assert not restricts(pattern, command)
    assert not allows(pattern, command)
    assert time.process_time() - began < 20  # it would take hours


def test_a_pattern_with_stars_matches_like_fnmatch() -> None:
    numbers = random.Random(5)
    for _ in range(times(3000, torture=60_000)):
        pattern = "x" + "".join(numbers.choice("ab*") for _ in range(6)) + "y"
        command = "x" + "".join(numbers.choice("ab") for _ in range(9)) + "y"
        assert allows(pattern, command) == fnmatch.fnmatchcase(command, pattern), (pattern, command)


@pytest.mark.parametrize("blank", ["\u00a0", "\r", "\v", "\f", "\u3000"])
def test_whitespace_that_shells_do_not_skip_is_part_of_a_command(blank: str) -> None:
    assert not allows("ls", f"{blank}ls")
    assert escape(f"{blank}ls") != "ls"
