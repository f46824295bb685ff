"""Rules for commands that may run without an approval, and for those that always need one.

*Safe* is a promise about effects: the command reads, and neither its options nor the files
it is pointed at make it write, run another program, or reach the network. It is a list of
what is known, so an unknown command, option or spelling is simply not safe, and asking once
too often is the accepted price.

*Dangerous* is the reverse: a short list of what destroys work that was never committed. It
looks everywhere in a script, in shells within shells too, because here missing is the error.

The lists are those of protocol v1, January 2026 (safe list; dangerous list of its decision
for one command), with `cargo check` of the September 2025 specification. Stricter here:
`uniq` with a second operand (it writes it), and git beside a `cd` in one script (the
configuration of a repository, which the agent may have written, names programs to run).

This module does not know the working directory: a caller that lets an agent choose it has
to hold the same reservation about git itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from orchestrator.tools.commands.bash import Word, beginnings_or_fault, read_plain, unwrap
from orchestrator.tools.commands.guards import GUARDS

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


def dangers(argv: Sequence[str]) -> tuple[bool, str]:
    """Whether the command forces a deletion, or discards changes that git has not recorded; and why unread.

    Also behind sudo and its like and in a shell's script, plain or not. The second is the reason why a
    script of it cannot be read, empty if all of it was: such a command is asked about for that reason. Both
    are of one reading, because the next may find a reader where this one lost it.
    """
    command = without_runners(argv)
    script = unwrap(command)
    if script is None:
        return _destroys(command), ""
    found = beginnings_or_fault(script)
    if isinstance(found, str):
        return False, found
    below = [dangers(beginning) for beginning in found]
    return any(destroys for destroys, _ in below), next((fault for _, fault in below if fault), "")


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
    "command": frozenset(),
    "coproc": frozenset(),
    "doas": frozenset({"-C", "-u"}),
    "env": frozenset({"-C", "-u", "--chdir", "--unset"}),
    "eval": frozenset(),
    "exec": frozenset({"-a"}),
    "nice": frozenset({"-n", "--adjustment"}),
    "nohup": frozenset(),
    "setsid": frozenset(),
    "sudo": frozenset({
        "-C", "-D", "-R", "-T", "-U", "-g", "-h", "-p", "-r", "-t", "-u",
        "--chdir", "--group", "--host", "--prompt", "--user",
    }),
    "time": frozenset({"-f", "-o"}),
    "xargs": frozenset({"-E", "-I", "-L", "-P", "-a", "-d", "-n", "-s"}),
})
_GIT_GLOBALS_WITH_VALUE: Final = frozenset({
    "-C", "-c", "--config-env", "--exec-path", "--git-dir", "--namespace", "--work-tree",
})
# fmt: on
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


def without_runners(argv: Sequence[str]) -> Sequence[str]:
    """The command that is run in the end: `sudo -u root env A=1 rm x` is `rm x`."""
    start = 0
    while start < len(argv) and (with_value := _RUNNERS.get(_name(argv[start]))) is not None:
        start = _after_options(argv, start + 1, with_value)
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
        case _:
            return False


def _forces(argument: str) -> bool:
    # rm takes options in any order, clustered (`-vrf`) or abbreviated (`--for`).
    return re.match(r"-[^-]*f", argument) is not None or (
        len(argument) > 2 and "--force".startswith(argument)
    )
