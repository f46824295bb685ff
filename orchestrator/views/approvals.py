"""Open approvals of a tree or of the fleet: which ones a pattern means, and their decision.

An answer goes to the very session that asked, as a submission like any other; who gave it
and when is in that session's log. Its outcome is read there, too: another answer may
have come first.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from orchestrator.broker.records import OpenApproval, SessionHead
from orchestrator.core.blobs import references, resolve
from orchestrator.core.commit_parts import WITHDRAWN, OpenRequest
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import Agent, listed_agents
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.views import Contradiction, SetAside, ViewError
from orchestrator.views.find import short_ids
from orchestrator.views.readable import readable, readable_head
from orchestrator.views.sessions import no_worker

if TYPE_CHECKING:
    from orchestrator.core.commands import AnswerOp
    from orchestrator.protocol.ops import Shown
    from orchestrator.requests import Request
    from orchestrator.rollouts.log_source import LogSource
    from orchestrator.rollouts.signed_notes import Signer

NOT_TAKEN = "not taken"
"""In the place of a decision: the session has refused the answer, and the request stays open."""
WORDS: Mapping[str, str] = {
    "approved": "allowed",
    "approved_for_session": "allowed for the session",
    "denied": "denied",
    "abort": "denied, and its turn aborted",
    "cancelled": "left without an answer",
    "revised": "sent back for changes",
    "accept": "accepted",
    "decline": "declined",
    "cancel": "left without an answer",
    "failed": "ended, and its agent told that it failed",
}


def decision_text(decision: str) -> str:
    """A decision of the log for a person."""
    from orchestrator.core.calls.approval_policy import amended

    prefix = amended(decision)
    if prefix:
        return f"allowed, and in its session all that begins with `{shlex.join(prefix)}`"
    return WORDS.get(decision, decision)


@record
class Asked:
    """An open request, as a person decides about it."""

    session: SessionId
    tree: TreeId
    agent_id: int
    agent_path: str
    call_id: str
    opened_ms: int
    request: Request
    seq: int
    """The end of the session's log when the request was listed: the decision comes after that entry."""
    pool: str = ""
    """The pool whose workers may take the answer."""
    turn: str = ""
    """The turn that it belongs to; empty where an older version has asked."""
    digest: str = ""
    """The digest of its event, as the queue says; empty where an older version has asked."""
    quarantined: bool = False
    """Whether its session was quarantined when the answer was handed in: no worker may take it."""

    @property
    def subject(self) -> str:
        """The subject of the request, in one line."""
        return self.request.subject

    @property
    def call(self) -> str:
        """The call with its agent's number, since another agent's call may have the same id."""
        return f"{self.agent_id}:{self.call_id}"

    @property
    def named_request(self) -> Request:
        """The request as the root's events publish it."""
        return self.request.asked_by(self.agent_id, self.session, self.agent_path)

    def meant_by(self, pattern: str, decision: ReviewDecision) -> bool:
        """A call; or a glob: to allow, over all that would run or change, to deny, over any part of it."""
        from orchestrator.views.patterns import denies, names_call, why_not_allowed

        if names_call(pattern, self.agent_id, self.call_id):
            return True
        if decision is ReviewDecision.DENIED:
            return denies(pattern, self.request)
        return not why_not_allowed(pattern, self.request)

    def passed_over(self, pattern: str) -> str:
        """The reason why a pattern that matches a part of it does not allow it; empty if no part matches."""
        from orchestrator.views.patterns import denies, why_not_allowed

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
            "where": self.request.where or None,
            "sandboxed": self.request.sandboxed
            if (reach := self.request.event.get("reach")) is None
            else reach["sandboxed"],
            "request": dict(self.request.event),
        }


async def open_requests_of(
    found: LogSource, tree: TreeId | None, namespace: str | None = None
) -> list[Asked]:
    """The open requests of a tree, oldest first; of the whole fleet if `tree` is None.

    `namespace` is the only one whose sessions there are; None: there are all.
    """
    requests = found.broker.requests
    # The sessions of a tree are in one shard.
    shards = range(requests.config.shards) if tree is None else (requests.keys.shard_of(tree),)
    opened = await requests.approvals_of(shards)
    heads = await readable(found.broker.logs, list(dict.fromkeys(one.session for one in opened)))
    places = {
        head.session: head
        for head in heads
        if tree in (None, head.tree) and namespace in (None, head.labels.namespace)
    }
    read = [await _asked(found, one, places[one.session]) for one in opened if one.session in places]
    return [asked for asked in read if asked is not None]


async def asked_of(found: LogSource, approval: OpenApproval) -> Asked | None:
    """The open request with all that it asks; None if its session is gone, or cannot be read."""
    head = await readable_head(found.broker.logs, approval.session)
    return None if head is None else await _asked(found, approval, head)


async def _asked(found: LogSource, approval: OpenApproval, head: SessionHead) -> Asked | None:
    from orchestrator.requests import request_of  # a list of no requests needs no events

    told = OpenRequest.stated(approval.payload)
    if told is None:
        # It hides none of the requests that can be read.
        return None
    texts = await found.large_texts(head.tree, references(told))
    open_request = OpenRequest.read(resolve(told, texts.get))
    return Asked(
        session=approval.session,
        tree=head.tree,
        agent_id=open_request.agent_id,
        agent_path=open_request.agent_path,
        call_id=approval.key,
        opened_ms=approval.opened_ms,
        request=request_of(open_request.event, open_request.sandboxed),
        seq=head.seq,
        pool=head.pool,
        turn=open_request.turn,
        digest=open_request.digest,
    )


