"""From an SQ entry to the command that it is, and what a worker has to look at first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import TypeVar

import orjson
from pydantic import ValidationError

from orchestrator.broker.blobs import ArchivedText, Blobs, Texts
from orchestrator.broker.errors import Corrupt, DamagedEntry, SecretsFull, Unavailable
from orchestrator.broker.records import Claim, Place, SqEntry, StoredEvent
from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core.blobs import references, resolve
from orchestrator.core.calls import (
    AskWork,
    Call,
    CustomWork,
    MergeWork,
    PatchWork,
    spec_of,
    work_of,
)
from orchestrator.core.calls.ask import DoesNotAnswer, digest_of
from orchestrator.core.calls.exec import CallKey, Shown
from orchestrator.core.decide.call import needs_signature, reply_of
from orchestrator.core.decide.call_end import lost_processes, unknown_end
from orchestrator.core.decide.draft import Note
from orchestrator.core.entries import published_event, published_kind
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import TreeId
from orchestrator.core.secrets import SET_APART, put_back, secret_name
from orchestrator.core.sender import decoded
from orchestrator.core.state import Elicitation, Process, State
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.codec import encode_submission, parse_submission, short_id
from orchestrator.protocol.ops import (
    AnswerSignature,
    ExecApproval,
    PatchApproval,
    ResolveAskUserQuestion,
    ResolveElicitation,
    ResolvePlanApproval,
    UserInputAnswer,
)
from orchestrator.protocol.submission import MalformedSubmission, Submission
from orchestrator.protocol.wire import UNSET, JsonMapping, JsonObject
from orchestrator.rollouts.signed_notes import signature_of
from orchestrator.runtime import log
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.runner_context import RunnerContext
from orchestrator.runtime.same_folder import FolderFaults
from orchestrator.tools.exec.command import MODEL_BYTES, Capture, for_model

E = TypeVar("E", bound=ev.EventModel)


@record
class Unreadable:
    """An SQ entry that could not be made a command: deciding it raises `error`."""

    submission: str
    error: Exception


def command_of(entry: SqEntry) -> c.Command | Note:
    """The command of an entry; an op that this version cannot read is answered by an `error`."""
    if entry.kind == "timer":
        return c.TimerFired(entry.submission, entry.generation)
    if entry.kind == "mail":
        body: JsonObject = orjson.loads(entry.payload)
        number = int(entry.id.partition("-")[0])
        return c.MailArrived(body.pop("kind"), body, entry.submission, number, entry.interrupt)
    try:
        submission = parse_submission(entry.payload)
    except MalformedSubmission as error:
        return Note((_unread(entry, error),))
    sender = decoded(entry.by)
    return c.Submitted(submission.id, submission.op, entry.client, entry.sender, sender, entry.seq)


def _unread(entry: SqEntry, error: Exception) -> e.Entry:
    told = ev.Error(message=str(error), codex_error_info=UNSET)
    return e.event(short_id(entry.submission), told)


async def judged_running(
    ports: Ports, state: State, claim: Claim, workspace: FolderFaults
) -> dict[str, str] | None:
    """Judges each call that a lost worker left running; None if nothing had been begun."""
    task = state.task
    if task is None or not (task.running or task.request or task.stopping):
        return {} if state.processes.living or state.workspace.unsaved is not None else None
    if state.facts.portable is not None or (task.running and await workspace.fault(state)):
        # Another folder's files say nothing of a patch: what is not judged is in doubt.
        return {}
    lost = [call for call in task.running if call.epoch != claim.epoch]
    return {call.call_id: await _judged(ports, state, call, claim) for call in lost}


async def _judged(ports: Ports, state: State, call: Call, claim: Claim) -> str:
    if isinstance(call.work, MergeWork):
        return await ports.folders.judge(state, claim, call.work)
    return await ports.tools.judge(await _with_record(ports, state, call), claim.claim_id)


async def _with_record(ports: Ports, state: State, call: Call) -> Call:
    """The call with what it is judged by, which stands beside the log if it is very large."""
    match call.work:
        case PatchWork():
            name = "record"
        case CustomWork():
            name = "payload"
        case _:
            return call
    spec = spec_of(call.work)
    needed = set(references(spec[name]))
    if not needed:
        return call
    await ports.texts.fetch(TreeId(state.facts.tree_id), needed)
    return replace(call, work=work_of({**spec, name: resolve(spec[name], ports.texts.get)}))


_PAGE = 500
MOST_SHOWN = 64
"""Lost commands and processes whose output is kept; a commit is bounded."""
MOST_SHOWN_BYTES = 32 << 10
"""Bytes of output that all of them share; one has no more than any command's output has."""


