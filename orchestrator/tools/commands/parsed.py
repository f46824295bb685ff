"""Summarises the files that a command reads in the protocol's words: `parsed_cmd` of the exec events.

A person who follows a session reads "read README.md" or "search TODO in src" instead of a
command line. It is a summary for the eye: nothing may be allowed or refused by it (that is
`safety`), so here a pattern counts as the word that was written.

The entries follow Codex of September 2025: a plain script is split, one entry each;
what only shapes the output of others (`| wc -l`), a leading `echo`, `cd x` before
something else, and `|| true` are left out. Listing tools are `list_files` unless they
filter by name, as in protocol v1, January 2026.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final, TypeAlias

from orchestrator.protocol.commands import ListFilesCommand, ReadCommand, SearchCommand, UnknownCommand
from orchestrator.tools.commands.bash import PlainScript, read_plain, unwrap

Entry: TypeAlias = ReadCommand | ListFilesCommand | SearchCommand | UnknownCommand
Words = tuple[str, ...]
Summary = Callable[[Words], Entry | None]
"""Turns a command's words into its entry, or None if this use of the program is not known."""


def parsed_cmd(argv: Sequence[str]) -> list[Entry]:
    """The wire entries for a command, in the order in which its parts are written."""
    script = unwrap(argv)
    if script is None:
        return [_summarise(tuple(argv))]
    plain = read_plain(script)
    return [_unknown(script)] if plain is None else _summarise_script(plain, script)


def _summarise_script(plain: PlainScript, script: str) -> list[Entry]:
    commands = [tuple(word.text for word in command) for command in plain.commands]
    telling = _drop_preliminaries([command for command in commands if not _is_filter(command)])
    if not telling:
        return [_unknown(script)]
    first, *others = entries = _without_repeats(_summarise(command) for command in telling)
    if isinstance(first, ReadCommand) and not others and _cuts_lines(plain, commands):
        # `cat f | sed -n 1,20p` as a whole says which lines were read.
        return [first.model_copy(update={"cmd": script})]
    return entries


def _drop_preliminaries(commands: list[Words]) -> list[Words]:
    """Without what announces or prepares the rest, as long as a rest remains."""
    kept = list(commands)
    while (index := _first_preliminary(kept)) is not None:
        del kept[index]
    return kept


def _first_preliminary(commands: list[Words]) -> int | None:
    if len(commands) < 2:
        return None
    last = len(commands) - 1
    for index, (program, *arguments) in enumerate(commands):
        announces = program == "echo" and index == 0
        prepares = program == "cd" and index < last
        says_nothing = program == "true" and not arguments
        numbers_lines = program == "nl" and all(word.startswith("-") for word in arguments)
        if announces or prepares or says_nothing or numbers_lines:
            return index
    return None


# Not `tee` and `xargs`, which Codex hides too: one writes, the other runs what it is given.
_FILTERS: Final = frozenset({"awk", "column", "cut", "printf", "sort", "tr", "uniq", "wc", "yes"})


def _is_filter(command: Words) -> bool:
    """Whether the command only shapes what another one printed."""
    program, *arguments = command
    match program:
        case "head" | "tail":
            # `head -n 40` names its count apart, and is shown, because Codex shows it.
            return len(arguments) < 2 and not _operands(arguments, frozenset())
        case "sed":
            edits = any(re.match(r"-[^-]*i|--in", word) for word in arguments)
            return not edits and _read_sed(command) is None
        case _:
            return program in _FILTERS


def _cuts_lines(plain: PlainScript, commands: Iterable[Words]) -> bool:
    return "|" in plain.operators and any(command[:2] == ("sed", "-n") for command in commands)


def _without_repeats(entries: Iterable[Entry]) -> list[Entry]:
    kept: list[Entry] = []
    for entry in entries:
        if kept[-1:] != [entry]:
            kept.append(entry)
    return kept


def _summarise(command: Words) -> Entry:
    summary = _SUMMARIES.get(command[0]) if command else None
    entry = summary(command) if summary is not None else None
    return _unknown(join(command)) if entry is None else entry


# -- entries --


def _unknown(cmd: str) -> Entry:
    return UnknownCommand(cmd=cmd)


def _read(command: Words, path: str) -> Entry:
    return ReadCommand(cmd=join(command), name=_short(path))


