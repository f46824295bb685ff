"""Open approvals of a tree or of the fleet: which ones a pattern means, and their decision.

An answer goes to the very session that asked, as a submission like any other; who gave it
and when is in that session's log. What became of it is read there, too: somebody else may
have been faster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from orchestrator.broker.records import OpenApproval, SessionHead
from orchestrator.cli.asking import answer_op
from orchestrator.cli.conversation import new_submission_id
from orchestrator.cli.faults import ExitCode, Fault, no_worker
from orchestrator.cli.live import command_text, variables_text
from orchestrator.cli.opening import Opened
from orchestrator.cli.patterns import denies, names_call, why_not_allowed
from orchestrator.core import facts as f
from orchestrator.core.blobs import references, resolve
from orchestrator.core.entries import DENDRO
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.rules_surfacing import WITHDRAWN
from orchestrator.gateways.client import Client
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.submission import Submission

PATIENCE_S = 10.0
LOOK_S = 0.05
WORDS: Mapping[str, str] = {
    "approved": "allowed",
    "approved_for_session": "allowed for the session",
    "denied": "denied",
    "abort": "denied, and its turn aborted",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """An open request, as a person decides about it."""

    session: SessionId
    tree: TreeId
    agent_id: int
    agent_path: str
    call_id: str
    opened_ms: int
    request: Mapping[str, Any]
    seq: int
    """How far the session's log went when it was listed: its decision comes after that."""
    pool: str = ""
    """Which workers may take the answer."""

    @property
    def subject(self) -> str:
        """What a person reads: the command line with the variables that it is given, or the paths."""
        if self.request["type"] == "exec_approval_request":
            return f"{variables_text(self.request)}{command_text(self.request['command'])}"
        return " ".join(self.request["changes"])

    @property
    def call(self) -> str:
        """The call, told apart from another agent's of the same id."""
        return f"{self.agent_id}:{self.call_id}"

    @property
    def named_request(self) -> dict[str, Any]:
        """The request as the root's events tell it."""
        who = {"agent_id": self.agent_id, "session_id": self.session, "agent_path": self.agent_path}
        return {**self.request, **who}

    def meant_by(self, pattern: str, decision: ReviewDecision) -> bool:
        """A call; or a glob: to allow, over all that would run or change, to deny, over any part of it."""
        if names_call(pattern, self.agent_id, self.call_id):
            return True
        if decision is ReviewDecision.DENIED:
            return denies(pattern, self.request)
        return not why_not_allowed(pattern, self.request)

    def passed_over(self, pattern: str) -> str:
        """Why a pattern that matches a part of it does not allow it; empty if no part matches."""
        if not denies(pattern, self.request) or not (why := why_not_allowed(pattern, self.request)):
            return ""
        return f"{self.call} ({self.subject}) is not allowed by {pattern!r}: {why}"

    def value(self) -> dict[str, Any]:
        """For programs."""
        return {
            "tree_id": self.tree,
            "session_id": self.session,
            "agent_id": self.agent_id,
            "agent_path": self.agent_path,
            "call_id": self.call_id,
            "opened_ms": self.opened_ms,
            "request": dict(self.request),
        }


async def open_requests_of(found: Opened, tree: TreeId | None) -> list[Asked]:
    """What waits for somebody, oldest first; of the whole fleet without a tree."""
    asked = []
    for approval in await found.broker.approvals():
        place = await found.broker.head(approval.session)
        if place is not None and tree in (None, place.tree):
            asked.append(await _asked(found, approval, place))
    return asked


async def _asked(found: Opened, approval: OpenApproval, head: SessionHead) -> Asked:
    told = orjson.loads(approval.payload)
    texts = await found.large_texts(head.tree, references(told))
    whole = resolve(told, texts.get)
    return Asked(
        session=approval.session,
        tree=head.tree,
        agent_id=whole.get("agent_id", 0),
        agent_path=whole.get("agent_path", "0"),
        call_id=approval.key,
        opened_ms=approval.opened_ms,
        request=whole["event"],
        seq=head.seq,
        pool=head.pool,
    )


