"""JSON at a terminal: the same values as through a pipe, and nothing in them that the terminal obeys."""

from __future__ import annotations

import ast
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.terminal.text import plain_json
from tests.cli.machine import Machine

HOSTILE = "\x1b[2J \x7f \x9b2J \x85 \x9d0;title\x9c \u202egnp.exe \ufeff \U000e0041 ünïcödé 木"
"""C0, DEL, C1 (CSI, NEL, OSC), a bidirectional override, a tag beyond the basic plane; harmless text."""
ASKED = {"items": [{"call": "shell", "args": {"command": ["touch", HOSTILE]}}]}
UNTRUSTED = ("-c", "approval_policy=untrusted", "-c", "sandbox_mode=danger-full-access")


def steering(text: str) -> set[str]:
    """The characters that a terminal may obey, but for line breaks."""
    return {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs")} - set("\r\n")


@pytest.mark.parametrize("char", [chr(code) for code in range(0x7F, 0xA0)] + list("\u202e\u2066\U000e0041"))
def test_json_for_a_terminal_escapes_a_control_and_keeps_the_value(char: str) -> None:
    told = plain_json(json.dumps({f"a{char}": [f"{char}木"]}, ensure_ascii=False, indent=2))
    assert json.loads(told) == {f"a{char}": [f"{char}木"]}
    assert not steering(told)
    assert "木" in told, "a letter is no control"


@pytest.mark.realredis
def test_person_sees_json_that_steers_no_terminal_from_every_command(machine: Machine) -> None:
    with machine.model(ASKED) as user:
        assert user.run("run", f"go {HOSTILE}", *UNTRUSTED).returncode == 3
        (session,) = user.session_ids()
        commands = (
            ("sessions", "--json"),
            ("tree", session, "--json"),
            ("logs", session, "--json"),
            ("replay", session, "--json"),
            ("export", session),
            ("export", session, "--full"),
            ("approvals", "--json"),
            ("proto", "--resume", session, "--no-worker"),
        )
        for words in commands:
            piped = user.run(*words).stdout
            assert "\x9b" in piped, f"{words}: a program gets the very text"
            with user.terminal(*words) as person:
                if words[0] == "proto":
                    person.wait_for("session_configured")
                    person.type("\x04")
                assert person.exit_code() in (0, 3), f"{words}: {person.seen}"
            drawn = person.seen
            assert not steering(drawn), words
            assert "\\u009b" in drawn, words


@pytest.mark.realredis
@pytest.mark.always
def test_json_at_a_terminal_has_the_values_of_json_in_a_pipe(machine: Machine) -> None:
    with machine.model({"items": [{"text": HOSTILE}]}) as user:
        with user.terminal("run", f"go {HOSTILE}", "--json") as person:
            assert person.exit_code() == 0
        assert not steering(person.seen)
        (session,) = user.session_ids()
        for words in (("sessions", "--json"), ("logs", session, "--json")):
            with user.terminal(*words) as person:
                assert person.exit_code() == 0
            assert values(person.seen) == values(user.run(*words).stdout)


PRINTING = [
    file
    for part in ("cli", "terminal")
    for file in sorted(Path(orchestrator.__file__).with_name(part).rglob("*.py"))
]
WRITES = frozenset({"dumps", "_as_json", "as_json"})
"""Functions that make JSON."""


def names_called(code: ast.AST) -> set[str]:
    """The functions that are called somewhere in it, but for what is inside of `json_for_stdout`."""
    if isinstance(code, ast.Call):
        name = code.func.attr if isinstance(code.func, ast.Attribute) else getattr(code.func, "id", "")
        if name == "json_for_stdout":
            return set()
        return {str(name)}.union(*map(names_called, ast.iter_child_nodes(code)))
    return set().union(*map(names_called, ast.iter_child_nodes(code)))


@pytest.mark.parametrize("file", PRINTING, ids=lambda file: file.stem)
def test_no_command_prints_json_but_in_the_form_for_a_terminal(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and name in ("echo", "write", "print"):
            assert not WRITES & names_called(node), f"{file.name}:{node.lineno}"


def values(text: str) -> list[Any]:
    """The JSON of an array, or of lines; a terminal ends lines with CR LF."""
    text = text.replace("\r\n", "\n")
    return (
        [json.loads(text)]
        if text.startswith("[")
        else [json.loads(line) for line in text.strip().split("\n")]
    )
