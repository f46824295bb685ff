"""Submission of an op, and the first event that answers it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

import orjson

from orchestrator.broker.errors import BrokerError, UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.broker.notices import until
from orchestrator.broker.open_requests import Opened, Settled
from orchestrator.broker.records import LimitChange, Registry, SessionHead
from orchestrator.core import facts as f
from orchestrator.core.commands import AnswerOp
from orchestrator.core.commit_parts import WITHDRAWN, TreeEvent
from orchestrator.core.decide.call import reply_of
from orchestrator.core.entries import DENDRO, encode_event, event, line_ms, stored_kind
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.record_json import whole
from orchestrator.core.registry import projected
from orchestrator.gateways.client import Client
from orchestrator.protocol import ops
from orchestrator.protocol.bounds import check_bounds
from orchestrator.protocol.events import BackgroundEvent, Error
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.policy import Decision
from orchestrator.protocol.submission import MalformedSubmission, Submission
from orchestrator.rollouts.log_source import LogSource
from orchestrator.views import ViewError
from orchestrator.views.approvals import NOT_TAKEN, Asked, Decided, asked_of
from orchestrator.views.event import Event
from orchestrator.views.find import Addressed
from orchestrator.views.sessions import not_taken
from orchestrator.views.tree import LIMITS_RAISED, amount
from orchestrator.views.workers import serving_pools

PATIENCE_S = 10.0
"""A worker answers within milliseconds, one that takes over within seconds."""
UNSERVED_S = 1.0
"""The same where no worker serves the session's pool: one may be starting just now."""
POLL_S = 0.05
AT_ONCE = 16
"""Answers that are handed in at the same time."""


async def patience(found: LogSource, pools: Iterable[str]) -> float:
    """The time for which an answer from sessions of these pools is waited for."""
    served = await serving_pools(found.broker.claims)
    return PATIENCE_S if served.intersection(pools) else UNSERVED_S


class OpRefused(Exception):
    """An op that the session refused; the message is the session's."""


@record
class OpAnswer:
    """The id of an op, and the event that answered it; None if none came in time."""

    id: str
    answer: Event | None


async def submit_op(
    client: Client,
    session: SessionId,
    op: ops.Op,
    answers: Callable[[Event, str], bool],
    patience_s: float = PATIENCE_S,
) -> OpAnswer:
    """Submits, and waits a while for the first later event that `answers` accepts (given the op's id).

    Raises `OpRefused` with the session's words if it refused the op, `UnknownSession`, and the errors of
    `Client.submit`.
    """
    head = await client.head(session)
    if head is None:
        raise UnknownSession(session)
    id = SubmissionId(new_submission_id())
    await client.submit(session, Submission(id, op))
    looking = _first(client, session, EqCursor.at(head), lambda event: _settles(event, id, answers))
    answer = await _within(patience_s, looking)
    if answer is not None and answer.id == id and isinstance(refusal := answer.told, Error):
        raise OpRefused(whole(refusal.message))
    return OpAnswer(id, answer)


def _settles(event: Event, id: str, answers: Callable[[Event, str], bool]) -> bool:
    return (event.kind is Error and event.id == id) or answers(event, id)


async def _first(
    client: Client, session: SessionId, cursor: EqCursor, wanted: Callable[[Event], bool]
) -> Event | None:
    async for heard in client.follow(session, cursor):
        if wanted(heard):
            return heard
    return None


async def _within(seconds: float, looking: Coroutine[Any, Any, Event | None]) -> Event | None:
    task = asyncio.create_task(looking)
    try:
        await asyncio.wait((task,), timeout=seconds)
        return task.result() if task.done() else None
    finally:
        while not task.done():
            # Python 3.11 may forget a cancellation that meets the end of a wait (bpo-37658).
            task.cancel()
            await asyncio.wait((task,), timeout=POLL_S)


def unread(head: SessionHead) -> str:
    """The message about an op that no worker has taken in time."""
    return f"handed in, and kept; {not_taken(head)}"


def under_its_id(event: Event, id: str) -> bool:
    """Any event that the op itself led to."""
    return event.id == id


def new_submission_id() -> str:
    """Unique in the session's log, where ids of many runs stand together."""
    return f"run-{uuid.uuid4().hex[:12]}"


# ── interrupts of trees ───────────────────────────────────────────────────────────────────────────
# The stop of an agent and of all below it: submitted once, and waited for at each of them.


class StillAtWork(Exception):
    """Agents that an interrupt has not stopped in time; the message names them."""

    def __init__(self, agents: str) -> None:
        super().__init__(f"handed in; still at work: {agents}")


