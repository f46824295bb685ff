"""Reads a shell script as one call of apply_patch with a here-document, or as none.

The grammar is C that some scripts crash or keep busy for ever: only `script_process` imports this module.
"""

from __future__ import annotations

from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from orchestrator.tools.commands.bash_words import PATCH_NAMES

_BASH: Final = Language(tree_sitter_bash.language())


def patch_call(source: bytes) -> tuple[str, str | None] | None:
    """The patch of the one statement that the script is, and the folder of a `cd` before it; else None."""
    root = Parser(_BASH).parse(source).root_node
    if root.has_error or [node.type for node in root.named_children] != ["redirected_statement"]:
        return None
    match root.named_children[0].named_children:
        case [call, redirect]:
            called, workdir = _called(call)
            body = _heredoc(redirect) if called else None
            return None if body is None else (body, workdir)
        case _:
            return None


def _called(node: Node) -> tuple[bool, str | None]:
    """Whether the node calls apply_patch without arguments, and the folder of a `cd` before it."""
    if node.type == "command":
        return _words(node) in [[name] for name in PATCH_NAMES], None
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