# ── choosing ──────────────────────────────────────────────────────────────────────────────────

Wishes = Mapping[ReviewDecision, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Each request that some pattern means, with its decision; and why others are not allowed."""

    decisions: tuple[tuple[Asked, ReviewDecision], ...]
    passed_over: tuple[str, ...]


def chosen(
    asked: Sequence[Asked], wishes: Wishes, decided_before: Mapping[str, Sequence[str]] | None = None
) -> Chosen:
    """Finds what the patterns mean; `decided_before` has lines for patterns that mean earlier requests.

    Raises `Fault` for a pattern that means none, and for a request of which two different things are said.
    """
    decided: dict[int, ReviewDecision] = {}
    passed_over: list[str] = []
    for decision, patterns in wishes.items():
        for pattern in patterns:
            meant = [place for place, request in enumerate(asked) if request.meant_by(pattern, decision)]
            others = [request for place, request in enumerate(asked) if place not in meant]
            near = [] if decision is ReviewDecision.DENIED else [one.passed_over(pattern) for one in others]
            if not meant:
                earlier = (decided_before or {}).get(pattern, ())
                reasons = "".join(f"; {why}" for why in (*near, *earlier) if why)
                raise Fault(
                    f"no open request is meant by {pattern!r}; `dendro approvals` lists them{reasons}"
                )
            passed_over += filter(None, near)
            for place in meant:
                if decided.setdefault(place, decision) is not decision:
                    raise Fault(
                        f"{asked[place].call} ({asked[place].subject}) is meant by two different answers",
                        ExitCode.USAGE,
                    )
    decisions = tuple((asked[place], decision) for place, decision in sorted(decided.items()))
    return Chosen(decisions, tuple(dict.fromkeys(passed_over)))


# ── deciding ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Decided:
    """How a request was decided, and by whom; `decision` is empty while no worker has taken the answer."""

    asked: Asked
    decision: str
    who: str
    ours: bool

    def line(self) -> str:
        """What a person is told."""
        about = f"{self.asked.call}  {self.asked.subject}"
        if not self.decision:
            return f"{about}: handed in, and kept; {no_worker(self.asked.pool)}"
        if self.decision == WITHDRAWN:
            return f"{about}: withdrawn, since its turn ended first"
        words = WORDS.get(self.decision, self.decision)
        return f"{about}: {words}" if self.ours else f"{about}: already {words}, by {self.who or 'a client'}"


async def decide(client: Client, found: Opened, asked: Asked, decision: ReviewDecision) -> Decided:
    """Answers a request, and waits for its decision."""
    id = new_submission_id()
    # The session is the agent's own: its call's id is enough.
    op = answer_op({**asked.request, "agent_id": None}, decision)
    await client.submit(asked.session, Submission(SubmissionId(id), op))
    try:
        async with asyncio.timeout(PATIENCE_S):
            # An answer is no event, so it has to be looked for.
            while (answer := await _answer(found, asked)) is None:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        return Decided(asked, "", "", ours=False)
    decided, who = answer
    ours = who == client.who and decided == decision
    return Decided(asked, decided, who, ours)


async def _answer(found: Opened, asked: Asked) -> tuple[str, str] | None:
    """The decision in the session's log, and its author: the first for this call since it was listed."""
    after = asked.seq
    while page := await found.broker.read_rollout(asked.session, after):
        for stored in page:
            line = orjson.loads(stored.payload)
            if line["type"] != DENDRO:
                continue
            match f.decode(line["payload"]):
                case f.Answered(call_id=call_id, decision=decision, who=who) if call_id == asked.call_id:
                    return decision, who
                case f.TaskEnded():
                    return WITHDRAWN, ""
                case _:
                    pass
        after = page[-1].seq
    return None