async def interrupt_tree(found: LogSource, client: Client, target: Addressed) -> int | None:
    """Stops an agent and all below it; answers how many are below.

    None if no worker has taken it in time. Raises `StillAtWork`, and the errors of `Client.submit`.
    """
    op = ops.Interrupt(tree=True)
    await client.submit(target.session, Submission(SubmissionId(new_submission_id()), op))

    async def rests() -> bool:
        """An agent that rested before tells no end of a turn, so its state is looked at."""
        head = await client.head(target.session)
        return head is None or head.at_rest

    if await client.until([target.session], rests, PATIENCE_S):
        return await all_below_at_rest(found, target)
    head = await client.head(target.session)
    if head is not None and head.holder is not None:
        raise StillAtWork(target.name)
    return None


async def all_below_at_rest(found: LogSource, target: Addressed) -> int:
    """Waits until none of the agents below is at work any more; answers how many there are."""
    began = time.monotonic()
    while True:
        known = projected(await found.broker.trees.agents(target.tree)).agents.values()
        below = [agent for agent in known if agent.below(target.agent_id)]
        busy = [str(agent.agent_id) for agent in below if agent.active]
        if not busy:
            return len(below)
        if time.monotonic() - began > PATIENCE_S:
            raise StillAtWork(f"agents {', '.join(busy)}")
        await asyncio.sleep(POLL_S)


# ── budgets ───────────────────────────────────────────────────────────────────────────────────────
# Additions to a tree's budgets: checked first, then added once, with an event that says by whom.


MOST_LIMIT = 1 << 52
"""With what is used added to it, a number that Redis's scripts still hold exactly."""


def require_limits(registry: Registry, add: Mapping[str, int]) -> None:
    """To take from no limit would begin one below what is used, and stop the tree."""
    for name, value in add.items():
        if value < 0 and name not in registry.limits:
            raise ViewError(f"the tree has no budget of {name} to take from; zero or more begins one")
        if abs(value) > MOST_LIMIT or (value > 0 and value + registry.limits.get(name, 0) > MOST_LIMIT):
            most = amount(name, MOST_LIMIT)
            raise ViewError(
                f"a limit of {name} goes up to {most}, and this would pass it: nothing was changed; "
                "name a smaller amount"
            )


async def require_prices(found: LogSource, registry: Registry, priced: Iterable[str]) -> None:
    """Under a budget of cost a model without a price is refused: better now than in the midst of its work.

    `priced` are the models whose prices are known here. A session whose requests have cost something runs
    where its model has one.
    """
    costs = {agent.session: agent.used.cost for agent in registry.agents.values()}
    costs[SessionId(registry.tree)] = registry.budget["cost"].spent - sum(costs.values())
    sessions = [session for session, cost in costs.items() if cost <= 0]
    # A session whose key is damaged makes no request any more, and hides the models of no other.
    heads = await found.broker.logs.heads(sessions, {})
    models = {model for head in heads if (model := head.summary.get("model"))}
    missing = sorted(models - set(priced))
    if missing:
        names = ", ".join(f'model_prices."{model}"' for model in missing)
        raise ViewError(
            f"a budget of cost needs the price of every model of the tree: set {names}, here and where the "
            "workers run, and start them anew; tokens=… or requests=… can be limited without"
        )


async def raise_limits(found: LogSource, client: Client, registry: Registry, add: Mapping[str, int]) -> int:
    """Raises the limits, once; answers how many agents it woke."""
    change = _change(registry.tree, add, client.who, client.client_id)
    return (await found.broker.trees.raise_limits(registry.tree, change)).woken


def _change(tree: TreeId, add: Mapping[str, int], who: str, id: str) -> LimitChange:
    parts = ", ".join(f"{amount(name, value)} {name}" for name, value in add.items())
    message = BackgroundEvent(message=f"{who}{LIMITS_RAISED}{parts}")
    payload = encode_event(event("", message))
    return LimitChange(id, dict(add), TreeEvent((payload,), (SessionId(tree),)))


# ── deletion ──────────────────────────────────────────────────────────────────────────────────────
# The end of a session by another process: is the session left as it is, or deleted?
#
# `dendro rm --force` closes a tree before it deletes it, so a front sees the end of its task first.


MOST_S = 10.0
"""For the agents of the tree to end."""
CLOSED_S = 2.0
"""From the close of a session to its deletion, if it is to be deleted: some tenths of a second."""


async def left_behind(found: LogSource, session: SessionId) -> SessionHead | None:
    """The session after its task's end, once the other process is done with it; None: it was deleted."""

    async def ended() -> bool:
        """Whether no close is under way: nothing tells of it before the agents below have ended."""
        head = await found.broker.logs.head(session)
        if head is None or head.status != "idle":
            # It is gone, it is closed, or its next task has begun.
            return True
        if not head.parked:
            return False
        try:
            agents = projected(await found.broker.trees.agents(head.tree)).agents.values()
        except UnknownSession:
            return True
        return not any(agent.marked and agent.active for agent in agents)

    async def open_or_gone() -> bool:
        head = await found.broker.logs.head(session)
        return head is None or head.status != "closed"

    await until(found.broker, [session], ended, MOST_S)
    await until(found.broker, [session], open_or_gone, CLOSED_S)
    return await found.broker.logs.head(session)


