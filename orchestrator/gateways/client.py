"""A client of sessions: creates them, submits to them, follows them.

Everything that speaks for people goes through here, whatever its wire. A client has an id
of its own (a UUID per process): its submissions are idempotent by (client, id), so sending
one again after a lost answer is always right.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

from orchestrator.broker import records
from orchestrator.broker.blobs import Texts
from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import BrokerError, SessionArchived, Unavailable, UnknownSession
from orchestrator.broker.follow import (
    BEGINNING,
    NOWHERE,
    CaughtUp,
    EqCursor,
    EventReader,
    Followed,
    Gap,
    Item,
    Replayed,
    follow,
)
from orchestrator.broker.notices import Answer, until
from orchestrator.broker.open_requests import RequestChange
from orchestrator.broker.seal import LogWriter, seal_session
from orchestrator.core.birth import Birth, first_entries
from orchestrator.core.blobs import references, resolve
from orchestrator.core.chain import ChainKey
from orchestrator.core.commit_parts import NewSession, new_session
from orchestrator.core.entries import encode_entry
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import InvalidSessionId, SessionId, TreeId
from orchestrator.core.registry import first_limits
from orchestrator.core.secrets import MOST_SECRET_BYTES, SET_APART, set_apart
from orchestrator.core.sender import Sender
from orchestrator.core.settings import NO_HISTORY, HistoryHead
from orchestrator.gateways.bursts import Burst, Messages, bursts_of, for_tenant
from orchestrator.gateways.permissions import Permits
from orchestrator.protocol.bounds import check_bounds, check_op_bounds
from orchestrator.protocol.codec import encode_submission
from orchestrator.protocol.events import WarningEvent
from orchestrator.protocol.ops import (
    AddToHistory,
    ConfigureSession,
    MessageAgent,
    Op,
    Plan,
    Review,
    RunUserShellCommand,
    UserInput,
    UserInputAnswer,
    UserTurn,
)
from orchestrator.protocol.policy import WorkspaceWrite
from orchestrator.protocol.submission import MalformedSubmission, Submission
from orchestrator.protocol.wire import written
from orchestrator.views.event import Event, Message
from orchestrator.views.turns.log_events import told_by

RETRY_S = 0.1
RETRY_MAX_S = 2.0
RESTORES = 3
SPOKEN = UserInput | UserTurn | MessageAgent | Plan | Review | RunUserShellCommand
"""Ops by which a person speaks in a session, or has something done there."""
MOST_STATED = 100
"""Characters of a program's name for itself that the log keeps."""

GAP_TEXTS = {
    "trimmed": "events between were not kept: what follows is read from the log, without its deltas",
    "rewound": "the server was put back to an earlier moment: what follows is its log from the beginning",
}


def is_rewound(event: Event) -> bool:
    """Whether an event says that the log begins again: what was told of it never happened."""
    return event.kind is WarningEvent and event.msg.get("message") == GAP_TEXTS["rewound"]


async def _no_copies() -> Sequence[str]:
    return ()


@record
class ClientPorts:
    """A client's external dependencies."""

    broker: Broker
    texts: Texts
    random_bytes: Callable[[int], bytes]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chain_key: ChainKey | None = None
    restore: Callable[[SessionId], Awaitable[object]] | None = None
    """Brings an archived session back; without it, submitting to one is refused."""
    keeps_history: bool = True
    """Whether prompts are handed on to the history that the person's sessions share."""
    events: EventReader | None = None
    """The reads of followed sessions, where several clients share them; else the broker's own."""
    messages: Messages | None = None
    """The messages that were read last, where several clients share them."""
    may_create: Callable[[], Awaitable[None]] | None = None
    """Raises where no worker could go on with a session that is made here."""
    insists: bool = True
    """Whether a request is sent until Redis answers; without it the first `Unavailable` is raised."""