async def shown_by_lost(ports: Ports, state: State, claim: Claim) -> dict[CallKey, Shown]:
    """The output that commands and processes of lost workers had shown to clients; only there is it known."""
    task = state.task
    running = task.running if task is not None else ()
    turn = task.id if task is not None else ""
    calls = [(turn, call.call_id) for call in running if call.epoch != claim.epoch and call.is_command]
    lost = lost_processes(state.processes.living, claim.epoch)
    calls += [(process.turn, process.call_id) for process in lost]
    if not calls:
        return {}
    what = f"session {claim.session}: what its commands had shown"
    try:
        return await patiently(lambda: _shown(ports, claim, calls), ports.sleep, what)
    except (DamagedEntry, Corrupt):
        return dict.fromkeys(calls, Shown(whole=False))


async def _shown(ports: Ports, claim: Claim, calls: Sequence[CallKey]) -> dict[CallKey, Shown]:
    begun = await _beginnings(ports, claim, calls)
    heard = {call: _Heard() for call in calls[:MOST_SHOWN]}
    after = min(begun.get(call, 0) for call in calls)
    while page := await ports.broker.logs.read_eq(claim.session, after, _PAGE):
        after = page[-1].n
        for event in page:
            told = _told(event, ev.ExecCommandOutputDelta)
            if told is not None and (call := _key(event, told)) in heard and event.n > begun.get(call, 0):
                heard[call].add(told.stream, told.chunk)
    most = min(MODEL_BYTES, MOST_SHOWN_BYTES // len(heard))
    found = {call: one.shown(most, whole=call in begun) for call, one in heard.items()}
    return found | {call: Shown(whole=False) for call in calls[MOST_SHOWN:]}


async def _beginnings(ports: Ports, claim: Claim, calls: Sequence[CallKey]) -> dict[CallKey, int]:
    """The number of the event with which each command began; one that is not kept any more has none."""
    begun: dict[CallKey, int] = {}
    before: int | None = None
    while len(begun) < len(set(calls)):
        page = await ports.broker.logs.read_eq_back(claim.session, before, _PAGE)
        for event in page:
            told = _told(event, ev.ExecCommandBegin)
            if told is not None and (call := _key(event, told)) in calls:
                begun.setdefault(call, event.n)
        if len(page) < _PAGE:
            break
        before = page[-1].n
    return begun


def _told(event: StoredEvent, kind: type[E]) -> E | None:
    """The event, if it is of this kind."""
    told = published_event(event.payload) if published_kind(event.payload) is kind else None
    return told if isinstance(told, kind) else None


def _key(event: StoredEvent, told: ev.ExecCommandBegin | ev.ExecCommandOutputDelta) -> CallKey:
    """The call that an event is of: its turn's, whose id the event bears."""
    return orjson.loads(event.payload)["id"], told.call_id


class _Heard:
    """The output of one command, as its events told it; of a long one the beginning and the end."""

    def __init__(self) -> None:
        self._streams = {name: Capture(_KEPT_BYTES) for name in ("stdout", "stderr", "both")}

    def add(self, stream: str, data: bytes) -> None:
        self._streams[stream].add(data)
        self._streams["both"].add(data)

    def shown(self, most: int, *, whole: bool) -> Shown:
        out, err, both = (for_model(capture.kept(), most) for capture in self._streams.values())
        return Shown(out, err, both, whole)


_KEPT_BYTES = 8 * MODEL_BYTES


def drained_call(call: Call, elapsed_s: float) -> c.CallFinished:
    """The end of a command that outlived its worker's grace: killed, and recorded as killed."""
    return _ended_early(
        call, f"killed after {elapsed_s:.1f}s: the worker was shut down; it may have had effects", elapsed_s
    )


def refused_call(call: Call, why: str) -> c.CallFinished:
    """The end of a call that was decided to start, and was not."""
    return _ended_early(call, why, 0.0)


def failed_call(call: Call, why: str) -> c.CallFinished:
    """The end of a call whose tool broke down: how far it came is unknown."""
    return _ended_early(call, f"{why}; it may have had effects", 0.0)


def failed_process(process: Process, why: str) -> c.ProcessEnd:
    """The end of a process whose wait broke down: what became of it is unknown."""
    return c.ProcessEnd(process.number, unknown_end(process, f"{why}; it may have had effects"))


def _ended_early(call: Call, text: str, elapsed_s: float) -> c.CallFinished:
    return c.CallFinished(call.call_id, text, call.broken_off(text, elapsed_s))


# ── patience ──────────────────────────────────────────────────────────────────────────────────────
# Reading from a Redis that may be away for a moment: asked until it answers.
#
# A text that cannot be read now is no reason to fail a task. The task that waits is an effect or a load,
# and is cancelled when its claim is lost.


ASK_AGAIN_S = 0.05
ASK_AGAIN_MAX_S = 1.0

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


async def patiently(read: Callable[[], Awaitable[T]], sleep: Sleep, what: str) -> T:
    """The result of `read`, however often it takes; `what` names it in the worker's log."""
    delay = ASK_AGAIN_S
    while True:
        try:
            return await read()
        except Unavailable as error:
            log.warning("%s could not be read yet: %s", what, error)
            await sleep(delay)
            delay = min(delay * 2, ASK_AGAIN_MAX_S)


class PatientTexts(Texts):
    """The texts of one worker."""

    def __init__(self, blobs: Blobs, sleep: Sleep, archived: ArchivedText | None = None) -> None:
        super().__init__(blobs, archived=archived)
        self._sleep = sleep

    async def fetch(self, tree: TreeId, digests: Iterable[str]) -> None:
        wanted, fetch = tuple(digests), super().fetch
        await patiently(lambda: fetch(tree, wanted), self._sleep, f"tree {tree}: {len(wanted)} texts")


# ── signatures ────────────────────────────────────────────────────────────────────────────────────
# Signatures of people under their answers: checked here by the keys that the worker's own settings name.


NOT_OPEN = "its signature is for no request that is open"
UNKNOWN_SIGNER = "approvals.signers names no key {key!r}, by which it is signed"
NO_SIGNATURE = "its signature is none: 64 bytes in base64, with the name of their key, are expected"
MOST_KEY = 500
"""Characters by which a signature names its key."""
NOT_ITS_OWN = (
    "its signature is none of {key!r} under this answer, this request, and what was shown: sign it "
    "anew, with a program of this version"
)
SIGNABLE = (
    ExecApproval,
    PatchApproval,
    ResolveAskUserQuestion,
    ResolvePlanApproval,
    UserInputAnswer,
    ResolveElicitation,
)


def with_signature(context: RunnerContext, command: c.Command | Note) -> c.Command | Note:
    """The command with the signature under its answer, as this worker has found it."""
    match command:
        case c.Submitted(op=op) if isinstance(op, SIGNABLE) and op.signature:
            reply = reply_of(op)
            found = _checked(context, reply.id, reply.decision, reply.response, op.signature, reply.shown)
            return replace(command, signature=found)
        case c.MailArrived(kind="answer", payload={"signature": dict(told)}):
            payload = command.payload
            try:
                given, shown = AnswerSignature.model_validate(told), payload.get("shown")
                seen = None if shown is None else ops.Shown.model_validate(shown)
            except ValidationError:
                return replace(command, signature=c.Signature(0, fault=NO_SIGNATURE))
            meant, response = str(payload["call_id"]), payload.get("response")
            found = _checked(context, meant, str(payload["decision"]), response, given, seen)
            return replace(command, signature=found)
        case _:
            return command


def _checked(
    context: RunnerContext,
    meant: str,
    decision: str,
    response: JsonObject | None,
    given: AnswerSignature,
    shown: ops.Shown | None,
) -> c.Signature:
    """The signature under an answer by a request's id or a turn's, for the requests that are open."""
    state, task = context.journal.state, context.journal.state.task
    open_here: Sequence[Call | Elicitation] = ()
    if task is not None:
        open_here = (*task.requests, *task.open_elicitations)
    digest = sha256((shown.text if shown is not None else "").encode("utf-8", "surrogatepass")).hexdigest()
    fault = NOT_OPEN
    for asked in open_here:
        id = asked.id if isinstance(asked, Elicitation) else asked.call_id
        names = (state.facts.session_id, task.id if task else "", id)
        if meant not in names[1:] or any(char < " " for name in names for char in name):
            continue  # With a line feed in a name two texts would be one.
        told = "" if response is None else _response_digest(asked, response)
        said = c.signed_answer(
            *names, decision, given.answered_ms, digest, request=asked.request, response=told
        )
        holds = context.ports.signers(
            given.key, signature_of(given.sig), said.encode("utf-8", "surrogatepass")
        )
        if holds is None and (len(signature_of(given.sig)) != 64 or len(given.key) > MOST_KEY):
            return c.Signature(given.answered_ms, fault=NO_SIGNATURE)
        if holds or (holds is None and not needs_signature(asked, state, context.config.rules)):
            # That of a stranger is kept as it is: an auditor may know the key.
            kept = given.answered_ms, given.sig, given.key, id, names[1]
            return c.Signature(*kept, known=holds is not None, request=asked.request)
        fault = (UNKNOWN_SIGNER if holds is None else NOT_ITS_OWN).format(key=given.key[:80])
    return c.Signature(given.answered_ms, fault=fault)


def _response_digest(asked: Call | Elicitation, response: JsonObject) -> str:
    """The digest of a response as the log has it; none of one with a secret, which could be guessed by it."""
    if isinstance(asked, Call) and isinstance(asked.work, AskWork):
        try:
            if asked.work.settled(response).hides:
                return ""
        except DoesNotAnswer:
            pass  # It is refused for that.
    return digest_of(response)


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────
# Answers whose texts stand beside the log: met in the queue, and read again for a request to the model.
#
# Nothing here is logged but names.


NOT_KEPT_ANY_MORE = (
    "the answer's texts are not kept any more: they stand beside the log for a day; what was asked stays "
    "open, answer again"
)


async def with_texts(context: RunnerContext, entry: SqEntry) -> c.Command | Note:
    """The command of an entry, with the texts of an answer that stand beside the queue.

    Texts that came in clear, from an older client, are set apart first: they may be secret.
    """
    name = secret_name(entry.client, entry.submission)
    if entry.kind == SET_APART:
        if not (texts := await _texts(context, name)):
            return Note((e.error(short_id(entry.submission), NOT_KEPT_ANY_MORE),))
        entry = replace(entry, payload=put_back(entry.payload, texts))
        command = command_of(entry)
        return replace(command, secret=name) if isinstance(command, c.Submitted) else command
    command = command_of(entry)
    match command:
        case c.Submitted(op=UserInputAnswer() as op) if op.response.answers:
            return replace(command, secret=await _kept(context, entry.id, name, op), in_clear=True)
        case c.MailArrived(kind="answer", payload={"secret": str(name)}):
            texts = await _texts(context, name)
            response: JsonObject | None = orjson.loads(texts) if texts else None
            return replace(command, payload={**command.payload, "response": response})
    return command


async def _texts(context: RunnerContext, name: str) -> bytes:
    tree = context.claim.tree
    return await context.writing.insist(lambda: context.ports.broker.requests.secret(tree, name)) or b""


async def _kept(context: RunnerContext, sq_id: str, name: str, op: UserInputAnswer) -> str:
    """The name under which the texts stand apart; empty if there is no room: the model reads none then."""
    frame: JsonObject = orjson.loads(encode_submission(Submission(short_id(""), op)))
    texts, claim = orjson.dumps(frame["op"]["response"]), context.claim
    place = Place(claim.session, claim.tree, claim.pool)
    try:
        await context.writing.insist(
            lambda: context.ports.broker.requests.keep_secret(place, sq_id, name, texts)
        )
    except SecretsFull:
        return ""
    return name


async def kept_answers(ports: Ports, state: State) -> Sequence[tuple[str, JsonMapping]]:
    """The answers with secret texts that requests of the task show, by the ids of their calls."""
    told: list[tuple[str, JsonMapping]] = []
    tree = TreeId(state.facts.tree_id)
    for secret in state.task.secrets if state.task is not None else ():
        what = f"session {state.facts.session_id}: an answer"
        read = partial(ports.broker.requests.secret, tree, secret.name)
        texts = await patiently(read, ports.sleep, what)
        if texts:
            told.append((secret.call_id, orjson.loads(texts)))
    return told
