"""Commits: everything that makes a session, gives it something, or moves its log on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator.broker import requests
from orchestrator.broker.births import Births
from orchestrator.broker.claims import Claims
from orchestrator.broker.commit_requests import check_bounds, commit_call, others_of, shape_of
from orchestrator.broker.connection import call
from orchestrator.broker.errors import (
    BirthGivenUp,
    QueueFull,
    SecretsFull,
    SubmissionConflict,
    UnknownSession,
)
from orchestrator.broker.port import Deployment
from orchestrator.broker.records import (
    Claim,
    CommitRequest,
    Committed,
    Emitted,
    Fenced,
    NewTree,
    Place,
    Refused,
    Submit,
    Submitted,
    Unstored,
)
from orchestrator.broker.replies import (
    Reply,
    committed,
    fenced,
    queue_id,
    refused,
    unstored,
)
from orchestrator.broker.requests import holder
from orchestrator.broker.storage import Storage
from orchestrator.core.ids import SessionId

if TYPE_CHECKING:
    from orchestrator.broker.reply_fields import (
        CommitMoved,
        CommitOk,
        EmitOk,
        KeepSecretSecrets,
        SubmitFull,
        SubmitOk,
    )
    from orchestrator.core.commit_parts import NewEvent


class Commits(Storage, Births):
    """The port of what writes sessions."""

    def __init__(self, deployment: Deployment, claims: Claims) -> None:
        super().__init__(deployment)
        self._claims = claims

    async def create(self, tree: NewTree) -> bool | Unstored:
        """Creates a root session; False if it was there. Raises `BirthGivenUp` if it took too long."""
        root = tree.root
        reply = await self._run(requests.create_call(self.keys, self.config, tree), root.session)
        match reply.code:
            case "OK" | "DUP" as code:
                self._clock.note(reply.now)
                self._keep(Place(root.session, root.tree, root.pool))
                return code == "OK"
            case "UNSTORED":
                return unstored(reply)
            case "CONFLICT":
                raise SubmissionConflict(root.session)
            case "GIVEN_UP":
                raise BirthGivenUp(root.session)
            case _:
                raise reply.unexpected()

    async def submit(self, submit: Submit) -> Submitted:
        """Puts one submission into the queue, once, and notifies the worker that holds the session."""
        reply = await self._placed(
            submit.session, lambda p: requests.submit_call(self.keys, self.config, submit, p)
        )
        match reply.code:
            case "OK" | "DUP" as code:
                taken: SubmitOk = reply.fields
                done = Submitted(
                    queue_id(taken["n"]),
                    code == "DUP",
                    taken["owner"] or None,
                    taken["quarantined"],
                    self._clock.note(taken["now"]),
                )
            case "CONFLICT":
                raise SubmissionConflict(submit.submission)
            case "FULL":
                full: SubmitFull = reply.fields
                raise QueueFull(submit.session, full["entries"], full["bytes"])
            case "SECRETS":
                kept: KeepSecretSecrets = reply.fields
                raise SecretsFull(submit.session, kept["most"])
            case _:
                raise reply.unexpected()
        if done.holder and not done.duplicate:
            await self._claims.notify([(submit.session, done.holder)])
        return done

    async def commit(self, request: CommitRequest) -> Committed | Fenced | Refused | Unstored:
        """Makes one step visible, whole or not at all; the same commit id again gets the first answer.

        After `Unavailable` send the same request again until it is answered, and start nothing meanwhile;
        after `Unstored`, when its texts are stored again.
        """
        check_bounds(request)
        written, told = others_of(request)
        for attempt in range(2):
            try:
                places = {session: await self._place(session) for session in written}
            except UnknownSession as error:
                return Refused("unknown_target", error.session)
            places.update(await self._places_of(told))
            shape = shape_of(request, places)
            call = commit_call(self.keys, self.config, request, shape)
            reply = await self._run(call, request.claim.session)
            if reply.code != "MOVED" or attempt:
                break
            moved: CommitMoved = reply.fields
            self._places.pop(SessionId(moved["session"]), None)
        return await self._committed(request, reply)

    async def _committed(
        self, request: CommitRequest, reply: Reply
    ) -> Committed | Fenced | Refused | Unstored:
        match reply.code:
            case "OK":
                done: CommitOk = reply.fields
                self._clock.note(done["now"])
                for child in request.tree.children:
                    self._keep(Place(child.session, child.tree, child.pool))
                if held := [(SessionId(session), worker) for session, worker in done["pokes"]]:
                    await self._claims.notify(held)
                if done["woken"]:
                    await self._claims.fire_soon(self.keys.shard_of(request.claim.session))
                return committed(done, request.commit_id)
            case "FENCED":
                return fenced(reply)
            case "REFUSED":
                return refused(reply)
            case "UNSTORED":
                return unstored(reply)
            case _:
                raise reply.unexpected()

    async def _places_of(self, sessions: Sequence[SessionId]) -> dict[SessionId, Place]:
        """The places of the sessions that still exist."""
        found = {}
        for session in sessions:
            with suppress(UnknownSession):
                found[session] = await self._place(session)
        return found

    async def emit(self, claim: Claim, events: Sequence[NewEvent]) -> Emitted | Fenced:
        """Appends events that belong to no commit of their own: deltas."""
        keys = [self.keys.session(claim.session), self.keys.eq(claim.session)]
        emit = call("emit", keys, **holder(claim), **requests.eq_limits(self.config), events=events)
        reply = await self._run(emit, claim.session)
        match reply.code:
            case "OK":
                done: EmitOk = reply.fields
                return Emitted(done["n"], queue_id(done["sq"]), self._clock.note(done["now"]))
            case "FENCED":
                return fenced(reply)
            case _:
                raise reply.unexpected()
