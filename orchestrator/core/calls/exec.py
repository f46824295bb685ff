"""Commands: calls of `shell` and its kin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import ClassVar, Final, Literal, TypeAlias

import orjson

from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.core.calls.verdict import Ask, Refuse, Remembered, Run, Runs, Verdict, short_keys
from orchestrator.core.forms import ALWAYS, LIST, TEXT, TEXTS, form, reader_of, whole, writer_of
from orchestrator.core.frozen import record, replace
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.commands import ParsedCommand
from orchestrator.protocol.events import (
    ExecApprovalRequest,
    ExecCommandBegin,
    ExecCommandEnd,
    Reach,
    TerminalInteraction,
)
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import Duration, ExecCommandSource, LargeText
from orchestrator.protocol.wire import JsonMapping, JsonObject, written

# ── process ───────────────────────────────────────────────────────────────────────────────────────
# Processes: commands that may go on behind their call (`exec_command`), and what is typed to them.
#
# `exec_command` is a command as any other until its time to wait is over: `Lasting` says what differs. A
# call of `write_stdin` runs no command, so nobody is asked about it: the start of its process was judged.


@record
class Lasting:
    """A command of `exec_command`: its properties beside its words."""

    kind: ClassVar[Literal["lasting"]] = "lasting"
    tty: bool
    """Whether it gets a terminal of its own; without one it has no input."""
    yield_ms: int
    """The time that the call waits for its end."""
    max_tokens: int
    """The length of the output that the model reads, at four bytes a token."""
    number: int = 0
    """The process's number, which models call its session id; taken when it starts."""


_READ, _WRITE = reader_of(Lasting), writer_of(Lasting, Lasting.kind)


def read_lasting(stated: JsonMapping | None) -> Lasting | None:
    return _READ(stated) if stated is not None else None


def write_lasting(lasting: Lasting) -> JsonObject:
    return _WRITE(lasting)


@record
class WriteStdin:
    """A call of `write_stdin`: `chars` go to a process, then its output is read; without any it is read."""

    number: int
    chars: str
    yield_ms: int
    max_tokens: int


@record
class StdinWork:
    """A call of `write_stdin` that runs."""

    kind: ClassVar[Literal["stdin"]] = "stdin"
    number: int
    started_by: CallId
    """The call that started the process: events about it bear this id."""
    chars: LargeText = field(metadata=TEXT)
    yield_ms: int
    max_tokens: int

    def begin(self) -> TerminalInteraction | None:
        """The event of what is typed; None where nothing is."""
        typed = whole(self.chars)
        if not typed:
            return None
        return TerminalInteraction(call_id=self.started_by, process_id=str(self.number), stdin=typed)


def look_output(output: str, seconds: float, *, running: int | None = None, exit_code: int = 0) -> str:
    """The text that a model reads of a look at a process: `running` is its number, None once it has ended."""
    state = (
        f"Process exited with code {exit_code}"
        if running is None
        else f"Process running with session ID {running}"
    )
    return f"Wall time: {seconds:.1f} seconds\n{state}\nOutput:\n{output}"


BYTES_PER_TOKEN = 4


