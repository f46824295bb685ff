"""A tool call from its assessment to its output, with the approvals and questions that it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, assert_never

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.agent_views import AnswerPayload
from orchestrator.core.calls import (
    ApplyPatch,
    AskWork,
    Call,
    ClientToolWork,
    Custom,
    Exec,
    ExecWork,
    Mcp,
    Merge,
    MergeWork,
    Phase,
    PlanWork,
    QuestionWork,
    Runnable,
    RunnableWork,
    UserInputWork,
    WriteStdin,
    answered_by,
)
from orchestrator.core.calls.approval_policy import (
    AMENDED,
    Ask,
    Refuse,
    Remembered,
    Run,
    Verdict,
    amended,
    amendment,
    may_ask_for_more,
    with_planted,
)
from orchestrator.core.calls.ask import ANSWERED, FAILED, DoesNotAnswer, Settled, digest_of
from orchestrator.core.calls.exec import UNSANDBOXED_REASON
from orchestrator.core.commands import (
    AnswerOp,
    CallAssessed,
    CallFinished,
    DecidedBelow,
    Immediate,
    MailArrived,
    PendingBelow,
    Signature,
    Submitted,
)
from orchestrator.core.commit_parts import DECIDED, WITHDRAWN, approval_timer
from orchestrator.core.decide.agent_calls import agent_call
from orchestrator.core.decide.call_end import KIND as ELICITATION
from orchestrator.core.decide.call_end import (
    NOTHING_SEEN,
    Seen,
    close,
    decide_elicitation,
    keep_process,
    no_room,
    numbered,
    open_elicitation,
    open_request,
    reach_of,
    resolved,
    response_of,
    seen_ending,
    write_stdin,
)
from orchestrator.core.decide.draft import DoesNotFit, Draft, show_activity, show_use
from orchestrator.core.decide.task import decided, stop
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import AgentId
from orchestrator.core.modes import plans
from orchestrator.core.settings import Rules
from orchestrator.core.state import Answer, Elicitation, State
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.items import ToolOutput
from orchestrator.protocol.policy import ApprovedExecpolicyAmendment, Decision
from orchestrator.protocol.wire import UNSET, EventModel, JsonObject, JsonValue, written

NOT_RUN: Final = "not run: the person has decided on the plan, and the planning session is over"


def assessed(draft: Draft, command: CallAssessed) -> None:
    """Decides a call whose turn has come: it runs, is asked about, is refused, or is done already."""
    call = _call(draft, command.call_id, Phase.PROPOSED)
    if draft.task.stopping:
        raise DoesNotFit(f"call {command.call_id} may not start: the task is being stopped")
    if draft.task.result is not None:
        close(draft, call, NOT_RUN)
        return
    match command.assessment:
        case Immediate() as done:
            _done(draft, call, done.output, done.events)
        case Exec() as asked if asked.lasting is not None and (full := no_room(draft)):
            close(draft, call, full)
        case Exec() as asked:
            may_leave = _may_leave_the_sandbox(draft.state)
            verdict = asked.judged(draft.task.settings, _approved(draft, asked), may_leave=may_leave)
            _carry_out(draft, call, asked, verdict)
        case ApplyPatch() | Custom() | Mcp() | Merge() as asked:
            _carry_out(draft, call, asked, asked.judged(draft.task.settings, _approved(draft, asked)))
        case WriteStdin() as asked:
            write_stdin(draft, call, asked)
        case QuestionWork() | UserInputWork() | PlanWork() | ClientToolWork() as work:
            ask_out(draft, call, work)
        case asked:
            agent_call(draft, call, asked)


def _call(draft: Draft, call_id: str, phase: Phase) -> Call:
    call = draft.task.call(call_id)
    if call is None or call.phase is not phase:
        raise DoesNotFit(f"call {call_id} is {call.phase if call else 'unknown'}, not {phase}")
    return call


def _approved(draft: Draft, asked: Runnable) -> frozenset[str]:
    """The session's approvals that count: none was given for a task that is to write nothing.

    Where a call's approval has to be signed, those alone count that were.
    """
    narrow = draft.task.branch is not None or plans(draft.task.settings)
    if narrow:
        return frozenset()
    by_rule = isinstance(asked, Exec) and asked.strict_rule is not None and asked.strict_rule.sign
    signed = by_rule or draft.moment.rules.signing(draft.state.behalf) == "required"
    return draft.state.approved_signed if signed else draft.state.approved


def _may_leave_the_sandbox(state: State) -> bool:
    """Whether a rule that allows a command takes it out of the sandbox: never for an agent that only reads.

    The sandbox of a root that only reads is the owner's choice, and so are the rules; an agent's may be its
    parent's.
    """
    facts, task = state.facts, state.task
    if task is None or task.kind != "user" or plans(task.settings) or facts.helper_call:
        return False
    return facts.is_root or task.settings.sandbox_policy["mode"] != "read-only"


def _carry_out(draft: Draft, call: Call, asked: Runnable, verdict: Verdict) -> None:
    match verdict:
        case Run(sandboxed):
            run(draft, call, asked.work(sandboxed), auto_approved=True)
        case Ask():
            ask(draft, call, asked.work(verdict.sandboxed).proposing(verdict.proposed), verdict)
        case Refuse(text):
            close(draft, call, text)
        case _:
            assert_never(verdict)


def ask(draft: Draft, call: Call, work: RunnableWork, asked: Ask) -> None:
    """Opens an approval; nothing is held while it waits."""
    request = written(work.request(call.call_id, reach_of(draft, work, asked)))
    draft.event(request)
    timeout = draft.state.facts.approval_timeout_ms
    if timeout is not None:
        work = work.asked(draft.set_timer(approval_timer(call.call_id), draft.moment.at_ms + timeout))
    digest = e.request_digest(draft.task.id, request)
    draft.add(f.CallMoved(call.call_id, Phase.AWAITING_APPROVAL, work=work, request=digest))
    open_request(draft, call.call_id, work.kind, request, digest, work.sandboxed)


def finished(draft: Draft, command: CallFinished) -> None:
    """A running call ended. A command that the sandbox stopped may be asked about again."""
    call = _call(draft, command.call_id, Phase.RUNNING)
    wider = call.unconfined(command.output, command.planted) if command.sandbox_denied else None
    if (
        wider is not None
        and may_ask_for_more(draft.task.settings.approval_policy)
        and not draft.task.stopping
    ):
        for event in command.events:
            draft.event(event)
        reason = with_planted(UNSANDBOXED_REASON, command.planted)
        ask(draft, call, wider, Ask(reason, sandboxed=False))
        return
    if command.keeps:
        keep_process(draft, call)
    seen_ending(draft, command)
    work = call.work
    if command.applied and isinstance(work, MergeWork):
        draft.add(f.WorkspaceMerged(call.call_id, work.agent_id, work.base, work.snapshot, work.packs))
    baselines = call.diff_baselines if command.applied else None
    _done(draft, call, command.output, command.events, baselines)


def _done(
    draft: Draft,
    call: Call,
    output: ToolOutput,
    events: tuple[EventModel, ...],
    baselines: JsonObject | None = None,
) -> None:
    for event in events:
        draft.event(event)
    if call.phase is Phase.RUNNING:
        show_activity(draft, "")
    else:
        show_use(draft, call.name)
    close(draft, call, output, baselines=baselines)


# ── answer ────────────────────────────────────────────────────────────────────────────────────────
# Answers of people and clients: which open request one means, and what becomes of one that is late.


GONE = "its texts are not kept any more: answer again"
MOST_NAMED = 20
"""Open requests that one error names."""


@record
class Reply:
    """An answer as its op states it; `op` is the op's tag, `response` the words that answer questions."""

    id: str
    agent_id: AgentId | None
    op: str
    decision: str
    response: JsonObject | None = None
    shown: ops.Shown | None = None
    signature: ops.AnswerSignature | None = None
    server: str | None = None
    """The MCP server that it is for; None where no server asks."""

    @property
    def said(self) -> tuple[str, str]:
        """Two answers that say the same are equal in this."""
        return self.decision, "" if self.response is None else digest_of(self.response)

    def fits(self, kind: str) -> bool:
        """Whether the op answers requests of this kind."""
        known = answered_by(kind)
        if known is None:
            # What a newer version asks about can be denied by either op of approvals.
            return self.response is None
        return known[1] == self.op


