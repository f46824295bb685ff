"""Rules for commands that may run without an approval, and for those that always need one.

*Safe* is a promise about effects: the command reads, and neither its options nor the files
it is pointed at make it write, run another program, or reach the network. It is a list of
what is known, so an unknown command, option or spelling is simply not safe, and asking once
too often is the accepted price.

*Dangerous* is the reverse: a short list of what destroys work that was never committed. It
looks everywhere in a script, in shells within shells too, because here missing is the error.

The lists are those of protocol v1, January 2026 (safe list; dangerous list of its decision
for one command), with `cargo check` of the September 2025 specification. Stricter here:
`uniq` with a second operand (it writes it), git beside a `cd` in one script (the
configuration of a repository, which the agent may have written, names programs to run), and
what `find` deletes or has deleted.

This module does not know the working directory: a caller that lets an agent choose it has
to hold the same reservation about git itself.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from orchestrator.tools.commands.bash import (
    TOO_INVOLVED,
    Word,
    beginnings_or_fault,
    read_plain,
    script_in,
    unwrap,
)

_SYSTEM_FOLDERS: Final = frozenset({"/bin", "/usr/bin", "/usr/local/bin"})

# fmt: off
_SAFE_WITH_ANY_ARGUMENTS: Final = frozenset({
    "cat", "cd", "cut", "echo", "expr", "false", "grep", "head", "id", "ls", "nl", "numfmt", "paste", "pwd",
    "rev", "seq", "stat", "tac", "tail", "tr", "true", "uname", "wc", "which", "whoami",
})
# fmt: on


_OBEYING: Final = frozenset({"cargo", "git"})


def is_known_safe(argv: Sequence[str]) -> bool:
    """Whether the command is known to have no effect but its output.

    A script given to a shell is safe if it is plain and every command in it is safe.
    """
    script = unwrap(argv)
    if script is None:
        return _is_safe_command([Word(word, expands=False) for word in argv])
    plain = read_plain(script)
    if plain is None or system_program(argv[0]) is None:
        return False
    programs = [system_program(command[0].text) for command in plain.commands]
    if "cd" in programs and "git" in programs:
        return False
    return all(_is_safe_command(command) for command in plain.commands)


def obeys_its_folder(argv: Sequence[str]) -> bool:
    """Whether a safe command runs programs that files of its folder name: git's settings, a build script.

    `core.fsmonitor`, filters, `diff.*.textconv`, `gpg.program` of whatever repository it is started in, which
    the agent may have written. In a sandbox they are held as any command is; without one they are not.
    """
    script = unwrap(argv)
    if script is None:
        return system_program(argv[0]) in _OBEYING if argv else False
    plain = read_plain(script)
    return plain is None or any(system_program(command[0].text) in _OBEYING for command in plain.commands)


MOST_DEPTH: Final = 8
"""Shells within shells."""


def dangers(argv: Sequence[str]) -> tuple[bool, str]:
    """Whether the command forces a deletion, or discards changes that git has not recorded; and why unread.

    Also behind sudo and its like, in a shell's script, plain or not, and in what `find` runs. The second is
    the reason why a script of it cannot be read, empty if all of it was: such a command is asked about for
    that reason. Both are of one reading, because the next may find a reader where this one lost it.
    """
    destroys, fault = False, ""
    pending = deque([(argv, 0)])
    while pending:
        words, depth = pending.popleft()
        command = without_runners(words)
        destroys = destroys or _destroys(command)
        found = commands_in(command, depth)
        if isinstance(found, str):
            fault = fault or found
        else:
            pending += [(below, depth + 1) for below in found]
    return destroys, fault


def commands_in(command: Sequence[str], depth: int) -> Sequence[Sequence[str]] | str:
    """The commands of a shell's script, and those that `find` runs; or why the script cannot be read.

    Of each the leading words that are known. `depth` is how many shells this one is within.
    """
    script = script_in(command)
    if script is None:
        return _run_by_find(command)
    return beginnings_or_fault(script) if depth < MOST_DEPTH else TOO_INVOLVED


def _is_safe_command(command: Sequence[Word]) -> bool:
    if not command or command[0].expands or any("\0" in word.text for word in command):
        return False
    program = system_program(command[0].text)
    if program in _SAFE_WITH_ANY_ARGUMENTS:
        return True
    guard = GUARDS.get(program or "")
    # A pattern may become several words, and an option if a file is named like one.
    if guard is None or any(word.expands for word in command):
        return False
    return guard([word.text for word in command[1:]])


def system_program(name: str) -> str | None:
    """The program's bare name, unless it is named by a path outside of the system's folders."""
    folder, slash, program = name.rpartition("/")
    return program if not slash or folder in _SYSTEM_FOLDERS else None


# Programs that run the command given to them, and their options that take a separate value.
# fmt: off
_RUNNERS: Final[Mapping[str, frozenset[str]]] = MappingProxyType({
    "builtin": frozenset(),
    "busybox": frozenset(),
    "chronic": frozenset(),
    "chroot": frozenset(),
    "command": frozenset(),
    "coproc": frozenset(),
    "doas": frozenset({"-C", "-u"}),
    "env": frozenset({"-C", "-u", "--chdir", "--unset"}),
    "exec": frozenset({"-a"}),
    "flock": frozenset({"-E", "-w", "--conflict-exit-code", "--timeout", "--wait"}),
    "ionice": frozenset({"-c", "-n", "--class", "--classdata"}),
    "nice": frozenset({"-n", "--adjustment"}),
    "nohup": frozenset(),
    "pkexec": frozenset({"--user"}),
    "setsid": frozenset(),
    "stdbuf": frozenset({"-e", "-i", "-o", "--error", "--input", "--output"}),
    "sudo": frozenset({
        "-C", "-D", "-R", "-T", "-U", "-g", "-h", "-p", "-r", "-t", "-u",
        "--chdir", "--group", "--host", "--prompt", "--user",
    }),
    "taskset": frozenset(),
    "time": frozenset({"-f", "-o"}),
    "timeout": frozenset({"-k", "-s", "--kill-after", "--signal"}),
    "toybox": frozenset(),
    "unbuffer": frozenset(),
    "watch": frozenset({"-n", "-q", "--equexit", "--interval"}),
    "xargs": frozenset({"-E", "-I", "-L", "-P", "-a", "-d", "-n", "-s"}),
})
# A duration, a file, a mask: words of theirs that stand before the command.
_OPERANDS: Final[Mapping[str, int]] = MappingProxyType({"chroot": 1, "flock": 1, "taskset": 1, "timeout": 1})
_FIND_RUNS: Final = ("-exec", "-execdir", "-ok", "-okdir")
_GIT_GLOBALS_WITH_VALUE: Final = frozenset({
    "-C", "-c", "--config-env", "--exec-path", "--git-dir", "--namespace", "--work-tree",
})
# fmt: on
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


def without_runners(argv: Sequence[str]) -> Sequence[str]:
    """The command that is run in the end: `sudo -u root env A=1 rm x` is `rm x`."""
    start = 0
    while start < len(argv) and (with_value := _RUNNERS.get(runner := _name(argv[start]))) is not None:
        start = _after_options(argv, start + 1, with_value) + _OPERANDS.get(runner, 0)
        while start < len(argv) and _ASSIGNMENT.fullmatch(argv[start]):
            start += 1
    return argv[start:]


def _after_options(words: Sequence[str], start: int, with_value: frozenset[str]) -> int:
    """The position of the first word from `start` on that is neither an option nor its value."""
    position = start
    while position < len(words) and words[position].startswith("-"):
        position += 1
        if words[position - 1] == "--":
            break
        if _takes_next_word(words[position - 1], with_value):
            position += 1
    return position


def _takes_next_word(option: str, with_value: frozenset[str]) -> bool:
    if option.startswith("--"):
        return option in with_value
    # In `-nu root` the value is the next word, in `-uroot` it is the rest of this one.
    letters = option[1:]
    first = next((index for index, letter in enumerate(letters) if f"-{letter}" in with_value), None)
    return first is not None and first == len(letters) - 1


def _name(program: str) -> str:
    return program.rpartition("/")[2]


def _destroys(command: Sequence[str]) -> bool:
    match [_name(word) for word in command[:1]]:
        case ["rm"]:
            return any(map(_forces, command[1:]))
        case ["git"]:
            subcommand = _after_options(command, 1, _GIT_GLOBALS_WITH_VALUE)
            return list(command[subcommand : subcommand + 1]) in (["reset"], ["rm"])
        case ["find"]:
            return "-delete" in command
        case _:
            return False


def _run_by_find(command: Sequence[str]) -> list[Sequence[str]]:
    """The commands that `find` runs for what it has found; none of another program.

    Each up to the next one, also where that is of a `find` that it runs itself.
    """
    if [_name(word) for word in command[:1]] != ["find"]:
        return []
    marks = [at for at, word in enumerate(command) if word in (*_FIND_RUNS, ";", "+")]
    parts = pairwise([*marks, len(command)])
    return [command[start + 1 : end] for start, end in parts if command[start] in _FIND_RUNS]


def _forces(argument: str) -> bool:
    # rm takes options in any order, clustered (`-vrf`) or abbreviated (`--for`).
    return re.match(r"-[^-]*f", argument) is not None or (
        len(argument) > 2 and "--force".startswith(argument)
    )


# ── guards ────────────────────────────────────────────────────────────────────────────────────────
# Guards: a function per program that is safe with some arguments and not with others.
#
# A guard takes the words after the program's name and returns whether this use only reads. A guard names
# the arguments that may write and refuses any that it does not recognise. Programs that accept
# abbreviated long options are matched by prefix, because `git diff --outp=FILE` writes FILE.
#
# This module knows nothing of shells: the words are final.


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