class Client:
    """A process's client for its sessions."""

    def __init__(
        self,
        ports: ClientPorts,
        client_id: str,
        who: str = "",
        namespace: str | None = None,
        permits: Permits | None = None,
        by: Sender | None = None,
    ) -> None:
        """`namespace`: the only one whose sessions there are for this client; None: it sees every session.

        `permits`: the check of each submission; None: all are permitted. `by`: `who`, as the door knows them;
        the log has it of each submission, and of each session that the client makes.
        """
        self._ports = ports
        self.client_id = client_id
        self.who = who
        self.by = by
        self.namespace = namespace
        self._permits = permits
        self._proof_key = b""

    def known_as(self, client_id: str) -> Client:
        """The same client under another id: what it repeats under that id, at any process, is kept once."""
        other = copy(self)
        other.client_id = client_id
        return other

    def calling_itself(self, name: str) -> None:
        """Notes the name that the program at the other end has given itself."""
        if self.by is not None:
            self.by = replace(self.by, stated_name=name[:MOST_STATED])

    def keeps(self, op: Op) -> bool:
        """Whether an op is to be submitted at all: without a history, a prompt for it is dropped here."""
        return self._ports.keeps_history or not isinstance(op, AddToHistory)

    async def history(self) -> HistoryHead:
        """The history of prompts of this client's person; an empty one if none is kept."""
        if not self._ports.keeps_history:
            return NO_HISTORY
        noise = self._ports.random_bytes(8)
        head: HistoryHead = await self._insist(
            lambda: self._ports.broker.requests.history_head(self.who, noise)
        )
        return head

    async def create(
        self,
        birth: Birth,
        *,
        source: records.Source = "cli",
        ephemeral: bool = False,
        copies: Callable[[], Awaitable[Sequence[str]]] = _no_copies,
    ) -> SessionId:
        """Creates a root session in the client's namespace; safe to repeat with the same birth.

        Lists show it by its `source`, or not at all if it is `ephemeral`. `copies` stores large texts from
        elsewhere for it, and answers their hashes; again if Redis loses them before the session is made.

        Raises `MalformedSubmission` for settings that are larger than an operation may set them.
        """
        check_op_bounds(_as_op(birth))
        if self._ports.may_create is not None:
            await self._insist(self._ports.may_create)
        session, tree = SessionId(birth.facts.session_id), TreeId(birth.facts.tree_id)
        blobs: dict[str, bytes] = {}
        root = self._born(birth, session, tree, blobs)
        labels = records.Labels(self.namespace or "", source, self.who, ephemeral)
        new = records.NewTree(root, first_limits(birth.facts.tree_rules), labels, birth.announced_ms)
        await self._insist(lambda: self._stands(new, blobs, copies))
        return session

    async def _stands(
        self, new: records.NewTree, blobs: Mapping[str, bytes], copies: Callable[[], Awaitable[Sequence[str]]]
    ) -> None:
        """Stores the texts of a birth, and makes the session; raises `Unavailable` if Redis lost one."""
        copied = await copies()
        await self._ports.texts.store(new.root.tree, blobs, unborn=True)
        texts = tuple(dict.fromkeys([*copied, *blobs]))
        answer = await self._ports.broker.commits.create(dataclasses.replace(new, texts=texts))
        if isinstance(answer, records.Unstored):
            raise Unavailable(f"Redis lost {len(answer.digests)} texts of a session that is being made")

    def _born(self, birth: Birth, session: SessionId, tree: TreeId, blobs: dict[str, bytes]) -> NewSession:
        """The first entries as the broker takes them; their large texts are added to `blobs`."""
        birth = replace(birth, by=self.by)
        secret = self._ports.chain_key.secret if self._ports.chain_key else b""
        writer = LogWriter(self._ports.random_bytes, secret)
        log = tuple(encode_entry(entry, birth.at_ms, blobs) for entry in first_entries(birth))
        source = birth.source.session if birth.source is not None else None
        root = replace(new_session(birth.facts, birth.settings, forked_from=source), unsealed=log)
        return seal_session(root, writer)

    async def submit(self, to: SessionId | records.SessionHead, submission: Submission) -> records.Submitted:
        """Puts a submission into the session's SQ; acknowledged means kept.

        The session is named by its head, which says whether this client may see it, or by its id. Words bring
        one back into the lists that was put away.
        The texts of an answer that may be secret are set apart from it: no queue and no log has them.
        Raises the broker's errors: `SubmissionConflict`, `QueueFull`, `UnknownSession`, `SessionArchived`;
        `MalformedSubmission` for a field that holds more than it may, and `NotPermitted`.
        """
        check_bounds(submission)
        await self._check_visible(to)
        session = to.session if isinstance(to, records.SessionHead) else to
        if self._permits is not None:
            await self._permits(session, submission.op)
        request = self._request(session, submission)
        restore = self._ports.restore
        for _ in range(RESTORES):
            try:
                answer: records.Submitted = await self._insist(
                    lambda: self._ports.broker.commits.submit(request)
                )
                if answer.shelved and isinstance(submission.op, SPOKEN):
                    await self._bring_back(session)
                return answer
            except SessionArchived:
                if restore is None:
                    raise
                # It may be archived again before the submission arrives, but hardly twice.
                await self._insist(lambda: restore(session))
        raise SessionArchived(session)

    async def _bring_back(self, session: SessionId) -> None:
        """Brings a session that was put away back into the lists, as a person speaks in it again."""
        # The words are kept, whatever becomes of the list: it is gone, damaged, or Redis has gone away.
        with suppress(BrokerError):
            await self._insist(lambda: self._ports.broker.trees.enlist(session, shelve=False))

    def _request(self, session: SessionId, submission: Submission) -> records.Submit:
        payload = encode_submission(submission)
        by = self.by.encoded() if self.by is not None else b""
        plain = records.Submit(session, self.client_id, submission.id, payload, sender=self.who, by=by)
        if not (isinstance(submission.op, UserInputAnswer) and submission.op.response.answers):
            return plain
        self._proof_key = self._proof_key or self._ports.random_bytes(16)
        payload, texts = set_apart(payload, self._proof_key)
        if len(texts) > MOST_SECRET_BYTES:
            found = f"op.response: at most {MOST_SECRET_BYTES:,} bytes as JSON, this has {len(texts):,}"
            raise MalformedSubmission(found, submission.id)
        return dataclasses.replace(plain, payload=payload, kind=SET_APART, secret=texts)

    async def _insist(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """Sends the same request until it is answered: every one of them may be repeated."""
        delay = RETRY_S
        while True:
            try:
                return await send()
            except Unavailable:
                if not self._ports.insists:
                    raise
                await self._ports.sleep(delay)
                delay = min(2 * delay, RETRY_MAX_S)

    async def head(self, session: SessionId) -> records.SessionHead | None:
        """The head of a session, without reading its log; None if there is none."""
        try:
            head: records.SessionHead | None = await self._insist(
                lambda: self._ports.broker.logs.head(session)
            )
        except InvalidSessionId:
            # It names a shard that this deployment does not have.
            return None
        return head if head is None or self._sees(head.labels.namespace) else None

    async def deletion(self, session: SessionId) -> records.Deleted | None:
        """When and by whom a session was deleted that this client would see; None if that is not known."""
        try:
            found: records.Deleted | None = await self._insist(
                lambda: self._ports.broker.trees.deletion_of(session)
            )
        except InvalidSessionId:
            return None
        return found if found is None or self._sees(found.namespace) else None

    async def family(self, head: records.SessionHead) -> tuple[records.SessionHead, ...]:
        """The heads of all sessions of a session's tree that are still there, its own among them."""
        registry = await self._insist(lambda: self._ports.broker.trees.registry(head.tree))
        sessions = dict.fromkeys((head.session, *(agent.session for agent in registry.agents.values())))
        found: tuple[records.SessionHead, ...] = await self._insist(
            lambda: self._ports.broker.logs.heads(tuple(sessions))
        )
        return found

    def _sees(self, namespace: str) -> bool:
        return self.namespace is None or namespace == self.namespace

    async def _check_visible(self, of: SessionId | records.SessionHead) -> None:
        """Raises `UnknownSession` for one of another namespace: nobody learns that it exists."""
        if self.namespace is None:
            return
        if isinstance(of, records.SessionHead):
            session, namespace = of.session, of.labels.namespace
        else:
            session, namespace = of, await self._insist(lambda: self._ports.broker.logs.namespace(of))
        if not self._sees(namespace):
            raise UnknownSession(session)

    async def follow(
        self,
        session: SessionId,
        cursor: EqCursor = BEGINNING,
        *,
        newborn: bool = False,
        on_gap: Callable[[EqCursor | None], None] | None = None,
    ) -> AsyncIterator[Event]:
        """The session's events after `cursor`, for ever; a gap is reported by a `warning`, never skipped.

        `newborn`: the session was made a moment ago, and the cursor is its beginning. `on_gap` is called with
        None before the warning, and with the place behind it once all that the log tells of it was told.
        That has what people decided, too: nothing else there tells that a refused request is not open.
        """
        async for burst in self.bursts(session, cursor, newborn=newborn, on_gap=on_gap, decisions=True):
            for event in burst.events:
                yield event

    async def bursts(
        self,
        session: SessionId,
        cursor: EqCursor = BEGINNING,
        *,
        newborn: bool = False,
        on_gap: Callable[[EqCursor | None], None] | None = None,
        decisions: bool = False,
    ) -> AsyncIterator[Burst]:
        """The same, those together that are there at once; behind a gap without people's `decisions`.

        Live, some of these are told to clients of lines, and some are not.
        """
        await self._check_visible(session)
        at = cursor
        while True:
            try:
                reader = self._ports.events or self._ports.broker.logs
                async for item in follow(reader, session, at, newborn=newborn):
                    if isinstance(item, Gap) and item.reason == "rewound":
                        # Its log is owed from now on, also if Redis fails before all of it was read.
                        at = NOWHERE
                    if on_gap is not None and isinstance(item, Gap | CaughtUp):
                        on_gap(item.cursor if isinstance(item, CaughtUp) else None)
                    for found in self._bursts(item, decisions=decisions):
                        burst = await self._whole_burst(session, found) if found.refers else found
                        yield for_tenant(burst) if self.namespace else burst
                        at = burst.events[-1].cursor or at
                    # The entries of a gap that were told are not owed again, wherever the rest is cut off.
                    at = item.cursor if isinstance(item, CaughtUp | Replayed) else at
            except Unavailable:
                newborn = False
                await self._ports.sleep(RETRY_S)

    async def until(
        self,
        sessions: Collection[SessionId],
        look: Callable[[], Awaitable[Answer]],
        patience_s: float | None = None,
    ) -> Answer | None:
        """`look`'s first answer that is true, as `orchestrator.broker.notices` has it."""
        return await until(self._ports.broker, sessions, look, patience_s)

    async def requests(self, idle_s: float = 5.0) -> AsyncIterator[RequestChange]:
        """The open requests of the client's namespace, and then each that is opened or settled, for ever."""
        feed = self._ports.broker.requests.request_feed(self.namespace)
        try:
            while True:
                try:
                    for change in await feed.changes(idle_s):
                        yield change
                except Unavailable:
                    await self._ports.sleep(RETRY_S)
        finally:
            await feed.aclose()

    def _bursts(self, item: Item, *, decisions: bool) -> tuple[Burst, ...]:
        match item:
            case Followed(events):
                messages = self._ports.messages
                return messages.bursts(events) if messages is not None else bursts_of(events, Message)
            case Gap(reason):
                return (Burst((Event("", written(WarningEvent(message=GAP_TEXTS[reason]))),)),)
            case Replayed(stored):
                event = told_by(stored, facts=decisions)
                return () if event is None else (Burst((event,), refers=True),)
            case CaughtUp():
                return ()

    async def _whole_burst(self, session: SessionId, burst: Burst) -> Burst:
        (event,) = burst.events
        return Burst((replace(event, msg=await self._whole(session, event.msg), shared=None),))

    async def _whole(self, session: SessionId, message: dict[str, Any]) -> dict[str, Any]:
        needed = set(references(message))
        if not needed:
            return message
        tree = (await self._ports.broker.logs.place(session)).tree
        await self._ports.texts.fetch(tree, needed)
        whole: dict[str, Any] = resolve(message, self._ports.texts.get)
        return whole


# ── trees that stand still ────────────────────────────────────────────────────────────────────────


AWAITING: Mapping[str, str] = {"awaiting_approval": "an approval", "awaiting_answer": "a question"}
"""The statuses of a session that waits for a person, and what is open then."""
PAUSED = "paused"
"""The status of a session that waits for room in its tree's budget."""
QUARANTINED = "quarantined"
"""In the place of the status of a session that no worker may take until a person readmits it."""
STANDING = frozenset(AWAITING) | {PAUSED, "waiting"}
"""Statuses in which a session that nobody holds may wait for a person, or for agents that do."""


async def standing(client: Client, head: records.SessionHead) -> frozenset[str]:
    """The statuses of a tree that goes on only if a person or a program does something, if only for an agent.

    None while a worker has anything to do for the session, or for one that it waits for: an agent that works
    may also give back the room in the budget that another one lacks.
    """
    heads = await client.family(head) if head.status in ("waiting", PAUSED) else (head,)
    if not all(map(_is_at_rest, heads)):
        return frozenset()
    return frozenset(QUARANTINED if each.quarantined else each.status for each in heads)


def _is_at_rest(head: records.SessionHead) -> bool:
    """Whether no worker has anything to do for a session."""
    read = head.status == PAUSED or not head.pending_messages
    return head.quarantined or (read and head.parked and head.status in STANDING | records.AT_REST)


def _as_op(birth: Birth) -> ConfigureSession:
    """The settings of a new session, as the operation that sets the same later."""
    settings, facts = birth.settings, birth.facts
    return ConfigureSession.model_construct(
        model=settings.model,
        model_provider=settings.model_provider,
        sandbox_policy=WorkspaceWrite.model_construct(
            writable_roots=tuple(settings.sandbox_policy.get("writable_roots") or ())
        ),
        cwd=settings.cwd,
        base_instructions=facts.base_instructions,
        user_instructions=birth.user_instructions,
    )
