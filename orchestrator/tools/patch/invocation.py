"""Whether a command is a call of apply_patch, and which text it carries.

Recognised are `["apply_patch", body]` and a shell script that is nothing but
`apply_patch <<EOF … EOF`, with or without `cd DIR &&` before it. The script is read by a
real bash parser: anything beside that one statement (a second command, a redirect, an
option of cd) leaves it an ordinary command, which the sandbox runs and confines.

It must not read the patch further than to tell a bare patch from a command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from orchestrator.tools.patch.grammar import PatchSyntaxError, parse_patch

IMPLICIT_CALL = 'patch detected without explicit call to apply_patch. Rerun as ["apply_patch", "<patch>"]'
_NAMES = frozenset({"apply_patch", "applypatch"})
_SHELLS = frozenset({"bash", "sh", "zsh"})
_BASH = Language(tree_sitter_bash.language())


@dataclass(frozen=True, slots=True)
class PatchInvocation:
    """A call of apply_patch: the patch's text, and the folder that `cd` names, if any."""

    body: str
    workdir: str | None = None


@dataclass(frozen=True, slots=True)
class NotAPatch:
    """An ordinary command."""


@dataclass(frozen=True, slots=True)
class PatchRefusal:
    """A patch given as a command of its own; the message tells the model what to do."""

    message: str


InvocationVerdict: TypeAlias = PatchInvocation | NotAPatch | PatchRefusal


def patch_from_argv(argv: Sequence[str]) -> InvocationVerdict:
    """Judges one command line; a call's body may still be no valid patch."""
    match list(argv):
        case [body]:
            return _bare(body)
        case [name, body] if name in _NAMES:
            return PatchInvocation(body)
        case [shell, "-lc" | "-c", script] if PurePosixPath(shell).name in _SHELLS:
            bare = _bare(script)
            return bare if isinstance(bare, PatchRefusal) else _from_script(script)
        case _:
            return NotAPatch()


def _bare(text: str) -> NotAPatch | PatchRefusal:
    try:
        parse_patch(text)
    except PatchSyntaxError:
        return NotAPatch()
    return PatchRefusal(IMPLICIT_CALL)


def _from_script(script: str) -> PatchInvocation | NotAPatch:
    if not any(name in script for name in _NAMES):
        return NotAPatch()
    # Surrogates come from JSON that a model wrote badly; such a script is no patch.
    source = script.encode("utf-8", "surrogatepass")
    root = Parser(_BASH).parse(source).root_node
    if root.has_error or [node.type for node in root.named_children] != ["redirected_statement"]:
        return NotAPatch()
    match root.named_children[0].named_children:
        case [call, redirect]:
            called, workdir = _called(call)
            body = _heredoc(redirect) if called else None
            return NotAPatch() if body is None else PatchInvocation(body, workdir)
        case _:
            return NotAPatch()


def _called(node: Node) -> tuple[bool, str | None]:
    """Whether the node calls apply_patch without arguments, and the folder of a `cd` before it."""
    if node.type == "command":
        return _words(node) in [[name] for name in _NAMES], None
    if node.type != "list" or [child.type for child in node.children] != ["command", "&&", "command"]:
        return False, None
    move = _words(node.children[0])
    called, _ = _called(node.children[2])
    if not called or move is None or len(move) != 2 or move[0] != "cd" or move[1].startswith("-"):
        return False, None
    return True, move[1]


def _words(command: Node) -> list[str] | None:
    """The command's words if each is literal, else None (a variable, a substitution, an assignment)."""
    words: list[str] = []
    for child in command.children:
        node = child.named_children[0] if child.type == "command_name" and child.named_children else child
        word = _literal(node)
        if word is None:
            return None
        words.append(word)
    return words


def _literal(node: Node) -> str | None:
    text = _text(node)
    match node.type:
        case "raw_string":
            return text[1:-1]
        case "string" if all(child.type == "string_content" for child in node.named_children):
            return None if "\\" in text else text[1:-1]
        case "word" | "number" if not set(text) & set("\\*?[~{"):
            return text
        case _:
            return None


def _heredoc(redirect: Node) -> str | None:
    """The body as written. Bash would expand `$x` under an unquoted delimiter; in a patch
    it can only be meant as text, and Codex takes it so."""
    kinds = [child.type for child in redirect.children]
    if kinds != ["<<", "heredoc_start", "heredoc_body", "heredoc_end"]:
        return None
    return _text(redirect.children[2])


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "surrogatepass")
