"""Commands: calls of `shell` and its kin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal

import orjson

from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.core.calls.prefixes import MOST_WORDS, Words, is_remembered, offered, prefix_key
from orchestrator.core.calls.process import Lasting, read_lasting, write_lasting
from orchestrator.core.calls.verdict import Ask, Refuse, Remembered, Run, Verdict, short_keys
from orchestrator.core.forms import ALWAYS, LIST, TEXT, TEXTS, form
from orchestrator.core.frozen import record, replace
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.commands import ParsedCommand
from orchestrator.protocol.events import ExecApprovalRequest, ExecCommandBegin, ExecCommandEnd, Reach
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import Duration, ExecCommandSource, LargeText
from orchestrator.protocol.wire import JsonObject, written

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
        )


@record
class ExecWork:
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
        """The same command, whose approval may allow a prefix from now on."""
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
