"""Guards: a function per program that is safe with some arguments and not with others.

A guard takes the words after the program's name and returns whether this use only reads.
A guard names the arguments that may write and refuses any that it does not recognise. Programs that accept
abbreviated long options are matched by prefix, because `git diff --outp=FILE` writes FILE.

This module knows nothing of shells: the words are final.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

Guard = Callable[[Sequence[str]], bool]
"""Judges the words after the program's name."""


def _base64_only_prints(arguments: Sequence[str]) -> bool:
    return not any(re.match(r"--o|-[^-]*o", argument) for argument in arguments)


_FIND_ACTIONS: Final = ("-exec", "-ok", "-delete", "-fls", "-fprint")


def _find_only_prints(arguments: Sequence[str]) -> bool:
    return not any(argument.startswith(_FIND_ACTIONS) for argument in arguments)


_RG_RUNS_PROGRAMS: Final = frozenset({"--pre", "--hostname-bin", "--search-zip"})


def _rg_only_searches(arguments: Sequence[str]) -> bool:
    # `-z` may stand anywhere in a cluster of short options: `-nzi`.
    return not any(
        argument.partition("=")[0] in _RG_RUNS_PROGRAMS or re.match(r"-[^-]*z", argument)
        for argument in arguments
    )


def _sed_prints_lines(arguments: Sequence[str]) -> bool:
    """`-n N[,M]p [FILE]`; every other sed script can write files or run commands."""
    match arguments:
        case ["-n", lines]:
            file = ""
        case ["-n", lines, file]:
            pass
        case _:
            return False
    # After an option like `-fX` the line range would be a file, and X the script.
    return re.fullmatch(r"[0-9]+(,[0-9]+)?p", lines) is not None and not file.startswith("-")


def _uniq_has_no_output_file(arguments: Sequence[str]) -> bool:
    operands = [argument for argument in arguments if argument == "-" or not argument.startswith("-")]
    return len(operands) <= 1 and "--" not in arguments


_CARGO_CHECK_OPTION: Final = re.compile(
    r"-q|--quiet|-v+|--verbose|-r|--release|--workspace|--all|--all-targets|--all-features|"
    r"--no-default-features|--lib|--bins|--tests|--examples|--benches|--locked|--offline|--frozen|"
    r"--keep-going|-p|--package|--features|(?:--package|--features|--message-format|--color)=.*|[^-].*",
    re.DOTALL,
)


def _cargo_checks(arguments: Sequence[str]) -> bool:
    """`check` with options that select what is checked; `--config` could name a compiler."""
    return list(arguments[:1]) == ["check"] and all(map(_CARGO_CHECK_OPTION.fullmatch, arguments[1:]))


_GIT_HARMLESS_GLOBALS: Final = frozenset({"--no-pager", "--no-optional-locks"})


def _git_only_reads(arguments: Sequence[str]) -> bool:
    """A reading subcommand; of the options before it, only those that name nothing to run or read."""
    position = 0
    while position < len(arguments) and arguments[position] in _GIT_HARMLESS_GLOBALS:
        position += 1
    match arguments[position:]:
        case ["status" | "log" | "diff" | "show", *options]:
            return not any(map(_may_be_git_output_option, options))
        case ["branch", *options]:
            return _git_branch_lists(options)
        case _:
            return False


_GIT_OUTPUT_OPTIONS: Final = ("--output", "--ext-diff", "--textconv", "--exec")


def _may_be_git_output_option(argument: str) -> bool:
    name = argument.partition("=")[0]
    if not name.startswith("--") or name == "--":
        return False
    return any(name.startswith(option) or option.startswith(name) for option in _GIT_OUTPUT_OPTIONS)


_GIT_BRANCH_OPTION: Final = re.compile(
    r"-[alrvi]+|--(?:all|list|remotes|verbose|show-current|ignore-case|no-color|no-column|no-abbrev)|"
    r"--(?:contains|no-contains|merged|no-merged|color|column|omit-empty)|"
    r"--(?:contains|no-contains|merged|no-merged|points-at|sort|format|abbrev|color|column)=.*",
    re.DOTALL,
)
# Not `-l`: it made a reflog, and so a branch, before git 2.20.
_GIT_BRANCH_LISTS: Final = re.compile(
    r"--list|--(?:contains|no-contains|merged|no-merged|points-at)(?:=.*)?", re.DOTALL
)


def _git_branch_lists(arguments: Sequence[str]) -> bool:
    """Whether `git branch` lists: an operand is a new branch's name unless an option says otherwise."""
    options = [argument for argument in arguments if argument.startswith("-")]
    has_operand = len(options) < len(arguments)
    if not all(map(_GIT_BRANCH_OPTION.fullmatch, options)):
        return False
    return not has_operand or any(map(_GIT_BRANCH_LISTS.fullmatch, options))


GUARDS: Final[Mapping[str, Guard]] = MappingProxyType(
    {
        "base64": _base64_only_prints,
        "cargo": _cargo_checks,
        "find": _find_only_prints,
        "git": _git_only_reads,
        "rg": _rg_only_searches,
        "sed": _sed_prints_lines,
        "uniq": _uniq_has_no_output_file,
    }
)
"""By program name; a program that is neither here nor safe with any arguments is not safe."""
