"""Commands: calls of `shell` and its kin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Final, Literal, TypeAlias

from orchestrator.core.calls.approval_policy import (
    MOST_WORDS,
    Ask,
    Remembered,
    Runs,
    Segment,
    StrictRule,
    Verdict,
    Words,
    judged,
    prefix_key,
    short_keys,
    unconfined_key,
)
from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.core.frozen import record, replace
from orchestrator.core.record_json import ALWAYS, LIST, TEXT, TEXTS, form, reader_of, whole, writer_of
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
DOUBT: Final = "in doubt: the worker was lost "
"""So begins the output of a call that a lost worker had begun."""
MOST_CONFINED_CHARS = 16_384
"""Characters that are kept of a run in the sandbox; outputs for the model are shorter."""


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
CallKey: TypeAlias = tuple[str, str]
"""The turn and the id of a call: a model may use an id anew in each turn."""


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
        return judged(self, settings, approved, may_leave=may_leave)

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
