"""Rules about commands, which the owner of a worker writes into files: read, kept, and applied to a command.

The owner's files are `rules/*.rules` in the home folder, which no confined command can reach. A project's are
`.dendro/rules/*.rules` at the top of its repository; an agent can write them, so they can ask and forbid, and
allow nothing. A file with an error is left out, whole. All are read again when one of them changes.
"""

from __future__ import annotations

import ast
import errno
import fcntl
import json
import os
import shlex
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Final, Literal, get_args

from orchestrator.core.calls.approval_policy import Segment, StrictRule
from orchestrator.core.counts import counted
from orchestrator.core.frozen import record
from orchestrator.core.state import State
from orchestrator.private_files import make_folder, open_file
from orchestrator.protocol.events import WarningEvent
from orchestrator.protocol.wire import JsonObject, written
from orchestrator.sandbox.policy_paths import Place
from orchestrator.sandbox.trusted_files import LeadsOut, read_regular
from orchestrator.tools.commands.bash import read_plain, unwrap
from orchestrator.tools.commands.safety import commands_in, system_program, without_runners

# ── parse ─────────────────────────────────────────────────────────────────────────────────────────
# The text of a rule file as rules: calls of `prefix_rule` with literals, in Python's syntax.
#
#     prefix_rule(pattern=["git", ["status", "diff"]], match=["git status -s"], not_match=["git push"])
#
# Nothing of a file is run: its syntax tree is read, and whatever is not such a call is an error.


# ── rule ──────────────────────────────────────────────────────────────────────────────────────────
# A rule about the commands that begin with certain words.


Decision = Literal["allow", "prompt", "forbidden"]


@record
class PrefixRule:
    """A rule; each place of its pattern has the words that fit there.

    `confined`: a command that it allows is not asked about, and stays in its sandbox. `sign`: an approval of
    a command that it asks about has to be signed.
    """

    pattern: tuple[frozenset[str], ...]
    decision: Decision = "allow"
    justification: str = ""
    confined: bool = False
    sign: bool = False

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
_NAMES: Final = ("pattern", "decision", "justification", "match", "not_match", "confined", "sign")


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
        _flag(given, line, "confined"),
        _flag(given, line, "sign"),
    )
    if rule.sign and rule.decision != "prompt":
        raise RuleError(line, 'sign: only what is asked about is signed: decision="prompt"')
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


def _flag(given: dict[str, ast.expr], line: int, name: str) -> bool:
    said = given.get(name, ast.Constant(False))
    if not isinstance(said, ast.Constant) or not isinstance(said.value, bool):
        raise RuleError(line, f"{name}: True or False is needed")
    return said.value


# ── library ───────────────────────────────────────────────────────────────────────────────────────


IN_HOME: Final = "rules"
IN_PROJECT: Final = Path(".dendro", "rules")
MOST_FILES: Final = 64
MOST_ENTRIES: Final = 10_000
"""Entries of a folder that are looked at."""
MOST_PROJECTS: Final = 64
"""Projects whose rules are kept."""

_File = tuple[str, *tuple[int, ...]]
_Seen = tuple[_File, ...]
"""The files of a folder: name, modification time in nanoseconds, size; of a link also those of its file."""


@record
class RuleSet:
    """The rules of some files, and what is wrong with the files that were left out."""

    rules: tuple[PrefixRule, ...] = ()
    problems: tuple[str, ...] = ()

    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(self.rules + other.rules, self.problems + other.problems)

    def text(self) -> str:
        """All of it as JSON, always the same; empty where there is none."""
        if not (self.rules or self.problems):
            return ""
        told = [
            {
                "pattern": [sorted(words) for words in rule.pattern],
                "decision": rule.decision,
                "justification": rule.justification,
                "confined": rule.confined,
                **({"sign": True} if rule.sign else {}),
            }
            for rule in self.rules
        ]
        return json.dumps({"rules": told, "problems": self.problems}, sort_keys=True, indent=1)


