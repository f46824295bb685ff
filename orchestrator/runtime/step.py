"""The decisions of one step, and what becomes of those that cannot be committed.

A step holds what arrived and what the state owes. Each is decided on the draft that the one before it left. A
step that raises, or that the commit refuses, is thrown away, and its parts are decided again, one by one.
"""

from __future__ import annotations

from orchestrator.broker.errors import CommitTooLarge
from orchestrator.broker.records import Refused
from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core import outstanding as owed
from orchestrator.core.commands import SetupBegins
from orchestrator.core.commit_parts import COUNTED, TreePart
from orchestrator.core.decide import IllegalCommand, decide
from orchestrator.core.decide.draft import Decision, Note, noted
from orchestrator.core.facts import TextKept
from orchestrator.core.frozen import replace
from orchestrator.core.settings import Rules
from orchestrator.core.state import State
from orchestrator.instructions.skills import Instructions
from orchestrator.protocol.codec import short_id
from orchestrator.protocol.events import WarningEvent
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime import log
from orchestrator.runtime.arrivals import Arrivals, Arrived, Bisect
from orchestrator.runtime.committing import Delta
from orchestrator.runtime.journal import Step
from orchestrator.runtime.lookups import looks_up
from orchestrator.runtime.runner_context import RunnerContext
from orchestrator.runtime.side_work import SideWork, call_of
from orchestrator.runtime.sq_entries import Unreadable, failed_call

MAX_STEP_ENTRIES = 128
MAX_STEP_BYTES = 256 << 10
"""A step is cut here; one more decision still fits the commit's bounds (256 entries, 1 MB)."""


