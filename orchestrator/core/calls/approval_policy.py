"""The approval policy: whether what a call asks for runs, is asked about, or is refused.

The four policies (the September 2025 specification, `AskForApproval`), with the dangerous-command rule of
January 2026. Commands are judged here, by the rules of a worker's owner, by what was approved before, and by
the policy; patches, merges and calls of tools judge for themselves. Nothing is executed or read for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, Protocol, Self, TypeAlias

import orjson

from orchestrator.core.frozen import record, replace

Words: TypeAlias = tuple[str, ...]
NO_CONFINEMENT_REASON = "this worker cannot confine commands; run it without a sandbox?"
UNCONFINED = "unconfined:"
RULE_REASON = "a rule wants this command to be asked about"
DESTRUCTIVE_REASON = "the command looks destructive"


@record
class Run:
    """The call may run now; `sandboxed` is False where confinement was given up knowingly."""

    sandboxed: bool


@record
class Ask:
    """An approval must come first; `sandboxed` says how the call runs if approved."""

    reason: str | None
    """Dendro's own reason for asking."""
    sandboxed: bool
    proposed: tuple[str, ...] = ()
    """The prefix of the command that the approval may allow from now on."""
    says: str = ""
    """The model's justification."""
    outside: tuple[str, ...] = ()
    """The paths outside of the writable roots that it would write."""


@record
class Refuse:
    """The call will not run; the text is its output."""

    text: str


Verdict = Run | Ask | Refuse


@record
class Remembered:
    """An approval for the session: the keys of what is not asked about again, and granted folders."""

    keys: tuple[str, ...]
    roots: tuple[str, ...] = ()


def short_keys(keys: tuple[object, ...]) -> tuple[str, ...]:
    """The keys that stand in the entry itself; what one of the others names is asked about again."""
    return tuple(key for key in keys if isinstance(key, str))


class Runs:
    """The answers that kinds of work which run have in common; a kind that differs gives its own."""

    __slots__ = ()

    def confined(self, asked: Ask) -> bool:
        """Whether it stays within what the sandbox permits if it is approved."""
        return not asked.outside

    def by_link(self, asked: Ask) -> bool:
        """Whether a link leads from a path of it to another one, outside of the sandbox's folders."""
        return False

    def proposing(self, prefix: tuple[str, ...]) -> Self:
        """The same work, whose approval may allow a prefix of its command from now on."""
        return self


# ── commands ──────────────────────────────────────────────────────────────────────────────────────


@record
class Segment:
    """A simple command of a script, up to the first word of which only the shell knows what it becomes.

    `allowed` is the effect of a rule file that allows it: `confined` spares the question, `free` the sandbox
    too.
    """

    words: Words
    allowed: Literal["", "confined", "free"] = ""


@record
class StrictRule:
    """The strictest rule of a file that some part of the command meets."""

    decision: Literal["prompt", "forbidden"]
    justification: str = ""
    sign: bool = False
    """Whether an approval has to be signed."""


class InForce(Protocol):
    """The part of a turn's settings that says when to ask."""

    @property
    def approval_policy(self) -> str: ...
    @property
    def full_access(self) -> bool: ...


class Command(Protocol):
    """A command as it is judged, from its words."""

    @property
    def key(self) -> str: ...
    @property
    def safe(self) -> bool: ...
    @property
    def dangerous(self) -> bool: ...
    @property
    def unreadable(self) -> str: ...
    @property
    def escalated(self) -> bool: ...
    @property
    def justification(self) -> str | None: ...
    @property
    def confinable(self) -> bool: ...
    @property
    def segments(self) -> tuple[Segment, ...]: ...
    @property
    def strict_rule(self) -> StrictRule | None: ...
    @property
    def planted(self) -> tuple[str, ...]: ...
    @property
    def by_person(self) -> bool: ...


def judged(
    command: Command, settings: InForce, approved: frozenset[str], *, may_leave: bool = True
) -> Verdict:
    """The verdict on the command under the task's settings and the owner's rules.

    `may_leave`: a rule that allows the command lets it leave the sandbox, too.
    """
    if command.by_person:
        return Run(sandboxed=not settings.full_access)
    if command.strict_rule is not None and command.strict_rule.decision == "forbidden":
        why = command.strict_rule.justification or "no reason is given"
        return Refuse(f"forbidden by a rule of this worker's owner: {why}; do not try it in another way")
    ruled = _judged_by_rules(command, settings, approved, may_leave=may_leave)
    if ruled is not None:
        return ruled
    verdict = _judged_by_policy(command, settings, approved)
    return replace(verdict, proposed=_proposed(command, approved)) if isinstance(verdict, Ask) else verdict


def _judged_by_rules(
    command: Command, settings: InForce, approved: frozenset[str], *, may_leave: bool
) -> Verdict | None:
    """The verdict of the rules; None where the policy decides."""
    free = settings.full_access
    if command.strict_rule is not None:
        return _judged_by_prompt(command, settings, approved, command.strict_rule.justification)
    allowed = _allowed(command, approved)
    if allowed == "free" and (may_leave or free):
        return Run(sandboxed=False)
    if allowed and not command.escalated and (free or command.confinable):
        return Run(sandboxed=not free)
    return None