class CommandRules:
    """The rules of one worker."""

    def __init__(self, home: Path | None = None, *, trust_projects: bool = False) -> None:
        self._home = home
        self._own = None if home is None else _Folder(home / IN_HOME, home / IN_HOME, may_allow=True)
        self._trust_projects = trust_projects
        self._projects: OrderedDict[Path, _Folder] = OrderedDict()

    def of(self, cwd: Path, within: Path | None = None) -> RuleSet:
        """The rules for a session that works in a folder, as the files are now.

        A repository above `within`, a path free of links, is none of the session's.
        """
        found = self._own.read() if self._own is not None else RuleSet()
        return found + self._of_project(cwd, within) if self._trust_projects else found

    def of_session(self, state: State) -> RuleSet:
        """The rules for a session as it works now; the files of a portable folder are read where it lies."""
        cwd, portable = Path(state.in_force.cwd), state.facts.portable
        if portable is None:
            return self.of(cwd)
        place = Place.of(Path(portable.root), state.facts.tree_id, state.facts.session_id, portable.name)
        return self.of(place.on_machine(cwd), place.here)

    def add(self, prefix: Sequence[str], *, confined: bool) -> None:
        """Adds a rule to the owner's `default.rules`; raises `OSError`, or `RuleError` if it does not fit."""
        if self._home is not None:
            add_rule(self._home / IN_HOME, prefix, confined=confined)

    def _of_project(self, cwd: Path, within: Path | None) -> RuleSet:
        top = _top(cwd, within)
        if top is None:
            return RuleSet()
        folder = self._projects.pop(top, None) or _Folder(top / IN_PROJECT, top, may_allow=False)
        self._projects[top] = folder
        while len(self._projects) > MOST_PROJECTS:
            self._projects.popitem(last=False)
        return folder.read()


class _Folder:
    """The rule files of one folder, as they were last read."""

    def __init__(self, path: Path, within: Path, *, may_allow: bool) -> None:
        self._path = path
        self._within = within
        """The folder out of which no link may lead."""
        self._may_allow = may_allow
        self._seen: tuple[_Seen, bool] | None = None
        self._found = RuleSet()
        self._unread = False
        """Whether a file could not be read, and may be the next time, without a change of its own."""

    def read(self) -> RuleSet:
        try:
            seen, cut = _seen(self._path)
        except FileNotFoundError:
            seen, cut = (), False
        except OSError as error:
            return RuleSet(problems=(f"{_shown(self._path)}: not readable: {error.strerror}",))
        if (seen, cut) != self._seen:
            self._unread = False
            self._found = sum(map(self._of_file, [name for name, *_ in seen][:MOST_FILES]), RuleSet())
            if len(seen) > MOST_FILES:
                more = f"more than {MOST_FILES} rule files; the last of them by name are left out"
                self._found += RuleSet(problems=(f"{_shown(self._path)}: {more}",))
            if cut:
                more = f"more than {MOST_ENTRIES:,} entries; rule files among the rest are left out"
                self._found += RuleSet(problems=(f"{_shown(self._path)}: {more}",))
            self._seen = None if self._unread else (seen, cut)
        return self._found

    def _of_file(self, name: str) -> RuleSet:
        file = self._path / name
        try:
            data = read_regular(file, MOST_BYTES + 1, below=self._within)
            if len(data) > MOST_BYTES:
                raise RuleError(1, f"more than {MOST_BYTES:,} bytes")
            return RuleSet(parsed_rules(data.decode(), may_allow=self._may_allow))
        except UnicodeDecodeError:
            why = "not readable: it is no UTF-8"
        except RuleError as error:
            why = str(error)
        except OSError as error:
            # A descriptor that was lacking, or a right: neither shows in the file's time and size.
            self._unread = self._unread or not (isinstance(error, LeadsOut) or error.errno == errno.EINVAL)
            why = f"not readable: {error.strerror}"
        return RuleSet(
            problems=(f"{_shown(file)}: {why}; the whole file is left out until that is corrected",)
        )