def reply_of(op: AnswerOp) -> Reply:
    """The answer that an op gives."""
    agent_id = None if op.agent_id is None else AgentId(op.agent_id)
    match op:
        case ops.DynamicToolResponse():
            decision = ANSWERED if op.response.success else FAILED
            return Reply(op.id, agent_id, op.type, decision, written(op.response))
        case ops.ExecApproval() | ops.PatchApproval():
            id, decision, response = op.id, decision_word(op.decision), None
        case ops.ResolveAskUserQuestion() | ops.ResolvePlanApproval():
            id, decision, response = op.id, op.response.type, written(op.response)
        case ops.UserInputAnswer():
            decision = "answered" if op.response.answers else "cancelled"
            id, response = op.id, written(op.response)
        case ops.ResolveElicitation():
            id, decision, response = str(op.request_id), op.decision.value, response_of(op.decision.value)
    shown, signature = op.shown or None, op.signature or None
    server = op.server_name if isinstance(op, ops.ResolveElicitation) else None
    return Reply(id, agent_id, op.type, decision, response, shown, signature, server)


def decision_word(decision: Decision) -> str:
    """A decision on an approval as the log has it."""
    if isinstance(decision, ApprovedExecpolicyAmendment):
        return amendment(decision.approved_execpolicy_amendment.proposed_execpolicy_amendment)
    return decision