class Broken(Exception):
    """Deciding a command raised what no rule raises knowingly; the step is to be thrown away."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Decisions:
    """The decisions of a runner, step by step."""

    def __init__(self, context: RunnerContext, arrivals: Arrivals, side_work: SideWork) -> None:
        self._ports, self._config, self._claim = context.ports, context.config, context.claim
        self._journal, self._writing, self._workspace = context.journal, context.writing, context.workspace
        self._claims_without_progress = context.claimed.claims_without_progress
        self._arrivals = arrivals
        self._side_work = side_work
        self._bisect = Bisect()
        self.cut = False
        """Whether a step ended before all that is owed was decided: the next one follows at once."""
        self._owing: tuple[State, tuple[owed.Work, ...]] | None = None
        """The state that was last asked what it owes, and the answer."""
        self._rules_for: tuple[str, Rules] | None = None
        """The provider that was last asked for, and the rules with its retries."""
        self._opened = context.ports.about is None
        """Whether the log says which worker writes under this claim."""
        self._instead: c.Command | Note | None = None
        """The last substitute for a command that failed."""

    async def fill(self, step: Step) -> None:
        """Decides what arrived, then what the state owes; raises `Broken` where a rule does."""
        self._bisect.begin()
        self._arrived(step)
        await self._advance(step)

    def committed(self, step: Step) -> None:
        self._bisect.committed()
        self._opened = self._opened or bool(step.entries)

    def _opening(self, state: State) -> Note:
        """The entries that begin what this claim writes: who writes it, and texts that the log lacks."""
        assert self._ports.about is not None
        about = self._ports.about(state, self._claim.worker)
        texts = [TextKept(sha, text) for sha, text in about.texts.items() if sha not in state.extras.texts]
        return Note((e.fact(about.told), *map(e.fact, texts)))

    def _arrived(self, step: Step) -> None:
        while self._arrivals.inbox and not self._full(step):
            command, sq_place = self._arrivals.inbox.popleft()
            self._bisect.arrived.append((command, sq_place))
            self._decide(step, command)
            if sq_place is not None:
                self._arrivals.cursor = sq_place

    def _full(self, step: Step) -> bool:
        return step.weight >= MAX_STEP_ENTRIES or step.size >= MAX_STEP_BYTES or self._bisect.full

    def _decide(self, step: Step, command: Arrived) -> None:
        if isinstance(command, Delta):
            self._show(step, command)
            return
        try:
            if self._opened or step.entries or not self._begins_epoch(step, command):
                step.take(self._decision(step.position, step.at_ms, command))
        except Exception as error:
            # A part of it may be in the step: nothing of that may be committed.
            raise Broken(error) from error
        if not isinstance(command, (Note, Unreadable)):
            self._side_work.settle(command)

    def _begins_epoch(self, step: Step, command: c.Command | Note | Unreadable) -> bool:
        """Takes a decision behind the entries that begin the epoch; False, and nothing, if it has no entries.

        It is decided behind them: a rule may note where an entry stands.
        """
        at = step.position
        opening = self._noted(at, step.at_ms, self._opening(at.state))
        behind = Position(opening.state, at.seq + len(opening.entries), at.head)
        decision = self._decision(behind, step.at_ms, command)
        if not decision.entries:
            return False
        step.take(opening)
        step.take(decision)
        return True

    def _decision(self, at: Position, at_ms: int, command: c.Command | Note | Unreadable) -> Decision:
        if isinstance(command, Note):
            return self._noted(at, at_ms, command)
        if isinstance(command, Unreadable):
            raise command.error
        try:
            return decide(at.state, command, self._moment(at, at_ms))
        except IllegalCommand as illegal:
            if isinstance(command, c.Submitted):
                return self._noted(at, at_ms, given_up(command.id, str(illegal)))
            # What an effect still had to say of work that was stopped meanwhile.
            log.info("session %s: %s", self._claim.session, illegal)
            return Decision(at.state)

    def _noted(self, at: Position, at_ms: int, note: Note) -> Decision:
        return noted(at.state, note, c.Moment(at_ms, self._claim.epoch, at.seq))

    def _show(self, step: Step, delta: Delta) -> None:
        task = step.position.state.task
        if not delta.lasting and (task is None or task.id != delta.task_id):
            return
        if step.entries:
            step.show(delta.event(step.position.seq, step.position.head))
        else:
            # It goes by itself, whatever becomes of the step: nobody is to be shown it again.
            self._writing.delta(delta, step.base)
            self._bisect.arrived.pop()

    def _moment(self, at: Position, at_ms: int) -> c.Moment:
        rules, ports = self._rules(at.state), self._ports
        return c.Moment(at_ms, self._claim.epoch, at.seq, rules, ports.jitter(), ports.machine)

    def _rules(self, state: State) -> Rules:
        provider = state.in_force.model_provider
        # Asked for at every step, and always the same as long as the provider is.
        if self._rules_for is None or self._rules_for[0] != provider:
            http, stream = self._ports.models.retries(provider)
            rules = replace(self._config.rules, request_max_retries=http, stream_max_retries=stream)
            self._rules_for = provider, rules
        return self._rules_for[1]

    def owed(self, state: State) -> tuple[owed.Work, ...]:
        # A step asks before it decides, before it commits and behind the commit, mostly of one state.
        if self._owing is None or self._owing[0] is not state:
            self._owing = state, owed.outstanding(state, self._rules(state), self._claim.epoch)
        return self._owing[1]

    async def _advance(self, step: Step) -> None:
        """Decides what needs no news: calls whose turn it is, a request that is owed and due.

        A leaving runner ends what is to end in pieces, and begins nothing.
        """
        progressed, leaving = True, self._side_work.leaving()
        self.cut = False
        while progressed:
            self.cut = self._full(step)
            if self.cut:
                return
            progressed = False
            state = step.position.state
            for work in self.owed(state):
                match work:
                    case owed.CloseCalls():
                        self._make(step, c.CloseCalls())
                        progressed = True
                    case owed.EndChildren():
                        self._make(step, c.EndChildren())
                        progressed = True
                    case _ if leaving:
                        continue
                    case owed.AssessCall() | owed.OweRequest() | owed.ReadInstructions() if (
                        fault := await self._workspace.fault(state)
                    ):
                        self._decide(step, c.TaskRefused(fault))
                        # A task with very many calls ends in several steps.
                        self.cut = owed.CloseCalls() in self.owed(step.position.state)
                        return
                    case owed.AssessCall(call_id) if step.concerns_tree and looks_up(call_of(state, call_id)):
                        # It looks at the tree, which does not show yet what this very step does to it.
                        self.cut = True
                        return
                    case owed.AssessCall(call_id):
                        call = call_of(state, call_id)
                        # Large arguments of this very step are not stored yet.
                        self._ports.texts.remember(step.blobs)
                        assessment = await self._ports.tools.assess(call, self._side_work.site(state))
                        self._make(step, c.CallAssessed(call_id, assessment))
                        progressed = True
                    case owed.BeginSetup():
                        self._make(step, SetupBegins())
                        progressed = True
                    case owed.ReadInstructions(folder):
                        told = await self._instructions(folder, state)
                        self._make(step, c.InstructionsRead(folder, told.text, told.warnings))
                        progressed = True
                    case owed.OweRequest(not_before_ms) if not_before_ms <= step.at_ms:
                        self._make(step, c.BeginRequest())
                        progressed = True
                    case _:
                        continue
                break

    async def _instructions(self, folder: str, state: State) -> Instructions:
        try:
            if state.facts.portable is not None:
                return Instructions(await self._ports.folders.instructions(state, folder))
            return await self._ports.library.instructions(folder, state.told_folders)
        except (OSError, ValueError) as error:
            # A session goes on without them, as one that began there would have.
            log.warning(
                "session %s: instructions of %s: %s", self._claim.session, folder, error or "no answer"
            )
            return Instructions()

    def _make(self, step: Step, command: c.Command) -> None:
        """Decides a command that the state owes and nobody sent."""
        self._bisect.made.append(command)
        self._decide(step, command)

    def again_behind(self, fault: str, before: State) -> None:
        """Puts the parts of an unsent step back, to be decided again behind the fault of the file."""
        self._undecide()
        not_written = c.FileNotWritten(fault, self._bisect.asks_for_file(before))
        self._arrivals.inbox.extendleft(reversed([(not_written, None), *self._bisect.arrived]))

    def broke(self, error: Exception) -> None:
        """Has a step that cannot be committed decided part by part; a part that fails alone is replaced.

        Raises `Undecided` where another worker is to try the part first, `error` where nothing can take its
        place.
        """
        self._undecide()
        arrived, made = self._bisect.arrived, self._bisect.made
        if len(arrived) + len(made) != 1:
            if not (arrived or made):
                raise error
            self._arrivals.inbox.extendleft(reversed(arrived))
            self._bisect.singly = len(arrived) + len(made)
            return
        command, sq_place = arrived[0] if arrived else (made[0], None)
        if isinstance(command, (Delta, Note)) or command is self._instead:
            raise error
        self._instead = instead_of(command, error, self._journal.state)
        if self._instead is None:
            raise error
        if sq_place is not None and not isinstance(error, CommitTooLarge):
            self._try_again_elsewhere(command, error)
        log.error("session %s: %s was given up", self._claim.session, type(command).__name__, exc_info=error)
        self._arrivals.inbox.appendleft((self._instead, sq_place))

    def _try_again_elsewhere(self, command: c.Command | Unreadable, error: Exception) -> None:
        """Raises `Undecided` unless enough claims have come no further than the command."""
        tried, most = max(1, self._claims_without_progress), tries(self._ports.broker.config.max_tries)
        if tried < most:
            raise Undecided(submission_of(command), error, tried, most) from error

    def _undecide(self) -> None:
        """Takes back the step's decisions, of which nothing was written."""
        self.cut = True
        self._arrivals.rewind()
        for command, _ in self._bisect.arrived:
            if not isinstance(command, Unreadable):
                self._side_work.reopen(command)

    def refused(self, answer: Refused) -> None:
        """Lets the parts of the refused step be decided again."""
        log.info("session %s: refused: %s %s", self._claim.session, answer.reason, answer.detail)
        self._undecide()
        if answer.reason == "agent_taken":
            # Redis went back behind the reservation of its number: it is assessed again, with another one.
            self._side_work.forget_numbers()
            self._arrivals.inbox.extendleft(reversed(self._bisect.arrived))
        else:
            self._bisect.refused(answer, self._arrivals.inbox)