def _shown(path: Path) -> str:
    """A path as an event can carry it: a file's name need not be UTF-8."""
    return str(path).encode("utf-8", "replace").decode()


def _seen(folder: Path) -> tuple[_Seen, bool]:
    """The rule files with their times and sizes, and whether the folder has more than is looked at."""
    found: list[_File] = []
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number == MOST_ENTRIES:
                return tuple(sorted(found)), True
            if entry.name.endswith(".rules"):
                seen = [entry.stat(follow_symlinks=False)]
                if entry.is_symlink():
                    with suppress(OSError):
                        seen.append(entry.stat())
                times = (each for about in seen for each in (about.st_mtime_ns, about.st_size))
                found.append((entry.name, *times))
    return tuple(sorted(found)), False


def _top(cwd: Path, within: Path | None) -> Path | None:
    """The top of the repository that a folder lies in, `within` another one; None outside of one."""
    folder = Path(os.path.realpath(cwd))
    chain = (each for each in (folder, *folder.parents) if within is None or each.is_relative_to(within))
    return next((each for each in chain if (each / ".git").exists()), None)


# ── amend ─────────────────────────────────────────────────────────────────────────────────────────
# A rule that a person's answer adds to the owner's `default.rules`.


DEFAULT_FILE: Final = "default.rules"
MOST_BYTES: Final = 256 << 10
"""Bytes of a rule file."""


def add_rule(folder: Path, prefix: Sequence[str], *, confined: bool) -> None:
    """Adds a line that allows a prefix, unless it is there.

    `confined`: as the command that was approved, commands of the prefix stay in their sandbox. Raises
    `OSError`, or `RuleError` where the file would not be readable any more: then it stays as it is.
    """
    make_folder(folder)
    descriptor = open_file(folder / DEFAULT_FILE, os.O_RDWR | os.O_APPEND)
    with os.fdopen(descriptor, "r+b") as file:
        # Two workers of one person may add at once.
        fcntl.flock(file, fcntl.LOCK_EX)
        there, line = file.read(MOST_BYTES + 1), _line(prefix, confined=confined)
        if line.strip() in [each.strip() for each in there.splitlines()]:
            return
        added = line + b"\n" if not there or there.endswith(b"\n") else b"\n" + line + b"\n"
        if len(there) + len(added) > MOST_BYTES:
            raise RuleError(1, f"the file would have more than {MOST_BYTES:,} bytes")
        try:
            parsed_rules((there + added).decode())
        except UnicodeDecodeError as error:
            raise RuleError(1 + there.count(b"\n", 0, error.start), "the file is not UTF-8") from None
        file.write(added)


def _line(prefix: Sequence[str], *, confined: bool) -> bytes:
    # JSON's texts are Python's, as long as nothing beyond ASCII is escaped.
    pattern = json.dumps(list(prefix), ensure_ascii=False)
    return f'prefix_rule(pattern={pattern}, decision="allow"{", confined=True" if confined else ""})'.encode()


# ── warnings ──────────────────────────────────────────────────────────────────────────────────────
# Warnings about rule files that were left out: each session hears of them once, until they change.


MOST_SHOWN: Final = 8
MOST_TOLD: Final = 10_000
"""Sessions of which a worker remembers what they heard."""


class RuleWarnings:
    """The warnings about rule files, and the sessions that have heard them."""

    def __init__(self, rules: CommandRules) -> None:
        self._rules = rules
        self._told: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def show(self, state: State, show: Callable[[JsonObject], None]) -> None:
        """Warns of files that are left out, if the session has not heard of them."""
        problems, session = self._rules.of_session(state).problems, state.facts.session_id
        if self._told.get(session, ()) == problems:
            return
        for problem in problems[:MOST_SHOWN]:
            show(written(WarningEvent(message=f"rules about commands: {problem}")))
        if (more := len(problems) - MOST_SHOWN) > 0:
            told = f"{counted(more, 'more problem')}; `dendro doctor` in this folder lists all"
            show(written(WarningEvent(message=f"rules about commands: {told}")))
        self._told[session] = problems
        while len(self._told) > MOST_TOLD:
            self._told.popitem(last=False)