def answer(draft: Draft, command: Submitted, op: AnswerOp) -> None:
    """An answer under a call id, or under the turn's id if exactly one request was open then."""
    reply = reply_of(op)
    if isinstance(op, ops.ResolveElicitation) and _for_me(draft, reply):
        asked = open_elicitation(draft, reply.id)
        if asked is not None:
            _answer_server(draft, command, reply, asked)
            return
    if not _answered_by(draft, command, reply):
        draft.drop_secret(command.secret)


def _answered_by(draft: Draft, command: Submitted, reply: Reply) -> bool:
    """Carries out an answer; whether its texts, if they stand beside the log, are still needed there."""
    meant = _meant(draft, reply, command.seq) if _for_me(draft, reply) else []
    below = _below(command, reply)
    if len(meant) == 1:
        return _carry_out_answer(draft, command, reply, meant[0])
    if meant:
        # Where several are open, the answer was meant for one of them, not for an earlier one.
        draft.add(e.error(command.id, _several(repr(reply.id), _open_here(draft))))
    elif len(below) == 1:
        return _route(draft, command, below[0], reply)
    elif below:
        text = f"{_several(f'{reply.id!r} in the tree', _open_below(below))} and agent_id"
        draft.add(e.error(command.id, text))
    elif (other := _other_op(draft, command, reply)) is not None:
        draft.add(e.error(command.id, other))
    else:
        _hold_against_earlier(draft, command, reply)
    return False


def _answer_server(draft: Draft, command: Submitted, reply: Reply, asked: Elicitation) -> None:
    try:
        _check_server(asked, reply.server)
        seen = Seen(reply.shown, counted_signature(draft, asked, command.signature))
    except DoesNotAnswer as error:
        draft.add(e.error(command.id, _stays_open(asked.id, error)))
        return
    decide_elicitation(draft, asked, reply.decision, command.who or command.client, command.client, seen)
    _warn_of_unsigned(draft, command.id, asked, asked.id, seen)


