"""Changes that can be made to a Lua script, by its tokens and its lines.

The scripts put one statement on a line, or one `if … then … end`; a statement that goes on over several
lines is dropped or swapped whole. What Lua does not compile is no change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from sim.mutation.change import Change, numbered, squeezed

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<comment>--[^\n]*)"
    r"|(?P<text>'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\")"
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^#<>=(){}\[\];:,.])"
)
_TURNED = {
    "==": ("~=",),
    "~=": ("==",),
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
}
_WORDS = {"and": "or", "or": "and", "true": "false", "false": "true"}
_SIGNS = {"+": "-", "-": "+"}
_OPENS = {"(", "{", "[", "function", "do", "then", "repeat"}
_CLOSES = {")", "}", "]", "end", "until"}
_FUNCTION = re.compile(r"^(?:local )?function (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def changes(path: str, text: str) -> list[Change]:
    """Every change that the operators make of a script."""
    tokens = [token for token in _tokens(text) if token.kind not in ("space", "comment")]
    found = [*_in_tokens(path, text, tokens), *_in_lines(path, text, tokens)]
    return numbered(found)


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"no token of Lua at {text[at : at + 20]!r}")
        yield _Token(str(match.lastgroup), match.group(), at)
        at = match.end()


def compiles(change: Change) -> bool:
    """Whether the script's file with the change is one that Lua can read."""
    return _compiler()(change.text()) is True


@cache
def _compiler() -> Any:
    from lupa import lua51

    return lua51.LuaRuntime().eval("function(s) return loadstring(s) ~= nil end")


def _function(text: str, offset: int) -> str:
    """The function in whose text an offset lies: functions of scripts begin and end at a line's beginning."""
    found = ""
    for match in _FUNCTION.finditer(text):
        ends = text.find("\nend", match.start())
        if match.start() <= offset <= ends:
            found = match.group(1)
    return found


def _line_span(text: str, start: int, end: int) -> tuple[int, int]:
    begins = text.rfind("\n", 0, start) + 1
    ends = text.find("\n", end)
    return begins, len(text) if ends < 0 else ends


def _change(
    path: str, text: str, operator: str, span: tuple[int, int], new: str, statement: str = ""
) -> Change:
    start, end = span
    begins, ends = _line_span(text, start, end)
    before, after = text[begins:ends], text[begins:start] + new + text[end:ends]
    line = text.count("\n", 0, start) + 1
    function = _function(text, start)
    told = squeezed(before), squeezed(after), squeezed(statement or before)
    return Change(path, function, operator, line, start, end, text[start:end], new, *told)


# ── tokens ────────────────────────────────────────────────────────────────────────────────────


def _in_tokens(path: str, text: str, tokens: list[_Token]) -> Iterator[Change]:
    for at, token in enumerate(tokens):
        span = token.start, token.end
        before = tokens[at - 1] if at else None
        if token.text in _TURNED and token.kind == "sign":
            for other in _TURNED[token.text]:
                yield _change(path, text, "comparison turned", span, other)
        elif token.kind == "name" and token.text in _WORDS:
            turned = "constant turned" if token.text in ("true", "false") else f"`{token.text}` exchanged"
            yield _change(path, text, turned, span, _WORDS[token.text])
        elif token.kind == "name" and token.text == "not":
            yield _change(path, text, "condition negated", (token.start, tokens[at + 1].start), "")
        elif token.kind == "number" and "." not in token.text:
            for number in (int(token.text) + 1, int(token.text) - 1):
                yield _change(path, text, "constant ± 1", span, str(number))
        elif token.text in _SIGNS and before is not None and (before.kind != "sign" or before.text in ")]}"):
            yield _change(path, text, "sign turned", span, _SIGNS[token.text])
        elif token.kind == "name" and token.text in ("if", "elseif", "while"):
            yield from _condition(path, text, tokens, at)