# ── defects ───────────────────────────────────────────────────────────────────────────────────────
# Commands that no step can hold: their decision raised, or their commit is too large.
#
# A defect is loud, and ends the claim: another worker, perhaps of another version, tries the same
# submission. After `TRIES` claims that came no further the submission is consumed by an `error` that
# names the defect, and the session lives on. What a model or a tool said is not tried again: it has
# broken its request or its call.


TRIES = 3
"""Claims that come no further than a submission before it is given up."""
REASON_CHARS = 300
UNRECORDED = "the model's answer could not be recorded"


class Undecided(Exception):
    """A submission could not be decided under this claim; the next claim tries it again."""

    def __init__(self, submission: str, error: Exception, tried: int, most: int) -> None:
        super().__init__(
            f"submission {short_id(submission)} could not be decided ({reason(error)}): try {tried} of "
            f"{most}, the next worker takes it; the log of this one has the trace"
        )
        self.submission = submission


def reason(error: Exception) -> str:
    """The error in one line, short enough for an event."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= REASON_CHARS else f"{text[: REASON_CHARS - 1]}…"


def tries(max_tries: int) -> int:
    """The claims without progress after which a submission is given up: before its session is quarantined."""
    return max(1, min(TRIES, max_tries - 1))


def submission_of(command: c.Command | Unreadable) -> str:
    """The submission, the timer or the message that a command of the SQ came from."""
    match command:
        case Unreadable(submission) | c.Submitted(id=submission) | c.TimerFired(id=submission):
            return submission
        case c.MailArrived(key=key):
            return key
        case _:
            return ""


def given_up(submission: str, why: str) -> Note:
    """The `error` that a submission ends with which cannot be decided; nothing else of it happens."""
    text = f"not done: {why}; nothing of this submission was applied, and the session goes on without it"
    return Note((e.error(short_id(submission), text),))


def passed_over(submission: str, claims: int) -> Note:
    """The `error` of a submission that is not even tried any more."""
    return given_up(
        submission,
        f"{claims} workers in a row were lost before they had decided it, see their logs; if they were lost "
        "for another reason, send it again",
    )


def instead_of(command: c.Command | Unreadable, error: Exception, state: State) -> c.Command | Note | None:
    """The substitute for a command that failed alone; None if there is none."""
    why = _why(error)
    match command:
        case Unreadable(submission) | c.Submitted(id=submission) | c.TimerFired(id=submission):
            return given_up(submission, why)
        case c.MailArrived():
            return _message_given_up(command, why)
        case c.ItemCompleted(n):
            return c.ResponseBroken(n, "fatal", f"{UNRECORDED}: {why}")
        case c.ResponseCompleted(n, _, usage, price=price):
            return c.ResponseBroken(n, "fatal", f"{UNRECORDED}: {why}", usage=usage, price=price)
        case c.CallFinished(call_id):
            return failed_call(call_of(state, call_id), f"its output could not be recorded: {why}")
        case c.LookedUp(key) if command.error is None:
            return c.LookedUp(key, error=f"the answer could not be recorded: {why}")
        case c.CallAssessed(call_id):
            return c.CallAssessed(call_id, c.Immediate(f"not run: {why}"))
        case _:
            return None


def _why(error: Exception) -> str:
    if isinstance(error, CommitTooLarge):
        return f"it is more than one step can record ({error})"
    return f"internal error: {reason(error)}; the worker's log has the trace, please report it"


def _message_given_up(mail: c.MailArrived, why: str) -> Note:
    taken = (0, 0) if mail.kind not in COUNTED else (int(not mail.interrupt), int(mail.interrupt))
    text = f"a {mail.kind} of another agent was not read: {why}"
    return Note((e.event("", WarningEvent(message=text)),), tree=TreePart(taken=taken))