def _check_server(asked: Elicitation, server: str | None) -> None:
    """Raises `DoesNotAnswer` for an answer to another server; None: an earlier version sent it on."""
    if server not in (None, asked.server):
        raise DoesNotAnswer(f"the MCP server {asked.server} asks, not {server!r}")


def _for_me(draft: Draft, reply: Reply) -> bool:
    return reply.agent_id in (None, draft.state.facts.agent_id)


def _carry_out_answer(draft: Draft, command: Submitted, reply: Reply, call: Call) -> bool:
    who = command.who or command.client
    try:
        seen, needed = Seen(reply.shown, counted_signature(draft, call, command.signature)), False
        if reply.response is None:
            resolve(draft, call, reply.decision, who, command.client, seen)
        else:
            needed = settle(draft, call, reply.response, who, command.client, command.secret, seen)
    except DoesNotAnswer as error:
        draft.add(e.error(command.id, _stays_open(call.call_id, error)))
        return False
    _warn_of_unsigned(draft, command.id, call, call.call_id, seen)
    if needed:
        _warn_of_clear_text(draft, command, call.call_id)
    return needed


def _warn_of_clear_text(draft: Draft, command: Submitted, name: str) -> None:
    if command.in_clear:
        message = (
            f"{name} asked for a secret, and the client handed the answer in in clear: Redis had it in the "
            "session's queue until now, and its append-only file may have it still. The log has it not; a "
            "client of this version sets such texts apart"
        )
        draft.add(e.event(command.id, ev.WarningEvent(message=message)))


def _stays_open(name: str, error: DoesNotAnswer) -> str:
    return f"{name} was not answered: {error}; it stays open"


def _below(command: Submitted, reply: Reply) -> list[PendingBelow]:
    """The requests of the tree that an answer can mean: under the call's id, else under the turn's."""
    asked = [p for p in command.below if reply.agent_id in (None, p.agent_id) and reply.fits(p.kind)]
    return [p for p in asked if p.call_id == reply.id] or [p for p in asked if p.turn == reply.id]


def _other_op(draft: Draft, command: Submitted, reply: Reply) -> str | None:
    """The error for an answer by the wrong op to a request that is pending under its call's id."""
    own = [(str(call.call_id), call.kind) for call in _pending(draft) if _for_me(draft, reply)]
    own += [(asked.id, ELICITATION) for asked in _elicitations(draft) if _for_me(draft, reply)]
    below = [(p.call_id, p.kind) for p in command.below if reply.agent_id in (None, p.agent_id)]
    for call_id, kind in (*own, *below):
        known = answered_by(kind)
        if call_id == reply.id and known is not None and known[1] != reply.op:
            return f"{call_id} is {known[0]}: answer it with {known[1]}"
    return None


def _route(draft: Draft, command: Submitted, asked: PendingBelow, reply: Reply) -> bool:
    """Sends an answer on to the one agent that waits for it; texts that stand apart by their name alone.

    Some of them may be secret although nothing secret is asked: they were meant for another question.
    """
    secret = command.secret if reply.decision == "answered" else ""
    by = command.who or command.client
    payload: AnswerPayload = {
        "id": command.id,
        "call_id": asked.call_id,
        "turn": asked.turn,
        "decision": reply.decision,
        "who": by,
        "sandboxed": asked.sandboxed,
    }
    if draft.sender is not None:
        payload["by"] = draft.sender.wire()
    if secret:
        payload["secret"] = secret
        if asked.secret:
            _warn_of_clear_text(draft, command, asked.call_id)
    elif reply.response is not None:
        payload["response"] = reply.response
    if reply.server is not None:
        payload["server"] = reply.server
    if reply.shown is not None:
        payload["shown"] = written(reply.shown)
    if reply.signature is not None:
        payload["signature"] = written(reply.signature)
    key = f"answer:{command.client}:{command.id}"
    draft.tree.send(asked.session, "answer", payload, key)
    at_ms, (decision, digest) = draft.moment.at_ms, reply.said
    digest = "" if secret else digest
    answer = f.Answered(asked.call_id, asked.turn, decision, by, at_ms, asked.agent_id, digest)
    draft.add(replace(answer, by=draft.sender))
    return bool(secret)


