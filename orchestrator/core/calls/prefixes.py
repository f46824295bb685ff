"""Prefixes of commands that a person lets run from now on: which may be offered, and how one is remembered.

The first words of a command stand for all commands that begin with them. A prefix that would allow anything,
such as a shell's, is neither offered nor taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import orjson

Words: TypeAlias = tuple[str, ...]

AMENDED: Final = "approved_execpolicy_amendment"
"""The first word of a decision that allows a prefix; the prefix stands behind it, as JSON."""
_KEY: Final = "prefix:"
MOST_WORDS: Final = 16
"""Words of a prefix."""

# fmt: off
_NEVER: Final = frozenset({
    # Shells, and what runs the command that it is given.
    "ash", "bash", "csh", "dash", "elvish", "fish", "ksh", "mksh", "nu", "pwsh", "sh", "tcsh", "xonsh", "zsh",
    ".", "builtin", "busybox", "chroot", "command", "coproc", "doas", "env", "eval", "exec", "expect", "find",
    "flock", "gdb", "ionice", "nice", "nohup", "nsenter", "parallel", "pkexec", "script", "setpriv", "setsid",
    "source", "ssh", "stdbuf", "strace", "su", "sudo", "taskset", "tclsh", "time", "timeout", "toybox",
    "unshare", "watch", "xargs",
    # Interpreters, and what fetches a program and runs it.
    "awk", "bun", "bunx", "deno", "ed", "emacs", "ex", "gawk", "ghci", "guile", "iex", "irb", "java",
    "jshell", "julia", "lua", "luajit", "mawk", "node", "nodejs", "npx", "osascript", "perl", "php", "pipx",
    "psql", "pypy", "python", "r", "rscript", "ruby", "sed", "sqlite3", "tmux", "uvx", "vi", "vim",
    "bwrap", "chpst", "chrt", "chronic", "clojure", "corepack", "cpulimit", "dc", "direnv",
    "elixir", "entr", "erl", "fakeroot", "firejail", "gosu", "groovy", "less", "linux32", "linux64", "ltrace",
    "m4", "man", "mise", "more", "mosh", "nix-shell", "numactl", "ocaml", "octave", "perf", "pkgx", "prlimit",
    "racket", "rbash", "rlwrap", "rsh", "rsync", "runuser", "scala", "screen", "sem", "setarch", "socat",
    "start-stop-daemon", "su-exec", "systemd-run", "tar", "ts-node", "tsx", "unbuffer", "valgrind",
    "dbus-run-session", "xvfb-run", "zellij",
    # What runs a command later.
    "at", "batch", "crontab",
    # What destroys work.
    "dd", "mkfs", "rm", "rmdir", "shred", "truncate",
})
_TAKES_SUB_COMMANDS: Final = frozenset({
    "apt", "apt-get", "aws", "az", "brew", "bundle", "cargo", "conda", "docker", "dotnet", "gcloud", "gem",
    "gh", "git", "go", "gradle", "helm", "just", "kubectl", "make", "mix", "mvn", "npm", "pip", "pip3",
    "pnpm", "podman", "poetry", "rake", "rustup", "systemctl", "task", "terraform", "uv", "yarn",
})
_NEVER_BELOW: Final = frozenset({
    ("git", "clean"), ("git", "config"), ("git", "reset"), ("git", "rm"), ("docker", "run"),
    ("podman", "run"), ("poetry", "run"), ("uv", "run"), ("go", "run"), ("kubectl", "delete"), ("mix", "run"),
    ("uv", "tool"), ("git", "bisect"), ("git", "difftool"), ("git", "filter-branch"),
    ("git", "for-each-repo"), ("git", "rebase"), ("git", "submodule"), ("conda", "run"), ("kubectl", "run"),
    ("rustup", "run"),
    ("npm", "create"), ("npm", "init"), ("pnpm", "create"), ("yarn", "create"), ("yarn", "node"),
    ("brew", "sh"),
})
_RUNS_ANYTHING: Final = frozenset({"dlx", "eval", "exec", "explore", "shell", "x"})
"""Sub-commands that run the command behind them, whatever the program."""
# fmt: on
_SUB_COMMAND: Final = re.compile(r"[A-Za-z][A-Za-z-]*")
_VERSIONED: Final = re.compile(r"([a-z]+?)[0-9.]+")


def offered(words: Sequence[str]) -> Words:
    """The prefix that a person is offered for a command; empty if there is none."""
    if not words:
        return ()
    prefix = tuple(words[:2]) if _takes_sub_commands(words[0]) else (words[0],)
    return prefix if may_be_allowed(prefix) else ()


def may_be_allowed(prefix: Sequence[str]) -> bool:
    """Whether an amendment may allow a prefix: it says what runs, and does not run what it is told."""
    if not 0 < len(prefix) <= MOST_WORDS or "/" in prefix[0] or not prefix[0]:
        return False
    program = prefix[0].lower()
    versioned = _VERSIONED.fullmatch(program)
    if program in _NEVER or (versioned is not None and versioned[1] in _NEVER):
        return False
    if not _takes_sub_commands(program):
        return True
    if len(prefix) < 2 or _SUB_COMMAND.fullmatch(prefix[1]) is None:
        return False
    return prefix[1] not in _RUNS_ANYTHING and (program, prefix[1]) not in _NEVER_BELOW


def _takes_sub_commands(program: str) -> bool:
    return program.lower() in _TAKES_SUB_COMMANDS


# ── as a decision, and as a key ───────────────────────────────────────────────────────────────


def amendment(prefix: Words) -> str:
    """The decision that allows a prefix, as the log has it."""
    return f"{AMENDED} {_text(prefix)}"


def amended(decision: str) -> Words:
    """The prefix that a decision allows; empty if it allows none."""
    word, _, text = decision.partition(" ")
    if word != AMENDED:
        return ()
    try:
        prefix = orjson.loads(text)
    except orjson.JSONDecodeError:
        return ()
    sound = isinstance(prefix, list) and all(isinstance(each, str) for each in prefix)
    return tuple(prefix) if sound else ()


def prefix_key(prefix: Words) -> str:
    """The key under which a session remembers a prefix."""
    return _KEY + _text(prefix)


def is_remembered(words: Words, keys: Iterable[str], marked: str = "") -> bool:
    """Whether a remembered prefix begins the command; `marked` stands before the keys that count."""
    begin = f"{marked}{_KEY}"
    known = {key for key in keys if key.startswith(begin)}
    return bool(known) and any(
        marked + prefix_key(words[:count]) in known for count in range(1, min(len(words), MOST_WORDS) + 1)
    )


def _text(prefix: Words) -> str:
    return orjson.dumps(prefix).decode()