def _list_files(command: Words, path: str | None) -> Entry:
    return ListFilesCommand(cmd=join(command), path=_short_or_none(path))


def _search(command: Words, query: str | None, path: str | None) -> Entry:
    return SearchCommand(cmd=join(command), query=query, path=_short_or_none(path))


# Folders that say little about where somebody is.
_UNTELLING_FOLDERS: Final = frozenset({"build", "dist", "node_modules", "src"})


def _short(path: str) -> str:
    """The last part of a path that tells something: `packages/app/src/` is `app`."""
    trimmed = path.replace("\\", "/").rstrip("/")
    parts = [part for part in trimmed.split("/") if part and part not in _UNTELLING_FOLDERS]
    return parts[-1] if parts else trimmed or path


def _short_or_none(path: str | None) -> str | None:
    return None if path is None else _short(path)


# -- words --


def _names(line: str) -> frozenset[str]:
    return frozenset(line.split())


def _operands(arguments: Sequence[str], with_value: frozenset[str]) -> list[str]:
    """The words that are neither options nor values of the options in `with_value`."""
    operands: list[str] = []
    remaining = iter(arguments)
    for word in remaining:
        if word == "--":
            operands.extend(remaining)
        elif word in with_value:
            next(remaining, None)
        elif not word.startswith("-") or word == "-":
            operands.append(word)
    return operands


def _option_value(arguments: Sequence[str], names: frozenset[str]) -> str | None:
    """The value of the first option out of `names`, written as the word after it."""
    return next((value for name, value in pairwise(arguments) if name in names), None)


def _at(words: Sequence[str], index: int) -> str | None:
    return words[index] if index < len(words) else None


# -- readers --


def _reader(options_with_value: str = "") -> Summary:
    """A program that prints the one file that it is given."""
    with_value = _names(options_with_value)

    def summary(command: Words) -> Entry | None:
        operands = _operands(command[1:], with_value)
        return _read(command, operands[0]) if len(operands) == 1 else None

    return summary


def _read_sed(command: Words) -> Entry | None:
    match command:
        case (_, "-n", lines, path) if re.fullmatch(r"[0-9]+(,[0-9]+)?p", lines):
            return _read(command, path)
        case _:
            return None


# -- listers --


def _lister(options_with_value: str = "") -> Summary:
    """A program that lists the folder that it is given, or the current one."""
    with_value = _names(options_with_value)

    def summary(command: Words) -> Entry:
        return _list_files(command, _at(_operands(command[1:], with_value), 0))

    return summary


_FIND_NAME_TESTS: Final = _names("-name -iname -path -ipath -wholename -regex -iregex")
_FD_WITH_VALUE: Final = _names(
    "-d --max-depth -t --type -e --extension -E --exclude -S --size -c --color -j --threads -o --owner "
    "--search-path --base-directory --changed-within --changed-before"
)


def _list_find(command: Words) -> Entry:
    arguments = command[1:]
    # Starting points come first; the expression begins at an option, `!` or a parenthesis.
    path = arguments[0] if arguments and not re.match(r"[-!(]", arguments[0]) else None
    query = _option_value(arguments, _FIND_NAME_TESTS)
    return _list_files(command, path) if query is None else _search(command, query, path)


def _list_fd(command: Words) -> Entry:
    operands = _operands(command[1:], _FD_WITH_VALUE)
    only_path = len(operands) == 1 and (operands[0] in {".", ".."} or "/" in operands[0])
    if not operands or only_path:
        return _list_files(command, _at(operands, 0))
    return _search(command, operands[0], _at(operands, 1))


# -- searchers --

_GREP_WITH_VALUE: Final = (
    "-A -B -C -m -d -D -f --after-context --before-context --context --max-count --file --include --exclude "
    "--exclude-dir --color"
)
_RG_WITH_VALUE: Final = (
    "-A -B -C -M -T -E -d -f -g -j -m -r -t --after-context --before-context --context --max-columns "
    "--type-not --encoding --max-depth --file --glob --iglob --threads --max-count --replace --type --sort "
    "--color --colors"
)
_AG_WITH_VALUE: Final = (
    "-A -B -C -G -g -m -p --after --before --context --depth --ignore --ignore-dir --max-count"
)
_PATTERN_OPTIONS: Final = frozenset({"-e", "--regexp"})