def routed_answer(draft: Draft, command: MailArrived) -> None:
    """Carries out an answer given at the root; a request decided here meanwhile stays decided.

    A command that its sandbox stopped is asked about again under the same id: an approval of the confined
    command does not allow it without the sandbox. Nor does an answer to a request of an earlier turn count
    for a later one: ids of calls are the model's, and may come again.
    """
    answer, of_words = command.payload, "response" in command.payload
    task = draft.state.task
    of_this_turn = task is not None and answer["turn"] == task.id
    asked = open_elicitation(draft, answer["call_id"]) if of_this_turn else None
    if asked is not None and answer.get("response") == response_of(answer["decision"]):
        _answer_sent_on(draft, asked, command)
        return
    for call in _pending(draft) if of_this_turn else ():
        asks = call.is_question
        if call.call_id != answer["call_id"] or asks != of_words:
            continue
        if asks or answer.get("sandboxed") in (None, call.sandboxed):
            needed = _answer_sent_on(draft, call, command)
            break
    else:
        needed = False
        _publish_late(draft, answer)
    if not needed:
        draft.drop_secret(answer.get("secret", ""))


def _answer_sent_on(draft: Draft, asked: Call | Elicitation, command: MailArrived) -> bool:
    """Carries out an answer of the root's client; whether its texts beside the log are still needed."""
    answer, who, needed = command.payload, command.payload["who"], False
    name = f"{answer['call_id']} of agent {draft.state.facts.agent_id}"
    shown = answer.get("shown")
    try:
        signature = counted_signature(draft, asked, command.signature)
        seen = Seen(None if shown is None else ops.Shown.model_validate(shown), signature)
        if isinstance(asked, Elicitation):
            _check_server(asked, answer.get("server"))
            decide_elicitation(draft, asked, answer["decision"], who, seen=seen)
        elif not asked.is_question:
            resolve(draft, asked, answer["decision"], who, seen=seen)
        elif answer["response"] is None:
            raise DoesNotAnswer(GONE)
        else:
            needed = settle(draft, asked, answer["response"], who, secret=answer.get("secret", ""), seen=seen)
    except DoesNotAnswer as error:
        if "id" in answer:
            _publish_error_at_root(draft, answer["id"], _stays_open(name, error))
        return False
    if "id" in answer and (told := _unsigned(draft, asked, name, seen)):
        draft.tree.publish(answer["id"], told, (draft.state.facts.tree_id,))
    return needed


def _publish_late(draft: Draft, answer: Mapping[str, JsonValue]) -> None:
    """Tells the root that an answer which it has sent on came too late."""
    told, response = (answer["call_id"], answer["turn"]), answer.get("response")
    # Two secret answers are never the same: nothing is kept that tells.
    digest = answer["secret"] if "secret" in answer else "" if response is None else digest_of(response)
    said = (answer["decision"], digest)
    earlier = [one for one in draft.state.answers if (one.call_id, one.turn) == told]
    if "id" not in answer or (earlier and (earlier[-1].decision, earlier[-1].digest) == said):
        return
    name = f"{answer['call_id']} of agent {draft.state.facts.agent_id}"
    text = (
        _too_late(name, earlier[-1].decision, earlier[-1].who) if earlier else _too_late(name, WITHDRAWN, "")
    )
    _publish_error_at_root(draft, answer["id"], text)


def _publish_error_at_root(draft: Draft, id: str, text: str) -> None:
    told = ev.Error(message=text, codex_error_info=UNSET)
    draft.tree.publish(id, told, (draft.state.facts.tree_id,))