def signed(asked: Asked, op: AnswerOp, signer: Signer, shown: Shown, now_ms: int) -> AnswerOp:
    """The answer with what was shown, and a person's signature under both and the request.

    The answer of a program, to a call of a client's tool, stays as it is.
    """
    from orchestrator.core.calls.ask import digest_of as response_digest
    from orchestrator.core.commands import signed_answer
    from orchestrator.core.decide.call import reply_of
    from orchestrator.core.entries import request_digest
    from orchestrator.protocol.ops import AnswerSignature, DynamicToolResponse

    if isinstance(op, DynamicToolResponse):
        return op
    reply = reply_of(op)
    words = reply.response is not None and not _hides(op, asked)
    said = signed_answer(
        asked.session,
        asked.turn,
        asked.call_id,
        reply.decision,
        now_ms,
        sha256(shown.text.encode("utf-8", "surrogatepass")).hexdigest(),
        # What is signed is the event that was read; a worker of before holds it against no request.
        request=asked.digest and request_digest(asked.turn, asked.request.event),
        response=response_digest(reply.response) if words and reply.response is not None else "",
    )
    sig = base64.b64encode(signer.private.sign(said.encode("utf-8", "surrogatepass"))).decode()
    signature = AnswerSignature(answered_ms=now_ms, sig=sig, key=str(signer.key))
    return op.model_copy(update={"shown": shown, "signature": signature})


def _hides(op: AnswerOp, asked: Asked) -> bool:
    """Whether the answer has a secret, of which the log has no digest: it could be guessed by one."""
    from orchestrator.protocol.ops import UserInputAnswer

    if not isinstance(op, UserInputAnswer):
        return False
    given, questions = op.response.answers, asked.request.event["questions"]
    secret = (str(question["id"]) for question in questions if question.get("isSecret"))
    return any(id in given and given[id].answers for id in secret)


# ── choosing ──────────────────────────────────────────────────────────────────────────────────────

Wishes = Mapping[ReviewDecision, Sequence[str]]


@record
class Chosen:
    """Each request that some pattern means, with its decision; and why others are not allowed."""

    decisions: tuple[tuple[Asked, ReviewDecision], ...]
    passed_over: tuple[str, ...]


def chosen(
    asked: Sequence[Asked], wishes: Wishes, decided_before: Mapping[str, Sequence[str]] | None = None
) -> Chosen:
    """Finds what the patterns mean; `decided_before` has lines for patterns that mean earlier requests.

    Raises `ViewError` for a pattern that means none, or that names the call of an agent and means calls of
    several trees; `Contradiction` for a request of which two different things are said.
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
                raise ViewError(
                    f"no open request is meant by {pattern!r}; `dendro approvals` lists them{reasons}"
                )
            named = [asked[place].tree for place in meant if asked[place].call == pattern]
            if len(named) > 1:
                trees = ", ".join(named)
                raise ViewError(
                    f"{len(named)} calls of that name wait, {pattern!r}: name one tree of {trees}"
                )
            passed_over += filter(None, near)
            for place in meant:
                if decided.setdefault(place, decision) is not decision:
                    raise Contradiction(
                        f"{asked[place].call} ({asked[place].subject}) is meant by two different answers"
                    )
    decisions = tuple((asked[place], decision) for place, decision in sorted(decided.items()))
    return Chosen(decisions, tuple(dict.fromkeys(passed_over)))


@record
class Decided:
    """How a request was decided, and by whom; `decision` is empty while no worker has taken the answer."""

    asked: Asked
    decision: str
    who: str
    ours: bool
    at_ms: int = 0
    """The moment of the decision; 0 where it is not known."""

    @property
    def kept_since(self) -> str:
        """The reason why the answer waits, with the remedy."""
        return str(SetAside(self.asked.session)) if self.asked.quarantined else no_worker(self.asked.pool)

    def line(self) -> str:
        """The decision in words for a person."""
        about = f"{self.asked.call}  {self.asked.subject}"
        if not self.decision:
            return f"{about}: handed in, and kept; {self.kept_since}"
        if self.decision == NOT_TAKEN:
            return f"{about}: {NOT_TAKEN}: {self.who}"
        if self.decision == WITHDRAWN:
            return f"{about}: withdrawn, since its turn ended first"
        words = decision_text(self.decision)
        return f"{about}: {words}" if self.ours else f"{about}: already {words}, by {self.who or 'a client'}"


# ── with names and folders ────────────────────────────────────────────────────────────────────────


@record
class Needed:
    """A request for a person who knows nothing of its tree."""

    asked: Asked
    tree: str
    """The root's id, short."""
    title: str
    label: str
    folder: str

    def value(self) -> dict[str, Any]:
        """For programs."""
        return {**self.asked.value(), "title": self.title, "label": self.label or None, "cwd": self.folder}


async def needed(found: LogSource, asked: Sequence[Asked]) -> list[Needed]:
    """The requests with names and folders, in the same order."""
    trees = list(dict.fromkeys(one.tree for one in asked))
    sessions = dict.fromkeys((*map(SessionId, trees), *(one.session for one in asked)))
    heads = {head.session: head for head in await readable(found.broker.logs, list(sessions))}
    registries = zip(trees, await found.broker.trees.registries(trees), strict=True)
    agents = {tree: listed_agents(fields) for tree, fields in registries}
    shorts = short_ids(map(SessionId, trees))
    return [
        Needed(
            asked=one,
            tree=shorts[SessionId(one.tree)],
            title=root.title if (root := heads.get(SessionId(one.tree))) is not None else "",
            label=_label(agents[one.tree].get(one.agent_id)),
            folder=_folder(heads.get(one.session)),
        )
        for one in asked
    ]


def _folder(head: SessionHead | None) -> str:
    return "" if head is None else head.summary.get("cwd") or ""


def _label(agent: Agent | None) -> str:
    return str(agent.record.get("label") or "") if agent is not None else ""
