"""The text of a rule file as rules: calls of `prefix_rule` with literals, in Python's syntax.

    prefix_rule(pattern=["git", ["status", "diff"]], match=["git status -s"], not_match=["git push"])

Nothing of a file is run: its syntax tree is read, and whatever is not such a call is an error.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Sequence
from typing import Final, Literal, get_args

from orchestrator.core.frozen import record

# ── rule ──────────────────────────────────────────────────────────────────────────────────────────
# A rule about the commands that begin with certain words.


Decision = Literal["allow", "prompt", "forbidden"]


@record
class PrefixRule:
    """A rule; each place of its pattern has the words that fit there.

    `confined`: a command that it allows is not asked about, and stays in its sandbox.
    """

    pattern: tuple[frozenset[str], ...]
    decision: Decision = "allow"
    justification: str = ""
    confined: bool = False

    def means(self, words: Sequence[str]) -> bool:
        """Whether a command begins with the pattern."""
        if len(words) < len(self.pattern):
            return False
        return all(word in fitting for word, fitting in zip(words, self.pattern, strict=False))


# ── parse ─────────────────────────────────────────────────────────────────────────────────────────


MOST_RULES: Final = 1_000
MOST_PLACES: Final = 32
MOST_ALTERNATIVES: Final = 100
MOST_EXAMPLES: Final = 100
MOST_CHARS: Final = 1_000
"""Characters of a word, an example or a justification."""
SHOWN: Final = 80
"""Characters of a text that an error repeats."""
_DECISIONS: Final = get_args(Decision)
_NAMES: Final = ("pattern", "decision", "justification", "match", "not_match", "confined")


class RuleError(ValueError):
    """A file that is no file of rules, with the line at fault."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


def parsed_rules(text: str, *, may_allow: bool = True) -> tuple[PrefixRule, ...]:
    """The rules of a file; raises `RuleError`. Without `may_allow` a rule that allows is an error."""
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise RuleError(error.lineno or 1, f"not readable: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise RuleError(1, "not readable: it holds a zero byte, or is nested too deeply") from None
    if len(module.body) > MOST_RULES:
        raise RuleError(module.body[MOST_RULES].lineno, f"more than {MOST_RULES:,} rules")
    return tuple(_rule(statement, may_allow) for statement in module.body)


def _rule(statement: ast.stmt, may_allow: bool) -> PrefixRule:
    line = statement.lineno
    given = _given(statement)
    rule = PrefixRule(
        _pattern(given.get("pattern"), line),
        _decision(given.get("decision"), line),
        _text(given["justification"], line, "justification") if "justification" in given else "",
        _flag(given["confined"], line) if "confined" in given else False,
    )
    if rule.decision == "allow" and not may_allow:
        raise RuleError(line, "a project's rules may prompt and forbid; what is allowed, its owner says")
    for name, wanted in (("match", True), ("not_match", False)):
        for example in _items(given.get(name), line, name, MOST_EXAMPLES):
            words = _example(example, line, name)
            if rule.means(words) is not wanted:
                verb = "does not mean" if wanted else "means"
                raise RuleError(line, f"{name}: the rule {verb} {shlex.join(words)[:SHOWN]!r}")
    return rule


def _given(statement: ast.stmt) -> dict[str, ast.expr]:
    """The arguments of a call of `prefix_rule`, by name."""
    match statement:
        case ast.Expr(ast.Call(ast.Name("prefix_rule"), [], keywords)):
            pass
        case ast.Expr(ast.Call(ast.Name("prefix_rule"), _, _)):
            raise RuleError(statement.lineno, "prefix_rule takes arguments with names alone: pattern=[…]")
        case _:
            raise RuleError(statement.lineno, "only calls of prefix_rule(pattern=[…], …) may stand here")
    given: dict[str, ast.expr] = {}
    for keyword in keywords:
        if keyword.arg not in _NAMES:
            allowed = ", ".join(_NAMES)
            raise RuleError(
                statement.lineno, f"unknown argument {str(keyword.arg)[:SHOWN]}: there are {allowed}"
            )
        given[keyword.arg] = keyword.value
    return given


def _pattern(given: ast.expr | None, line: int) -> tuple[frozenset[str], ...]:
    places = _items(given, line, "pattern", MOST_PLACES)
    if not places:
        raise RuleError(
            line, 'pattern: a list with at least one word is needed, as in pattern=["git", "status"]'
        )
    return tuple(_place(place, line) for place in places)


def _place(given: ast.expr, line: int) -> frozenset[str]:
    if not isinstance(given, ast.List):
        return frozenset({_text(given, line, "pattern")})
    words = _items(given, line, "pattern", MOST_ALTERNATIVES)
    if not words:
        raise RuleError(line, "pattern: a list of alternatives is empty")
    return frozenset(_text(word, line, "pattern") for word in words)


def _decision(given: ast.expr | None, line: int) -> Decision:
    if given is None:
        return "allow"
    said = _text(given, line, "decision")
    for decision in _DECISIONS:
        if decision == said:
            return decision  # type: ignore[no-any-return]
    raise RuleError(line, f"decision: {said[:SHOWN]!r} is none of {', '.join(_DECISIONS)}")


def _example(given: ast.expr, line: int, name: str) -> Sequence[str]:
    """The words of an example: a list of them, or a text that is split as a shell splits it."""
    if isinstance(given, ast.List):
        return [_text(word, line, name) for word in _items(given, line, name, MOST_EXAMPLES)]
    try:
        return shlex.split(_text(given, line, name))
    except ValueError as error:
        raise RuleError(line, f"{name}: {error}") from None


def _items(given: ast.expr | None, line: int, name: str, most: int) -> Sequence[ast.expr]:
    if given is None:
        return ()
    if not isinstance(given, ast.List):
        raise RuleError(line, f"{name}: a list is needed, as in {name}=[…]")
    if len(given.elts) > most:
        raise RuleError(line, f"{name}: {len(given.elts):,} elements, at most {most} are taken")
    return given.elts


def _text(given: ast.expr, line: int, name: str) -> str:
    if not isinstance(given, ast.Constant) or not isinstance(given.value, str) or not given.value:
        raise RuleError(line, f"{name}: a text in quotes is needed; nothing is computed here")
    if len(given.value) > MOST_CHARS:
        raise RuleError(line, f"{name}: a text of {len(given.value):,} characters, at most {MOST_CHARS:,}")
    if any("\ud800" <= char <= "\udfff" for char in given.value):
        raise RuleError(line, f"{name}: a text with half a character, which no command can be given")
    return given.value


def _flag(given: ast.expr, line: int) -> bool:
    if not isinstance(given, ast.Constant) or not isinstance(given.value, bool):
        raise RuleError(line, "confined: True or False is needed")
    return given.value
