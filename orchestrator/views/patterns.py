"""Patterns over open requests: which ones a person allows by one, and which ones a person denies by one.

To allow, a pattern has to match all that would run: each command of a script, and the script has to be
plain, so that nothing runs but the words that are written. To deny, it is enough that any part matches.
Knows nothing of answers and where they go.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, assert_never

from orchestrator import requests
from orchestrator.requests.approvals import command_text
from orchestrator.tools.commands.bash import command_beginnings, read_plain, script_in, unwrap

BY_WORDS: Final = "it asks for words: answer it by its call"
BY_CALL: Final = "it is a plan, or a question of an MCP server: answer it by its call"
_CALL_ID: Final = re.compile(r"[\w.:-]*\d[\w.:-]*", re.ASCII)
_RUNNERS: Final = 8
"""Words before the program of a command that are looked past."""
_JOINTS: Final = re.compile(r"[;&|\n()`{}<>]+|\$\(")


def names_call(pattern: str, agent_id: int, call_id: str) -> bool:
    """Whether a pattern is the id of this very call, which a person has read in the list.

    A model chooses its calls' ids. One without a digit could be a word that people allow, such as `ls`, and
    so could the name of a program of this machine, such as `python3`.
    """
    if pattern == f"{agent_id}:{call_id}":
        return True
    if pattern != call_id or _CALL_ID.fullmatch(call_id) is None:
        return False
    return shutil.which(call_id) is None


def why_not_allowed(pattern: str, request: requests.Request) -> str:
    """Why the pattern does not allow the whole request; the empty string if it does."""
    match request:
        case requests.ChoicesRequest() | requests.InputRequest():
            return BY_WORDS
        case (
            requests.PlanDecisionRequest()
            | requests.ServerRequest()
            | requests.ClientToolRequest()
            | requests.UnknownRequest()
        ):
            return BY_CALL
        case requests.PatchRequest():
            return _why_no_patch(pattern, request)
        case requests.CommandRequest():
            return _why_no_command(pattern, request)
        case _:
            assert_never(request)


def _why_no_patch(pattern: str, request: requests.PatchRequest) -> str:
    if request.left_out:
        return f"it changes {request.left_out:,} files more than it shows; allow it by its call"
    if request.by_link:
        return "a link leads from one of its paths to elsewhere; allow it by its call"
    return _unmatched(pattern, "its path", request.all_paths)


def _why_no_command(pattern: str, request: requests.CommandRequest) -> str:
    if request.variables:
        return f"it sets variables ({', '.join(request.variables)}); allow it by its call"
    script = unwrap(request.command)
    if script is None:
        return _unmatched(pattern, "its command", [shlex.join(request.command)])
    plain = read_plain(script)
    if plain is None or any(word.expands for words in plain.commands for word in words):
        return (
            "its script is more than plain words (redirects, expansions and the like); allow it by its call"
        )
    return _unmatched(pattern, "its command", [_line(words) for words in plain.commands])


def _line(words: Sequence[Any]) -> str:
    return shlex.join(word.text for word in words)


def _unmatched(pattern: str, kind: str, parts: list[str]) -> str:
    for part in parts:
        if not fnmatchcase(part, pattern):
            return f"{kind} {part!r} does not match"
    return "" if parts else "there is nothing to match"


def denies(pattern: str, request: requests.Request) -> bool:
    """Whether any part of the request matches the pattern, read as widely as it can be."""
    return any(fnmatchcase(part, pattern) for part in _parts(request))


def _parts(request: requests.Request) -> list[str]:
    match request:
        case requests.CommandRequest():
            return _parts_of_command(request)
        case requests.PatchRequest():
            return request.all_paths
        case (
            requests.ChoicesRequest()
            | requests.InputRequest()
            | requests.PlanDecisionRequest()
            | requests.ServerRequest()
            | requests.ClientToolRequest()
            | requests.UnknownRequest()
        ):
            return []
        case _:
            assert_never(request)


def _parts_of_command(request: requests.CommandRequest) -> list[str]:
    command = request.command
    parts = [command_text(command), shlex.join(command), *_endings(" ".join(command))]
    script = script_in(command)
    if script is not None:
        plain = read_plain(script)
        parts += [_line(words) for words in plain.commands] if plain else []
        parts += [shlex.join(words) for words in command_beginnings(script) or ()]
        parts += [ending for piece in _JOINTS.split(script) for ending in _endings(piece)]
    return parts + [f"{name}={value}" for name, value in request.variables.items()]


def _endings(text: str) -> list[str]:
    """The text without its first words, one by one: `do sudo rm x` is also `sudo rm x` and `rm x`."""
    words = text.split(maxsplit=_RUNNERS)
    return [" ".join(words[start:]) for start in range(len(words))]