def _searcher(options_with_value: str) -> Summary:
    """A program that looks for a pattern in the files or folders named after it."""
    with_value = _names(options_with_value) | _PATTERN_OPTIONS

    def summary(command: Words) -> Entry:
        operands = _operands(command[1:], with_value)
        query = _option_value(command[1:], _PATTERN_OPTIONS)
        if query is None:
            return _search(command, _at(operands, 0), _at(operands, 1))
        return _search(command, query, _at(operands, 0))

    return summary


_search_grep: Final = _searcher(_GREP_WITH_VALUE)
_search_rg: Final = _searcher(_RG_WITH_VALUE)
_list_rg: Final = _lister(_RG_WITH_VALUE)
_list_git_files: Final = _lister("-x -X --exclude --exclude-from")


def _summarise_rg(command: Words) -> Entry | None:
    return _list_rg(command) if "--files" in command else _search_rg(command)


def _summarise_git(command: Words) -> Entry | None:
    """`git grep` and `git ls-files`, summarised as the program they stand for, shown as written."""
    match command[1:2]:
        case ("grep",):
            entry = _search_grep(command[1:])
        case ("ls-files",):
            entry = _list_git_files(command[1:])
        case _:
            return None
    return entry and entry.model_copy(update={"cmd": join(command)})


_HEAD_WITH_VALUE: Final = "-n -c --lines --bytes"
_SUMMARIES: Final[Mapping[str, Summary]] = MappingProxyType(
    {
        "cat": _reader(),
        "bat": _reader("-r --line-range -l --language --style --theme --color -H --highlight-line"),
        "batcat": _reader("-r --line-range -l --language --style --theme --color -H --highlight-line"),
        "head": _reader(_HEAD_WITH_VALUE),
        "tail": _reader(f"{_HEAD_WITH_VALUE} -s --sleep-interval --pid"),
        "less": _reader(),
        "more": _reader(),
        "nl": _reader("-b -d -f -h -i -l -n -s -v -w"),
        "sed": _read_sed,
        "ls": _lister(
            "-I -w -T --ignore --hide --width --block-size --format --time-style --quoting-style --sort"
        ),
        "tree": _lister("-L -I -P -o --filelimit --charset --sort"),
        "find": _list_find,
        "fd": _list_fd,
        "fdfind": _list_fd,
        "rg": _summarise_rg,
        "grep": _search_grep,
        "egrep": _search_grep,
        "fgrep": _search_grep,
        "ag": _searcher(_AG_WITH_VALUE),
        "git": _summarise_git,
    }
)


# ── quotes ────────────────────────────────────────────────────────────────────────────────────────
# Writes words back as one line of shell, quoted the way Codex's `cmd` texts are.
#
# `shlex.join` will not do: it leaves `=`, `,` and `%` bare, where Codex writes `sed -n '1,20p'`, and
# clients group and compare by this text. The rule (that of the protocol of September 2025, whose `cmd`
# fields it produces):
#
# - letters, digits and `+-./:@]_` stand bare;
# - a word with anything else is in single quotes, or in double quotes if it holds `'` or `\`;
# - where neither kind can hold the whole word, it is cut into the longest runs that fit one.
#
# `^` may only follow an opening single quote, and `!` may not stand in double quotes: an interactive
# bash, into which a user pastes the line, would take either for history.


_BARE: Final = re.compile(r"[A-Za-z0-9+\-./:@\]_]+")
_SINGLE_RUN: Final = re.compile(r"\^?[^'\\^]*")
_DOUBLE_RUN: Final = re.compile(r"[^`$!^]*")
_ESCAPED_IN_DOUBLE: Final = re.compile(r'(["\\])')


def join(words: Iterable[str]) -> str:
    """The words as one line that a POSIX shell splits into the same words."""
    return " ".join(_quote(word) for word in words)


def _quote(word: str) -> str:
    if not word:
        return "''"
    if _BARE.fullmatch(word):
        return word
    quoted: list[str] = []
    start = 0
    while start < len(word):
        single = _SINGLE_RUN.match(word, start)
        double = _DOUBLE_RUN.match(word, start)
        assert single is not None
        assert double is not None
        if single.end() >= double.end():
            quoted.append(f"'{single[0]}'")
        else:
            quoted.append('"' + _ESCAPED_IN_DOUBLE.sub(r"\\\1", double[0]) + '"')
        start = max(single.end(), double.end())
    return "".join(quoted)