def _hold_against_earlier(draft: Draft, command: Submitted, reply: Reply) -> None:
    """Answers with an error if no open request fits; the same answer again does no harm."""
    there = next((one for one in reversed(command.decided) if _is_of(one, reply)), None)
    own = _decided_here(draft, command, reply)
    if own is None and there is not None:
        earlier, name = (there.decision, there.digest), f"{there.call_id} of agent {there.agent_id}"
        text = _too_late(name, there.decision, there.who)
    elif own is not None:
        earlier, text = (own.decision, own.digest), _too_late(own.call_id, own.decision, own.who)
    else:
        earlier = ("", "")
        text = _none_meant(draft, command, reply)
    if earlier != reply.said:
        draft.add(e.error(command.id, text))


def _too_late(name: str, decision: str, who: str) -> str:
    if decision == WITHDRAWN:
        return f"{name} is not asked any more: its turn has ended"
    return f"{name} {DECIDED}: {decision}, by {who or 'a client'}"


def _none_meant(draft: Draft, command: Submitted, reply: Reply) -> str:
    where = repr(reply.id) if reply.agent_id is None else f"{reply.id!r} of agent {reply.agent_id}"
    names = [*(_open_here(draft) if _for_me(draft, reply) else ()), *_open_below(command.below)]
    told = f"no request is open under {where}: it has ended, or never was; nothing was done"
    return f"{told}; open are {_listed(names)}" if names else told


def _several(where: str, names: Sequence[str]) -> str:
    return f"several requests are open under {where}: {_listed(names)}; answer one by its call id"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _open_below(pending: Sequence[PendingBelow]) -> list[str]:
    return [f"{one.call_id} of agent {one.agent_id}" for one in pending]


def _meant(draft: Draft, reply: Reply, seen_seq: int) -> list[Call]:
    """The open requests that an answer under an id can mean.

    Two people who press Allow on A must not allow B, nor A without its sandbox: an answer counts
    only for a request that stood in the log when the answer was submitted.
    """
    pending = [call for call in _pending(draft) if reply.fits(call.kind)]
    named = [call for call in pending if call.call_id == reply.id]
    if named or draft.state.task is None or reply.id != draft.state.task.id:
        return [call for call in named if call.asked_seq <= seen_seq]
    return [call for call in pending if call.asked_seq <= seen_seq]


def _pending(draft: Draft) -> tuple[Call, ...]:
    """The calls that may still be answered; none in a task that is being stopped, where nothing starts."""
    task = draft.state.task
    return () if task is None or task.stopping else task.requests


def _elicitations(draft: Draft) -> tuple[Elicitation, ...]:
    """The questions of servers that may still be answered."""
    task = draft.state.task
    return () if task is None else task.open_elicitations


def _open_here(draft: Draft) -> list[str]:
    return [*(call.call_id for call in _pending(draft)), *(one.id for one in _elicitations(draft))]


def _is_of(decided: DecidedBelow, reply: Reply) -> bool:
    return reply.id in (decided.call_id, decided.turn) and reply.agent_id in (None, decided.agent_id)


def _decided_here(draft: Draft, command: Submitted, reply: Reply) -> Answer | None:
    """The last request of this session that was settled under an answer's id.

    An answer that was sent on stands in this log, too; but what counts is what its agent did with it.
    """
    if not _for_me(draft, reply):
        return None
    below = {(one.call_id, one.turn) for one in command.decided}
    found = (one for one in reversed(draft.state.answers) if reply.id in (one.call_id, one.turn))
    return next((one for one in found if (one.call_id, one.turn) not in below), None)


# ── approval ──────────────────────────────────────────────────────────────────────────────────────
# Approvals: what a decision does to the call that it is about.


MOST_SIGNED_MS: Final = 600_000
"""The age at which a signature counts no more: it was meant for what was asked when it was made."""
MOST_AHEAD_MS: Final = 300_000
"""By as much the clock of the person's machine may be ahead."""


