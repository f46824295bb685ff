"""The grammar of plain scripts, as a process: `python -m orchestrator.tools.commands.bash_grammar`.

Models write the scripts, and the grammar is C: some scripts crash it, or keep it busy for ever. So this
process has no environment, little memory and little time for each script; it cannot write, connect or start
anything where the kernel has Landlock. Requests come on standard input, a socket: a letter, four bytes of
length, the script. Answers are four bytes of length and JSON.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

from orchestrator.sandbox.landlock import confine_decoder
from orchestrator.tools.commands.bash_words import PATCH_NAMES, PlainScript, Word

# ── bash patch ────────────────────────────────────────────────────────────────────────────────────
# Reads a shell script as one call of apply_patch with a here-document, or as none.


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


# ── bash grammar ──────────────────────────────────────────────────────────────────────────────────
# Reads a shell script as the list of commands that it certainly is, or refuses to.
#
# Two independent readings have to agree: the grammar's tree gives the structure, and this module's own
# narrow lexer has to account for every byte of the source. A construct that the grammar misreads (it
# takes `a\<newline>b` for two words, `coproc` for a command) is then refused instead of trusted.
#
# The grammar is C that some scripts crash or keep busy for ever: nothing else may import this module.


# Immutable, and so shared; a `Parser` is not, and costs less than a microsecond to make.
_BASH: Final = Language(tree_sitter_bash.language())

# One report is made per hundred parser operations; real scripts need a few. A pipeline of
# some thousand stages costs the parser quadratic time and gigabytes, hence the budget.
_PARSER_REPORTS: Final = 300

_STRUCTURE: Final = frozenset({"program", "list", "pipeline", "command", "command_name"})
_WORDS: Final = frozenset({"word", "number", "string", "raw_string", "concatenation"})
_OPERATORS: Final = frozenset({"&&", "||", ";", "|"})
_SKIPPED_IN_COMMAND: Final = frozenset({"variable_assignment", "file_redirect", "herestring_redirect"})

# They change how the words after them are run, and the grammar takes some for commands.
# fmt: off
_RESERVED: Final = frozenset({
    "case", "coproc", "do", "done", "elif", "else", "end", "esac", "fi", "for", "foreach", "function", "if",
    "in", "nocorrect", "noglob", "repeat", "select", "then", "time", "until", "while",
})
# fmt: on

_PIECE: Final = re.compile(
    r"""
      '(?P<raw>[^']*)'
    | "(?P<double>(?:[^"\\$`]+|\\.)*)"
    | (?P<bare>(?:[\w./:@%+,=*?~^-]|\\[\x20-\x7e])+)
    """,
    re.ASCII | re.DOTALL | re.VERBOSE,
)
_ESCAPE_IN_DOUBLE: Final = re.compile(r'\\(?:([$`"\\])|\n)')
_ESCAPE_IN_BARE: Final = re.compile(r"\\(.)")
# `HEAD~2` and `HEAD^` are words; `~` elsewhere is a home, `^x` and `=x` are zsh's patterns.
_ACTIVE: Final = re.compile(r"[*?]|(?<![\w^~])[~^]|^=", re.ASCII)


def plain(source: bytes) -> PlainScript | None:
    """The script as commands and operators, with patterns marked; None if it is not plain."""
    tree = _parse(source)
    if tree is None or tree.root_node.has_error:
        return None
    leaves = _leaves(tree.root_node)
    return None if leaves is None else _assemble(leaves, source)


def beginnings(source: bytes) -> tuple[tuple[str, ...], ...] | None:
    """The leading words of every command anywhere that are literally known; None for what is too involved."""
    tree = _parse(source)
    if tree is None:
        return None
    commands = (node for node in _descendants(tree.root_node) if node.type == "command")
    found = (_literal_beginning(node, source) for node in commands)
    return tuple(beginning for beginning in found if beginning)


def _parse(source: bytes) -> Tree | None:
    reports = 0

    def over_budget(_offset: int, _has_error: bool) -> bool:
        nonlocal reports
        reports += 1
        return reports > _PARSER_REPORTS

    try:
        return Parser(_BASH).parse(lambda offset, _point: source[offset:], progress_callback=over_budget)
    except ValueError:
        return None