# ── approvals ─────────────────────────────────────────────────────────────────────────────────────
# Answers to requests: handed in to the session that asked, and watched until they are decided.
#
# Who gave an answer and when is in that session's log. Its outcome is read there, too: another answer may
# have come first.


@record
class Over:
    """A request that was shown, and waits for nobody any more."""

    asked: Asked


async def followed(client: Client, found: LogSource, tree: TreeId | None) -> AsyncIterator[Asked | Over]:
    """The open requests of a tree, or of all that the client sees, and then each change, for ever."""
    shown: dict[tuple[SessionId, str], Asked] = {}
    async for change in client.requests():
        match change:
            case Opened(request):
                asked = await asked_of(found, request)
                if asked is not None and tree in (None, asked.tree):
                    shown[request.session, request.key] = asked
                    yield asked
            case Settled(session, key):
                if (known := shown.pop((session, key), None)) is not None:
                    yield Over(known)
            case _:
                assert_never(change)


async def decide(client: Client, found: LogSource, asked: Asked, decision: Decision) -> Decided:
    """Decides about a request, and waits for its decision; raises `DoesNotAnswer` if it cannot be one."""
    return await hand_in(client, found, asked, asked.request.in_own_session().decided(decision))


async def hand_in(client: Client, found: LogSource, asked: Asked, op: AnswerOp) -> Decided:
    """Hands an answer to the session that asked, and waits for the decision."""
    (decided,) = await hand_in_all(client, found, [(asked, op)])
    return decided


async def hand_in_all(
    client: Client, found: LogSource, answers: Sequence[tuple[Asked, AnswerOp]]
) -> list[Decided]:
    """Hands each answer to the session that asked, and waits once for all decisions, in the same order.

    One that its session does not take, as where its queue is full, is told so beside the others; raises the
    first error where none was handed in, and `MalformedSubmission` for one that holds more than it may.
    """
    gate, ids = asyncio.Semaphore(AT_ONCE), [SubmissionId(new_submission_id()) for _ in answers]
    for (_, op), id in zip(answers, ids, strict=True):
        # Before any counts: who is told of an error does not expect that some did.
        check_bounds(Submission(id, op))

    async def submit(asked: Asked, op: AnswerOp, id: SubmissionId) -> bool:
        async with gate:
            return (await client.submit(asked.session, Submission(id, op))).quarantined

    # None is left on its way where another one fails.
    handing = (submit(*answer, id) for answer, id in zip(answers, ids, strict=True))
    done = await asyncio.gather(*handing, return_exceptions=True)
    failed = [error for error in done if isinstance(error, BaseException)]
    known = BrokerError | MalformedSubmission
    if unforeseen := next((error for error in failed if not isinstance(error, known)), None):
        raise unforeseen
    if failed and len(failed) == len(done):
        raise failed[0]
    told = {place: (NOT_TAKEN, str(done[place]), 0) for place in range(len(done)) if done[place] in failed}
    # Answers that are kept name the remedy that their session needs by now.
    answers = [
        (replace(one, quarantined=it is True), op) for (one, op), it in zip(answers, done, strict=True)
    ]

    async def all_told() -> bool:
        for place, (asked, _) in enumerate(answers):
            if place not in told and (answer := await _answer(found, asked, ids[place])) is not None:
                told[place] = answer
        return len(told) == len(answers)

    sessions = list(dict.fromkeys(asked.session for asked, _ in answers))
    await client.until(sessions, all_told, await patience(found, {asked.pool for asked, _ in answers}))
    return [_decided(client, *answers[place], told.get(place)) for place in range(len(answers))]


def _decided(client: Client, asked: Asked, op: AnswerOp, told: tuple[str, str, int] | None) -> Decided:
    if told is None:
        return Decided(asked, "", "", ours=False)
    decision, who, at_ms = told
    return Decided(asked, decision, who, who == client.who and decision == reply_of(op).decision, at_ms)


async def _answer(found: LogSource, asked: Asked, id: SubmissionId) -> tuple[str, str, int] | None:
    """The decision in the session's log, its author and time: the first for this call since it was listed.

    An answer that was refused has the reason for an author.
    """
    after, logs = asked.seq, found.broker.logs
    (end,) = await logs.ends([asked.session])
    while after < end and (page := await logs.read_rollout(asked.session, after)):
        for stored in page:
            line = orjson.loads(stored.payload)
            if line.get("id") == id and stored_kind(stored.payload) is Error:
                return NOT_TAKEN, str(line["payload"]["message"]), line_ms(stored.payload)
            if line["type"] != DENDRO:
                continue
            match f.decode(line["payload"]):
                # One that is sent on is about a call of an agent, which may have the same id.
                case f.Answered(call_id=asked.call_id, agent_id=None) as answer:
                    return answer.decision, answer.who, answer.answered_ms
                case f.TaskEnded():
                    return WITHDRAWN, "", line_ms(stored.payload)
                case _:
                    pass
        after = page[-1].seq
    return None
