"""A tree to act in: agents that hold their claims, and say in one line what a step of theirs does."""

from __future__ import annotations

import itertools
from typing import Any

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import Claimed, CommitRequest, Committed, Fenced, NewTree, Refused, Stored
from orchestrator.core.commit_parts import Debit, NewSession, NewSubmission, OutboundMessage, TreeEvent
from orchestrator.core.ids import AgentId, SessionId, TreeId
from tests.broker.actors import POOL, claimed, new_session, session_id, step

_commits = itertools.count(1)
OP = (NewSubmission("client", "s0", b"op"),)


class Agent:
    """A held session, and where its log is."""

    def __init__(self, broker: Broker, held: Claimed) -> None:
        self.broker = broker
        self.held = held
        self.at: Claimed | Committed = held
        self.cursor: str | None = held.sq_tip

    @property
    def session(self) -> SessionId:
        return self.held.claim.session

    @property
    def tree(self) -> TreeId:
        return self.held.claim.tree

    def request(self, **more: Any) -> CommitRequest:
        payloads = more.pop("payloads", (b"entry",))
        return step(self.at, self.held.claim, f"commit-{next(_commits)}", payloads, **more)

    async def does(self, **more: Any) -> Committed:
        """A step that must be accepted."""
        answer = await self.broker.commits.commit(self.request(**more))
        assert isinstance(answer, Committed), answer
        self.at = answer
        return answer

    async def refused(self, **more: Any) -> Refused:
        """A step that must be refused."""
        answer = await self.broker.commits.commit(self.request(**more))
        assert isinstance(answer, Refused), answer
        return answer

    async def parks(self, **more: Any) -> Committed:
        done = await self.does(cursor=self.cursor, release="park", **more)
        assert done.released
        return done

    async def spawns(self, agent_id: int, pool: str = POOL) -> Agent:
        """A child with one submission, and its holder."""
        child = NewSession(
            session_id(), self.tree, pool, AgentId(agent_id), self.session, submissions=OP, status="queued"
        )
        await self.does(children=(child,), debits=(Debit("slots", 1, "limit:slots"),))
        return await claims(self.broker, child.session)

    async def claims_again(self) -> None:
        """Takes itself up after it was woken."""
        claim_id = f"claim-{next(_commits)}"
        self.held = self.at = await claimed(self.broker, self.session, "w1", claim_id)
        self.cursor = self.held.sq_tip

    async def is_archived(self) -> None:
        """Comes to rest and is put away, as upkeep does it."""
        await self.parks()
        assert isinstance(await self.is_put_away(), Stored)

    async def is_put_away(self, closed_root: SessionId | None = None) -> Stored | Fenced | Refused:
        """Answers what upkeep is told that puts away the session, which is at rest."""
        found = await self.broker.claims.claim_session(
            self.session, "upkeep", f"claim-{next(_commits)}", parked=True
        )
        assert found is not None
        await self.broker.commits.snapshot(found.claim, found.seq, b"state")
        await self.broker.commits.seal(found.claim, found.seq, b"manifest")
        return await self.broker.commits.archive(found.claim, closed_root)


async def claims(broker: Broker, session: SessionId) -> Agent:
    return Agent(broker, await claimed(broker, session, "w1", f"claim-{session}"))


async def root_of(broker: Broker, **summary: bytes) -> Agent:
    """A root at work; `limit_tokens=b"5"` sets the field `limit:tokens`."""
    root = new_session(submissions=OP)
    fields = {name.replace("_", ":", 1): value for name, value in summary.items()}
    await broker.commits.create(NewTree(root, fields))
    return await claims(broker, root.session)


def letter(to: SessionId, key: str, *, interrupt: bool = False, counted: bool = True) -> OutboundMessage:
    return OutboundMessage(to, "message" if counted else "status", key.encode(), key, interrupt)


def depths_event(*targets: SessionId, inbox: SessionId) -> TreeEvent:
    """An event that tells how many messages and interrupts wait in `inbox`."""
    return TreeEvent((b"inbox ", b"+", b""), targets, inbox)