def _leaves(root: Node) -> list[Node] | None:
    """Words and operators in source order; None at the first node of any other kind."""
    leaves: list[Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type in _STRUCTURE:
            pending.extend(reversed(node.children))
        elif node.type in _WORDS or node.type in _OPERATORS:
            leaves.append(node)
        else:
            return None
    return leaves


def _assemble(leaves: list[Node], source: bytes) -> PlainScript | None:
    """Groups the leaves, provided that they and the blanks between them are the whole source."""
    commands: list[tuple[Word, ...]] = []
    operators: list[str] = []
    words: list[Word] = []
    end = 0
    for leaf in leaves:
        gap = source[end : leaf.start_byte]
        end = leaf.end_byte
        if gap.strip(b" \t"):
            return None
        if leaf.type in _OPERATORS:
            if not words:
                return None
            commands.append(tuple(words))
            operators.append(leaf.type)
            words = []
        else:
            word = _read_word(source[leaf.start_byte : end].decode())
            glued = bool(words) and not gap
            if word is None or glued or (not words and word.text in _RESERVED):
                return None
            words.append(word)
    if source[end:].strip(b" \t"):
        return None
    return _finish(commands, operators, words)


def _finish(commands: list[tuple[Word, ...]], operators: list[str], words: list[Word]) -> PlainScript | None:
    if words:
        return PlainScript((*commands, tuple(words)), tuple(operators))
    if operators and operators[-1] == ";":
        return PlainScript(tuple(commands), tuple(operators[:-1]))
    return None


def _read_word(source: str) -> Word | None:
    """A shell word, quoted and unquoted pieces joined; None unless its value is certain."""
    text = ""
    expands = False
    position = 0
    while position < len(source):
        piece = _PIECE.match(source, position)
        if piece is None:
            return None
        raw, double, bare = piece.group("raw", "double", "bare")
        if raw is not None:
            text += raw
        elif double is not None:
            text += _ESCAPE_IN_DOUBLE.sub(r"\1", double)
        else:
            text += _ESCAPE_IN_BARE.sub(r"\1", bare)
            # An escaped character is inert: any inert one may stand in its place here.
            expands = expands or _ACTIVE.search(_ESCAPE_IN_BARE.sub("_", bare)) is not None
        position = piece.end()
    return Word(text, expands) if source else None


def _descendants(root: Node) -> Iterator[Node]:
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.children))


def _literal_beginning(command: Node, source: bytes) -> tuple[str, ...]:
    words: list[str] = []
    for child in command.children:
        node = child.children[0] if child.type == "command_name" and child.children else child
        if node.type in _SKIPPED_IN_COMMAND:
            continue
        word = _read_word(source[node.start_byte : node.end_byte].decode()) if node.type in _WORDS else None
        if word is None:
            break
        words.append(word.text)
    return tuple(words)


# ── script process ────────────────────────────────────────────────────────────────────────────────


CPU_S = 0.25
"""Of processor time for one script; SIGPROF ends the process then, whatever it does."""
PATCH_CPU_S = 0.5
"""The same for a patch, which may be some megabytes long."""
MEMORY_BYTES = 1 << 30
_HEAD = struct.Struct("!cI")
_LENGTH = struct.Struct("!I")


def main() -> None:
    """Answers until the other end closes."""
    asked = socket.socket(fileno=0)
    confine_decoder(MEMORY_BYTES)
    asked.sendall(_LENGTH.pack(0))
    while head := asked.recv(_HEAD.size, socket.MSG_WAITALL):
        kind, length = _HEAD.unpack(head)
        source = asked.recv(length, socket.MSG_WAITALL) if length else b""
        signal.setitimer(signal.ITIMER_PROF, PATCH_CPU_S if kind == b"a" else CPU_S)
        answer = _READERS[kind](source)
        signal.setitimer(signal.ITIMER_PROF, 0)
        body = json.dumps(answer).encode()
        asked.sendall(_LENGTH.pack(len(body)) + body)


def _plain(source: bytes) -> object:
    found = plain(source)
    if found is None:
        return None
    return [[list(map(astuple, command)) for command in found.commands], found.operators]


_READERS: dict[bytes, Callable[[bytes], object]] = {b"p": _plain, b"b": beginnings, b"a": patch_call}

if __name__ == "__main__":
    main()