def cut_output(text: str, max_tokens: int) -> str:
    """The beginning and the end of a text, with what was left out said between them."""
    data, most = text.encode("utf-8", "replace"), max_tokens * BYTES_PER_TOKEN
    if len(data) <= most:
        return text
    head = data[: most // 2].decode("utf-8", "ignore")
    tail = data[len(data) - (most - most // 2) :].decode("utf-8", "ignore")
    return f"{head}\n[... omitted {len(data) - most} of {len(data)} bytes ...]\n{tail}"


# ── exec ──────────────────────────────────────────────────────────────────────────────────────────


UNSANDBOXED_REASON = "command failed; retry without sandbox?"
NO_CONFINEMENT_REASON = "this worker cannot confine commands; run it without a sandbox?"
UNCONFINED = "unconfined:"
MOST_CONFINED_CHARS = 16_384
"""Characters that are kept of a run in the sandbox; outputs for the model are shorter."""
RULE_REASON = "a rule wants this command to be asked about"
DESTRUCTIVE_REASON = "the command looks destructive"


@record
class Shown:
    """The output that clients saw of a command whose end nobody saw, cut to what an output may have."""

    stdout: str = ""
    stderr: str = ""
    text: str = ""
    """Both in their order, as the model reads them."""
    whole: bool = True
    """Whether its beginning was still kept."""

    def behind(self, text: str) -> str:
        """The words on the command, `text`, with its output behind it."""
        if not self.text:
            return text if self.whole else f"{text}; what it had shown until then is not kept any more"
        told = (
            "its output until then" if self.whole else "its output until then, of which the beginning is lost"
        )
        return f"{text}; {told}:\n{self.text}"


NOTHING_SHOWN = Shown()


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


@record
class Exec:
    """A command, as judged from its words. `key` is what `approved_for_session` remembers."""

    command: tuple[str, ...]
    cwd: str
    parsed_cmd: tuple[ParsedCommand, ...]
    key: str
    safe: bool = False
    dangerous: bool = False
    unreadable: str = ""
    """The reason why its script cannot be read: nobody knows then whether it is dangerous."""
    escalated: bool = False
    justification: str | None = None
    confinable: bool = True
    """Whether this worker can enforce the task's sandbox policy."""
    timeout_ms: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    """The commands that it certainly consists of; none if that cannot be told."""
    strict_rule: StrictRule | None = None
    planted: tuple[str, ...] = ()
    """Paths of programs that it names without one, and that confined commands may have written."""
    by_person: bool = False
    """Whether a person typed it: then nobody is asked, and the session's sandbox confines it."""
    lasting: Lasting | None = None
    """The command may go on behind its call; None for one that ends with it."""

    def judged(self, settings: TurnSettings, approved: frozenset[str], *, may_leave: bool = True) -> Verdict:
        """The verdict on the command under the task's settings and the owner's rules.

        `may_leave`: a rule that allows the command lets it leave the sandbox, too.
        """
        if self.by_person:
            return Run(sandboxed=not settings.full_access)
        if self.strict_rule is not None and self.strict_rule.decision == "forbidden":
            why = self.strict_rule.justification or "no reason is given"
            return Refuse(f"forbidden by a rule of this worker's owner: {why}; do not try it in another way")
        ruled = self._judged_by_rules(settings, approved, may_leave=may_leave)
        if ruled is not None:
            return ruled
        verdict = self._judged_by_policy(settings, approved)
        return replace(verdict, proposed=self._proposed(approved)) if isinstance(verdict, Ask) else verdict

    def _judged_by_rules(
        self, settings: TurnSettings, approved: frozenset[str], *, may_leave: bool
    ) -> Verdict | None:
        """The verdict of the rules; None where the policy decides."""
        free = settings.full_access
        if self.strict_rule is not None:
            return self._judged_by_prompt(settings, approved, self.strict_rule.justification)
        allowed = self._allowed(approved)
        if allowed == "free" and (may_leave or free):
            return Run(sandboxed=False)
        if allowed and not self.escalated and (free or self.confinable):
            return Run(sandboxed=not free)
        return None

    def _judged_by_prompt(
        self, settings: TurnSettings, approved: frozenset[str], justification: str
    ) -> Verdict | None:
        """A rule asks, whatever the policy does not: a run becomes a question, and a question its own."""
        verdict = self._judged_by_policy(settings, approved)
        if isinstance(verdict, Refuse) or self._is_approved(settings, approved):
            return verdict
        why = justification or RULE_REASON
        if settings.approval_policy == "never":
            return Refuse(f"{why}; the approval policy is never: not run")
        if isinstance(verdict, Ask):
            return replace(verdict, reason=f"{why}; {verdict.reason}" if verdict.reason else why)
        return self._ask(why, not settings.full_access)

    def _is_approved(self, settings: TurnSettings, approved: frozenset[str]) -> bool:
        """Whether this very command was approved for the session, as it would run now."""
        sandboxed = not (settings.full_access or self.escalated)
        confined = settings.full_access or (sandboxed and self.confinable)
        return self._free_key in approved or (self.key in approved and confined)

    def _allowed(self, approved: frozenset[str]) -> Literal["", "confined", "free"]:
        """The least that rules and remembered prefixes allow any segment."""
        found = [each.allowed or self._remembered(each.words, approved) for each in self.segments]
        if not found or "" in found:
            return ""
        return "confined" if "confined" in found else "free"

    def _remembered(self, words: Words, approved: frozenset[str]) -> Literal["", "confined", "free"]:
        if self.risk:
            # It was not in sight when its prefix was approved.
            return ""
        if is_remembered(words, approved, unconfined_key("", self.planted)):
            return "free"
        return "confined" if is_remembered(words, approved) else ""

    def _proposed(self, approved: frozenset[str]) -> Words:
        """The one prefix that would let the command run unasked; empty if none would."""
        asked = [
            each.words
            for each in self.segments
            if not (each.allowed or self._remembered(each.words, approved))
        ]
        prefixes = {offered(words) for words in asked}
        return prefixes.pop() if len(prefixes) == 1 and not self.risk else ()

    def _judged_by_policy(self, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
        policy, free = settings.approval_policy, settings.full_access
        if self.escalated and policy != "on-request":
            return Refuse(
                f"approval policy is {policy}: escalated permissions cannot be asked for; "
                "run the command without with_escalated_permissions"
            )
        if self._free_key in approved:
            return Run(sandboxed=False)
        sandboxed = not (free or self.escalated)
        confined = sandboxed and self.confinable
        # An approval covers what was approved: one of a confined run is none to give confinement up.
        if self.key in approved and (free or confined):
            return Run(sandboxed)
        if self.risk:
            return self._judged_risky(policy, sandboxed)
        if self.safe and (free or self.confinable):
            return Run(sandboxed=not free)
        if policy == "untrusted" or self.escalated:
            return self._ask(None, sandboxed)
        if free or self.confinable:
            return Run(sandboxed)
        if policy == "never":
            return Refuse(
                "no confinement can be had on this worker, and the approval policy is never: not run"
            )
        return self._ask(None, sandboxed)

    @property
    def _free_key(self) -> str:
        """The key of an approval to run this command without its sandbox."""
        return unconfined_key(self.key, self.planted)

    @property
    def risk(self) -> str:
        """The reason why it is asked about whatever it may do; empty if there is none."""
        if self.dangerous:
            return DESTRUCTIVE_REASON
        return f"the command cannot be read: {self.unreadable}" if self.unreadable else ""

    def _judged_risky(self, policy: str, sandboxed: bool) -> Verdict:
        if policy == "never":
            why = "the command is dangerous" if self.dangerous else self.risk
            return Refuse(f"{why}, and the approval policy is never: not run")
        return self._ask(self.risk, sandboxed)

    def _ask(self, reason: str | None, sandboxed: bool) -> Ask:
        """Adds to the reason when the command would run without the confinement that it should have."""
        if sandboxed and not self.confinable:
            reason = f"{reason}; {NO_CONFINEMENT_REASON}" if reason else NO_CONFINEMENT_REASON
        if self.planted and not (sandboxed and self.confinable):
            reason = with_planted(reason, self.planted)
        return Ask(reason, sandboxed and self.confinable, says=self.justification or "")

    def work(self, sandboxed: bool) -> ExecWork:
        """The command as it is to run."""
        return ExecWork(
            keys=(self.key,),
            command=self.command,
            cwd=self.cwd,
            parsed_cmd=tuple(written(part) for part in self.parsed_cmd),
            timeout_ms=self.timeout_ms,
            env=self.env,
            sandboxed=sandboxed,
            by_person=self.by_person,
            lasting=self.lasting,
            planted=self.planted,
            sign=self.strict_rule is not None and self.strict_rule.sign,
        )


@record
class ExecWork(Runs):
    """A command that waits for an approval, or runs."""

    kind: ClassVar[Literal["exec"]] = "exec"
    rejected: ClassVar[str] = "exec command rejected by user"
    keys: tuple[LargeText, ...] = field(metadata=TEXTS)
    command: tuple[LargeText, ...] = field(metadata=TEXTS)
    cwd: LargeText = field(metadata=TEXT)
    parsed_cmd: tuple[JsonObject, ...] = field(metadata=LIST)
    timeout_ms: int | None
    env: Mapping[str, str]
    sandboxed: bool = field(default=True, metadata=ALWAYS)
    timer: int | None = None
    """The generation of the timer of its approval."""
    proposed: Words = field(default=(), metadata=LIST)
    """The prefix that its approval may allow from now on; empty for none."""
    by_person: bool = False
    """Whether a person typed it."""
    lasting: Lasting | None = field(default=None, metadata=form(read=read_lasting, write=write_lasting))
    """The command may go on behind its call; None for one that ends with it."""
    confined_run: str = ""
    """The output of a first run, which the sandbox stopped, for the model; it is asked about another run."""
    planted: Words = field(default=(), metadata=LIST)
    """Paths of programs that it names without one, and that confined commands may have written: an approval
    to run it without its sandbox is for these alone."""
    sign: bool = False
    """Whether an approval has to be signed, whatever the settings are."""

    @property
    def source(self) -> ExecCommandSource | None:
        """The origin of the command as events name it; they name no model."""
        if self.lasting is not None:
            return ExecCommandSource.UNIFIED_EXEC_STARTUP
        return ExecCommandSource.USER_SHELL if self.by_person else None

    @property
    def process_id(self) -> str | None:
        """The number of the process that the command may become, as events name it."""
        return None if self.lasting is None else str(self.lasting.number)

    def asked(self, timer: int) -> ExecWork:
        return replace(self, timer=timer)

    def unconfined(self, output: str, planted: Words) -> ExecWork:
        """The same command without its sandbox, behind a run in it that gave `output`.

        `planted` is what its programs are behind that run.
        """
        return replace(self, sandboxed=False, confined_run=output[:MOST_CONFINED_CHARS], planted=planted)

    def without_second(self, text: str) -> str:
        """The output of the call where no other run is known; `text` says why."""
        return f"{text}; its run in the sandbox gave:\n{self.confined_run}" if self.confined_run else text

    def request(self, call_id: CallId, reach: Reach) -> ExecApprovalRequest:
        return ExecApprovalRequest(
            command=self.command,
            cwd=self.cwd,
            env=dict(self.env) or None,
            call_id=call_id,
            reason=reach.told,
            reach=reach,
            proposed_execpolicy_amendment=self.proposed or None,
        )

    def proposing(self, prefix: Words) -> ExecWork:
        return replace(self, proposed=prefix)

    def allowing(self, prefix: Words, settings: TurnSettings) -> Remembered:
        """The memory of an approval that allows a prefix; raises `DoesNotAnswer` for one that does not fit.

        The prefix has to be the proposed one, or a longer beginning of this very command.
        """
        count = len(self.proposed)
        if not count:
            raise DoesNotAnswer("no prefix of this command may be allowed")
        longer = prefix[:count] == self.proposed and self.command[: len(prefix)] == prefix
        fits = longer and len(prefix) < len(self.command) and len(prefix) <= MOST_WORDS
        if prefix != self.proposed and not fits:
            raise DoesNotAnswer(
                f"the prefix has to be the proposed one, {list(self.proposed)}, or a longer beginning of the "
                "command that is asked about"
            )
        key = prefix_key(prefix)
        free = not self.sandboxed and not settings.full_access
        return Remembered((unconfined_key(key, self.planted) if free else key,))

    def begin(self, call_id: CallId, *, auto_approved: bool) -> ExecCommandBegin:
        return ExecCommandBegin.model_validate(
            {
                "call_id": call_id,
                "command": self.command,
                "cwd": self.cwd,
                "parsed_cmd": self.parsed_cmd,
                "source": self.source,
                "process_id": self.process_id,
            }
        )

    def broken_off(
        self, call_id: CallId, text: str, after_s: float = 0.0, shown: Shown = NOTHING_SHOWN
    ) -> ExecCommandEnd:
        """The end of a command of which only `text` is known, and what it had `shown`: never started, killed,
        or in doubt.
        """
        return unseen_end(call_id, self.process_id, self.source, text, after_s, shown)

    def remembered(self, settings: TurnSettings) -> Remembered:
        keys = short_keys(self.keys)
        if not self.sandboxed and not settings.full_access:
            keys = tuple(unconfined_key(key, self.planted) for key in keys)
        return Remembered(keys)

    def confined(self, asked: Ask) -> bool:
        return self.sandboxed

    @property
    def activity(self) -> str:
        """The line that a helper's asker sees while the command runs."""
        words = (word if isinstance(word, str) else "[a long text]" for word in self.command)
        return f"runs {' '.join(words)}"


def unseen_end(
    call_id: CallId,
    process_id: str | None,
    source: ExecCommandSource | None,
    text: str,
    after_s: float = 0.0,
    shown: Shown = NOTHING_SHOWN,
) -> ExecCommandEnd:
    """The end of a command that nobody saw: `text` says why, and `shown` is what clients had seen of it."""
    whole = shown.behind(text)
    return ExecCommandEnd(
        call_id=call_id,
        process_id=process_id,
        source=source,
        stdout=shown.stdout,
        stderr=f"{text}\n{shown.stderr}" if shown.stderr else text,
        aggregated_output=whole,
        exit_code=-1,
        duration=Duration.cut(after_s),
        formatted_output=whole,
    )


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


Words: TypeAlias = tuple[str, ...]

DOUBT: Final = "in doubt: the worker was lost "
"""So begins the output of a call that a lost worker had begun."""
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