def _is_of_people(asked: Call | Elicitation) -> bool:
    """Whether a person answers the request: a client's tool is answered by its program."""
    return isinstance(asked, Elicitation) or not isinstance(asked.work, ClientToolWork)


def needs_signature(asked: Call | Elicitation, state: State, rules: Rules) -> bool:
    """Whether an answer to the request counts only if a person has signed it."""
    if isinstance(asked, Call) and isinstance(asked.work, ExecWork) and asked.work.sign:
        return True
    return rules.signing(state.behalf) == "required" and _is_of_people(asked)


def counted_signature(
    draft: Draft, asked: Call | Elicitation, signature: Signature | None
) -> Signature | None:
    """The signature, if it is one for this request; None where the answer has none and needs none.

    Raises `DoesNotAnswer` for one that was made for another request, or too long ago, or has counted before.
    """
    if signature is None:
        if needs_signature(asked, draft.state, draft.moment.rules):
            raise DoesNotAnswer("answers have to be signed here: `dendro approvals --sign KEYFILE`")
        return None
    if signature.fault:
        raise DoesNotAnswer(signature.fault)
    id = asked.id if isinstance(asked, Elicitation) else asked.call_id
    about, at_ms = (id, draft.task.id), draft.moment.at_ms
    if (signature.call_id, signature.turn, signature.request) != (*about, asked.request):
        raise DoesNotAnswer("its signature is for another request")
    if not at_ms - MOST_SIGNED_MS <= signature.answered_ms <= at_ms + MOST_AHEAD_MS:
        raise DoesNotAnswer(
            "its signature is older than ten minutes, or of a time that is still to come: sign it now, and "
            "look at the clocks"
        )
    earlier = [one.signed_ms for one in draft.state.answers if (one.call_id, one.turn) == about]
    if signature.answered_ms <= max(earlier, default=0):
        raise DoesNotAnswer("its signature has decided an earlier request of that name: sign it anew")
    return signature


def _warn_of_unsigned(draft: Draft, id: str, asked: Call | Elicitation, name: str, seen: Seen) -> None:
    if told := _unsigned(draft, asked, name, seen):
        draft.add(e.event(id, told))


def _unsigned(draft: Draft, asked: Call | Elicitation, name: str, seen: Seen) -> ev.WarningEvent | None:
    """The warning about an answer that counts without a signature of a known key, where one is wanted."""
    signature = seen.signature
    wanted = draft.moment.rules.signing(draft.state.behalf) == "wanted"
    if not wanted or seen.is_signed or not _is_of_people(asked):
        return None
    why = "without a signature" if signature is None else "under a key that approvals.signers does not name"
    return ev.WarningEvent(message=f"{name} was decided {why}: `dendro approvals --sign` gives one")


def resolve(
    draft: Draft,
    call: Call,
    decision: str,
    who: str,
    client: str = "",
    seen: Seen = NOTHING_SEEN,
) -> None:
    """Carries a decision out; it is recorded with who and when, what they had before them, their signature.

    No `client`: it was not given here.

    Raises `DoesNotAnswer` before anything is written for a decision that does not fit the call.
    """
    remembered = _remembered(draft, call, decision)
    answer = f.Answered(call.call_id, draft.task.id, decision, who, draft.moment.at_ms, by=draft.sender)
    draft.add(seen.told(answer))
    draft.close_approval(call.call_id)
    draft.clear_timer(approval_timer(call.call_id))
    if decision != "abort":
        # An abort withdraws what else was asked as well, when all that runs has stopped.
        resolved(draft, call.call_id, decision, who, client)
    match decision:
        case "approved":
            run(draft, call, _work(call))
        case _ if remembered is not None:
            draft.add(f.ApprovedForSession(remembered.keys, remembered.roots, seen.is_signed))
            run(draft, call, _work(call))
        case "abort":
            stop(draft, "interrupted", call.call_id)
        case _:
            close(draft, call, call.rejected)