def _condition(path: str, text: str, tokens: list[_Token], at: int) -> Iterator[Change]:
    closing = "do" if tokens[at].text == "while" else "then"
    ends = next(i for i in range(at + 1, len(tokens)) if tokens[i].text == closing)
    span = tokens[at + 1].start, tokens[ends - 1].end
    yield _change(path, text, "condition negated", span, f"not ({text[slice(*span)]})")
    if closing == "then":
        yield _change(path, text, "condition dropped", span, "true")
        yield _change(path, text, "condition dropped", span, "false")
    depth, joints = 0, []
    for i in range(at + 1, ends):
        depth += (tokens[i].text in _OPENS) - (tokens[i].text in _CLOSES)
        if depth == 0 and tokens[i].text in ("and", "or"):
            joints.append(i)
    if joints:
        first, last = joints[0], joints[-1]
        yield _change(path, text, "operand dropped", (tokens[at + 1].start, tokens[first + 1].start), "")
        yield _change(path, text, "operand dropped", (tokens[last - 1].end, tokens[ends - 1].end), "")


# ── lines ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Statement:
    start: int
    end: int
    indent: int
    simple: bool
    """No block opens or closes in it."""
    binds: bool
    """A `local` that later lines need."""


def _in_lines(path: str, text: str, tokens: list[_Token]) -> Iterator[Change]:
    statements = list(_statements(text, tokens))
    for at, statement in enumerate(statements):
        if not statement.simple:
            continue
        span = statement.start, statement.end
        if not statement.binds:
            yield _change(path, text, "statement dropped", span, "")
        following = statements[at + 1] if at + 1 < len(statements) else None
        if following is None or _commute(text, statement, following):
            continue
        if not following.simple or following.indent != statement.indent:
            continue
        between = text[statement.end : following.start]
        new = text[following.start : following.end] + between + text[slice(*span)]
        first = text[slice(*span)]
        yield _change(path, text, "neighbours swapped", (statement.start, following.end), new, first)


def _commute(text: str, first: _Statement, second: _Statement) -> bool:
    """Whether nothing can tell which of two statements came first: such a change is none."""
    one, other = text[first.start : first.end], text[second.start : second.end]
    if first.binds and second.binds and not ("(" in one and "(" in other):
        return not (_bound(one) & _words(other) or _bound(other) & _words(one))
    return _writes_apart(one, other)


def _writes_apart(one: str, other: str) -> bool:
    """Two writes of one script to different keys: of other types, or of other numbers."""
    if any(_WRITES.fullmatch(squeezed(text)) is None for text in (one, other)):
        return False
    (command, key), (other_command, other_key) = (_CALL.findall(text)[0] for text in (one, other))
    if "any" in (kinds := {_kind(command), _kind(other_command)}) or len(kinds) == 1:
        return bool(key != other_key) and key[:5] == other_key[:5] == "KEYS["
    return True


_CALL = re.compile(r"redis\.call\('(\w+)', ([\w.]+(?:\[\w+\])?)")
_WRITES = re.compile(r"(if [\w.\[\]]+ then )?redis\.call\((?:(?!redis|return| = ).)*\)( end)?")


def _kind(command: str) -> str:
    """The type of the key that a command is for; `any` for those that take each."""
    return command[0] if command[0] in "HZX" else "S" if command in ("SET", "GET", "INCRBY") else "any"


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _bound(local: str) -> set[str]:
    return _words(local.removeprefix("local").partition("=")[0])


def _statements(text: str, tokens: list[_Token]) -> Iterator[_Statement]:
    """Lines, with those that continue them."""
    at = 0
    while at < len(tokens):
        first, depth = tokens[at], 0
        last = at
        while True:
            depth += (tokens[last].text in ("(", "{", "[")) - (tokens[last].text in (")", "}", "]"))
            following = tokens[last + 1] if last + 1 < len(tokens) else None
            if following is None:
                break
            broken = "\n" in text[tokens[last].end : following.start]
            if broken and depth <= 0 and not _goes_on(tokens[last], following):
                break
            last += 1
        words = [token.text for token in tokens[at : last + 1]]
        begins = text.rfind("\n", 0, first.start) + 1
        balance = sum(_blocks(word) for word in words)
        closes_first = words[0] in ("end", "else", "elseif", "until")
        simple = balance == 0 and not closes_first
        yield _Statement(first.start, tokens[last].end, first.start - begins, simple, words[0] == "local")
        at = last + 1


def _blocks(word: str) -> int:
    """`for … do` and `while … do` count by their `do`, `if … then` by its `if`."""
    return (word in ("function", "do", "if", "repeat")) - (word in ("end", "until"))


def _goes_on(last: _Token, following: _Token) -> bool:
    """Whether a line is continued by the next one."""
    joins = {"and", "or", "..", "+", "-", "=", ",", "=="}
    return last.text in joins or following.text in joins | {"."}