# ── verdict ───────────────────────────────────────────────────────────────────────────────────────
# The rules' part of a command's assessment: what is allowed, and the strictest rule that it meets.


TOO_INVOLVED = "there are rules that ask or forbid, and the script is too involved to be held against them"


def segments(
    argv: Sequence[str], rules: Iterable[PrefixRule], free: Callable[[str], bool]
) -> tuple[Segment, ...]:
    """The certain commands, each with what the rules allow it; `free` says so of a program's name."""
    allowing = [rule for rule in rules if rule.decision == "allow"]
    in_reach = free(argv[0])
    return tuple(_segment(words, allowing, in_reach, free) for words in certain_commands(argv))


def _segment(
    words: Words, rules: Sequence[PrefixRule], in_reach: bool, free: Callable[[str], bool]
) -> Segment:
    meant = [rule for rule in rules if rule.means(words)]
    if not meant:
        return Segment(words)
    # A rule that was written to keep a command in its sandbox is the stricter one.
    leaves = in_reach and not any(rule.confined for rule in meant) and free(words[0])
    return Segment(words, "free" if leaves else "confined")


def strict_rule(argv: Sequence[str], rules: Iterable[PrefixRule]) -> StrictRule | None:
    """The strictest rule that any command in sight meets; None for no rule but such as allow."""
    strict = [rule for rule in rules if rule.decision != "allow"]
    if not strict:
        return None
    commands = all_commands(argv)
    if commands is None:
        return StrictRule("prompt", TOO_INVOLVED, any(rule.sign for rule in strict))
    met = [rule for rule in strict if any(_meets(rule, words) for words in commands)]
    strictest: tuple[Literal["forbidden"], Literal["prompt"]] = ("forbidden", "prompt")
    for decision in strictest:
        for rule in met:
            if rule.decision == decision:
                return StrictRule(decision, rule.justification, any(each.sign for each in met))
    return None


def _meets(rule: PrefixRule, words: Words) -> bool:
    """Whether a rule means a command, by its program's path or by its name alone."""
    if rule.means(words):
        return True
    return bool(words) and "/" in words[0] and rule.means((words[0].rpartition("/")[2], *words[1:]))


# ── within ────────────────────────────────────────────────────────────────────────────────────────
# The commands that a command consists of: those that are certain, and all that can be seen in it.
#
# Certain ones are what a rule may allow. What a rule forbids is looked for everywhere: in substitutions
# and loops, behind sudo and its like, in a shell's script within a shell's script.


MOST_COMMANDS: Final = 10_000

Words = tuple[str, ...]


def certain_commands(argv: Sequence[str]) -> tuple[Words, ...]:
    """The simple commands of a plain script, each up to its first word with a pattern; else the command."""
    script = unwrap(argv)
    plain = read_plain(script) if script is not None and system_program(argv[0]) is not None else None
    if plain is None:
        return (tuple(argv),)
    return tuple(
        tuple(word.text for word in takewhile(lambda word: not word.expands, command))
        for command in plain.commands
    )


def all_commands(argv: Sequence[str]) -> tuple[Words, ...] | None:
    """Of each command that can be seen, the words that are known; None if not all of it can be read."""
    found: list[Words] = []
    pending = [(tuple(argv), 0)]
    while pending:
        words, depth = pending.pop()
        found.append(words)
        inner = tuple(without_runners(words))
        if inner != words:
            found.append(inner)
        below = commands_in(inner, depth)
        if isinstance(below, str) or len(found) + len(pending) + len(below) > MOST_COMMANDS:
            return None
        pending += [(tuple(command), depth + 1) for command in below]
    return tuple(found)