def _work(call: Call) -> RunnableWork:
    """The work that was asked about; what a newer version asked about cannot be started here."""
    if not isinstance(call.work, RunnableWork):
        raise DoesNotFit(
            f"call {call.call_id} is of a kind that this version does not know: it can be denied, "
            "or approved once every worker is updated"
        )
    return call.work


def _remembered(draft: Draft, call: Call, decision: str) -> Remembered | None:
    """The memory of the decision: nothing where it stands for this call alone."""
    if decision == "approved_for_session":
        return _work(call).remembered(draft.task.settings)
    if not decision.startswith(AMENDED):
        return None
    return call.allowing(amended(decision), draft.task.settings)


def run(draft: Draft, call: Call, work: RunnableWork, auto_approved: bool = False) -> None:
    """Decides to start the call, with the event that tells of it; the worker that commits starts it once."""
    draft.guard()
    if isinstance(work, ExecWork) and work.lasting is not None:
        work = numbered(draft, work, work.lasting)
    show_activity(draft, work.activity)
    draft.event(work.begin(call.call_id, auto_approved=auto_approved))
    draft.add(f.CallMoved(call.call_id, Phase.RUNNING, epoch=draft.moment.epoch, work=work))


# ── ask ───────────────────────────────────────────────────────────────────────────────────────────
# Questions to a person, plans, and calls of a client's tools: a phase of a call, decided from its
# own log.
#
# Nobody is held while it lasts. An answer, the timer or the end of the task settles it, and only the
# first of them: behind it the call is done.


BY_TIMER = "timer"
"""Settles what nobody has answered in time."""


def ask_out(draft: Draft, call: Call, work: AskWork) -> None:
    """Asks a person or a client, whatever the approval policy: that is about commands and patches.

    Nothing is held meanwhile.
    """
    request = written(work.request(call.call_id, draft.task.id))
    draft.event(request)
    timeout = work.most_ms(draft.state.facts.approval_timeout_ms)
    if timeout is not None:
        work = work.asked(draft.set_timer(approval_timer(call.call_id), draft.moment.at_ms + timeout))
    digest = e.request_digest(draft.task.id, request)
    draft.add(f.CallMoved(call.call_id, Phase.ASKING, work=work, request=digest))
    open_request(draft, call.call_id, work.kind, request, digest)


def settle(
    draft: Draft,
    call: Call,
    response: JsonObject,
    who: str,
    client: str = "",
    secret: str = "",
    seen: Seen = NOTHING_SEEN,
) -> bool:
    """Gives the call an answer; raises `DoesNotAnswer` before anything is written if it does not fit.

    Whether requests of the task need the texts that stand beside the log under the name `secret`.
    """
    end = _question(call).settled(response)
    if not end.hides:
        _end(draft, call, end, digest_of(response), who, client, seen=seen)
        return False
    _end(draft, call, end, "", who, client, secret, seen)
    return True


def give_up(draft: Draft, call: Call) -> None:
    """Ends questions that nobody has answered in time."""
    _end(draft, call, _question(call).unanswered, "", BY_TIMER)


def _question(call: Call) -> AskWork:
    if not isinstance(call.work, AskWork):
        raise DoesNotFit(f"call {call.call_id} asks for something that this version does not know")
    return call.work


def _end(
    draft: Draft,
    call: Call,
    end: Settled,
    digest: str,
    who: str,
    client: str = "",
    secret: str = "",
    seen: Seen = NOTHING_SEEN,
) -> None:
    turn, said = draft.task.id, (end.decision, who, draft.moment.at_ms)
    answer = f.Answered(call.call_id, turn, *said, digest=digest, secret=secret, by=draft.sender)
    draft.add(seen.told(answer))
    draft.close_approval(call.call_id)
    draft.clear_timer(approval_timer(call.call_id))
    resolved(draft, call.call_id, end.decision, who, client, digest=digest)
    decided(draft, call, end.decision)
    events = _question(call).end_events(call.call_id, turn, end)
    close(draft, call, end.output, events=events)