def _judged_by_prompt(
    command: Command, settings: InForce, approved: frozenset[str], justification: str
) -> Verdict | None:
    """A rule asks, whatever the policy does not: a run becomes a question, and a question its own."""
    verdict = _judged_by_policy(command, settings, approved)
    if isinstance(verdict, Refuse) or _is_approved(command, settings, approved):
        return verdict
    why = justification or RULE_REASON
    if settings.approval_policy == "never":
        return Refuse(f"{why}; the approval policy is never: not run")
    if isinstance(verdict, Ask):
        return replace(verdict, reason=f"{why}; {verdict.reason}" if verdict.reason else why)
    return _ask(command, why, not settings.full_access)


def _is_approved(command: Command, settings: InForce, approved: frozenset[str]) -> bool:
    """Whether this very command was approved for the session, as it would run now."""
    sandboxed = not (settings.full_access or command.escalated)
    confined = settings.full_access or (sandboxed and command.confinable)
    return _free_key(command) in approved or (command.key in approved and confined)


def _allowed(command: Command, approved: frozenset[str]) -> Literal["", "confined", "free"]:
    """The least that rules and remembered prefixes allow any segment."""
    found = [each.allowed or _remembered(command, each.words, approved) for each in command.segments]
    if not found or "" in found:
        return ""
    return "confined" if "confined" in found else "free"


def _remembered(command: Command, words: Words, approved: frozenset[str]) -> Literal["", "confined", "free"]:
    if _risk(command):
        # It was not in sight when its prefix was approved.
        return ""
    if is_remembered(words, approved, unconfined_key("", command.planted)):
        return "free"
    return "confined" if is_remembered(words, approved) else ""


def _proposed(command: Command, approved: frozenset[str]) -> Words:
    """The one prefix that would let the command run unasked; empty if none would."""
    asked = [
        each.words
        for each in command.segments
        if not (each.allowed or _remembered(command, each.words, approved))
    ]
    prefixes = {offered(words) for words in asked}
    return prefixes.pop() if len(prefixes) == 1 and not _risk(command) else ()


def _judged_by_policy(command: Command, settings: InForce, approved: frozenset[str]) -> Verdict:
    policy, free = settings.approval_policy, settings.full_access
    if command.escalated and policy != "on-request":
        return Refuse(
            f"approval policy is {policy}: escalated permissions cannot be asked for; "
            "run the command without with_escalated_permissions"
        )
    if _free_key(command) in approved:
        return Run(sandboxed=False)
    sandboxed = not (free or command.escalated)
    confined = sandboxed and command.confinable
    # An approval covers what was approved: one of a confined run is none to give confinement up.
    if command.key in approved and (free or confined):
        return Run(sandboxed)
    if _risk(command):
        return _judged_risky(command, policy, sandboxed)
    if command.safe and (free or command.confinable):
        return Run(sandboxed=not free)
    if policy == "untrusted" or command.escalated:
        return _ask(command, None, sandboxed)
    if free or command.confinable:
        return Run(sandboxed)
    if policy == "never":
        return Refuse("no confinement can be had on this worker, and the approval policy is never: not run")
    return _ask(command, None, sandboxed)


def _free_key(command: Command) -> str:
    """The key of an approval to run this command without its sandbox."""
    return unconfined_key(command.key, command.planted)


def _risk(command: Command) -> str:
    """The reason why it is asked about whatever it may do; empty if there is none."""
    if command.dangerous:
        return DESTRUCTIVE_REASON
    return f"the command cannot be read: {command.unreadable}" if command.unreadable else ""


def _judged_risky(command: Command, policy: str, sandboxed: bool) -> Verdict:
    if policy == "never":
        why = "the command is dangerous" if command.dangerous else _risk(command)
        return Refuse(f"{why}, and the approval policy is never: not run")
    return _ask(command, _risk(command), sandboxed)


def _ask(command: Command, reason: str | None, sandboxed: bool) -> Ask:
    """Adds to the reason when the command would run without the confinement that it should have."""
    if sandboxed and not command.confinable:
        reason = f"{reason}; {NO_CONFINEMENT_REASON}" if reason else NO_CONFINEMENT_REASON
    if command.planted and not (sandboxed and command.confinable):
        reason = with_planted(reason, command.planted)
    return Ask(reason, sandboxed and command.confinable, says=command.justification or "")


def unconfined_key(key: str, planted: Words = ()) -> str:
    """The key under which `approved_for_session` remembers an approval to run without confinement.

    A program that comes into a folder of PATH afterwards, or in the place of another, is not the one that
    was approved.
    """
    return f"{UNCONFINED}{orjson.dumps(planted).decode()}:{key}" if planted else UNCONFINED + key


def with_planted(reason: str | None, planted: Words) -> str | None:
    """The reason of a request, with the programs that are not the system's."""
    if not planted:
        return reason
    found = f"what it runs is {', '.join(planted)}, which commands of the session may have written"
    return f"{reason}; {found}" if reason else found


def may_ask_for_more(policy: str) -> bool:
    """Whether a command that the sandbox stopped may be asked about again."""
    return policy in {"on-failure", "untrusted"}


# ── prefixes ──────────────────────────────────────────────────────────────────────────────────────
# Prefixes of commands that a person lets run from now on: which may be offered, and how one is
# remembered.
#
# The first words of a command stand for all commands that begin with them. A prefix that would allow
# anything, such as a shell's, is neither offered nor taken.


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


# ── as a decision, and as a key ───────────────────────────────────────────────────────────────────


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
