"""Trees whose agents' lives follow a script, made in seconds by the decisions and commits of real ones."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bench.lab import Fleet
from bench.scripted import Hand, begun, called, calling, finished, step_of, user_input
from bench.shares import position_of
from orchestrator.broker.records import Submit
from orchestrator.core import commands as c
from orchestrator.core.calls import Await
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id, shard_of
from orchestrator.core.snapshot import encode_snapshot
from orchestrator.protocol.codec import parse_submission
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime.journal import Step

AT_ONCE = 16
_CALLS = 50
"""Of one scripted response: its items and calls fit one commit."""
_CHILDREN = 12
"""Born in one commit: each begins with eight entries or so."""
_USAGE = {"input_tokens": 100, "cached_input_tokens": 0, "output_tokens": 20, "total_tokens": 120}
_HEAD_ENTRIES = 90
"""Of a lived agent's log: behind its snapshot comes the last turn's end."""
T = TypeVar("T")


async def family(running: Fleet, pool: str, children: int) -> tuple[SessionId, list[SessionId]]:
    """A root that has made so many agents and awaits them, parked; they are still to begin."""
    broker = running.opened.broker
    root = await running.session(pool=pool)
    await broker.commits.submit(Submit(root, "script", "go", user_input(0)))
    hand = await Hand.take(broker, root)
    step = begun(await position_of(running, root), hand.epoch, user_input(0))
    await hand.commit(step)
    sessions: list[SessionId] = []
    while len(sessions) < children:
        count = min(_CALLS, children - len(sessions))
        numbers = await broker.trees.reserve(TreeId(root), count)
        made = [_child_spec(running, root, number) for number in numbers]
        step = await _born(hand, step.position, made)
        sessions += [SessionId(spec.session) for spec in made]
    await hand.commit(_awaiting(step.position, hand.epoch), "park")
    return root, sessions


def _child_spec(running: Fleet, root: SessionId, number: int) -> c.ChildSpec:
    shard = shard_of(root, running.opened.broker.config.shards)
    session = new_session_id(int(time.time() * 1000), shard, secrets.randbits(62))
    return c.ChildSpec(AgentId(number), session, "", "0", "You are one of several.", "Say that you are done.")


async def _born(hand: Hand, position: Position, made: Sequence[c.ChildSpec]) -> Step:
    """Commits a response with a call for each child, the children some to a commit, and a new request."""
    n = position.state.requests
    asked = (c.ItemCompleted(n, _call(f"spawn-{m.agent_id}", "subagent_spawn")) for m in made)
    step = step_of(position, hand.epoch, *asked, c.ResponseCompleted(n, f"resp_{n}", _USAGE))
    await hand.commit(step)
    for first in range(0, len(made), _CHILDREN):
        some = made[first : first + _CHILDREN]
        spawns = (c.CallAssessed(f"spawn-{m.agent_id}", c.Spawn(m)) for m in some)
        step = step_of(step.position, hand.epoch, *spawns)
        await hand.commit(step)
    step = step_of(step.position, hand.epoch, c.BeginRequest())
    await hand.commit(step)
    return step


def _awaiting(position: Position, epoch: int) -> Step:
    n = position.state.requests
    asked = c.ItemCompleted(n, _call("wait", "subagent_await"))
    ended = c.ResponseCompleted(n, f"resp_{n}", _USAGE)
    return step_of(position, epoch, asked, ended, c.CallAssessed("wait", Await(1_800_000)))


def _call(call_id: str, name: str) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": "{}", "call_id": call_id}


async def park(running: Fleet, session: SessionId) -> None:
    """An agent begins, and has a command that somebody must allow."""
    hand, position, told = await _taken(running, session)
    step = step_of(position, hand.epoch, *told, *calling(position, n=1))
    assert step.position.state.status == "awaiting_approval"
    await hand.commit(step, "park")


async def live(running: Fleet, session: SessionId) -> int:
    """An agent's whole life, with a snapshot near its end; answers how long its log is."""
    hand, position, told = await _taken(running, session)
    step = step_of(position, hand.epoch, *told)
    await hand.commit(step)
    position = step.position
    while position.seq < _HEAD_ENTRIES:
        for follow in (called, finished):
            step = follow(position, hand.epoch)
            await hand.commit(step)
            position = step.position
    await hand.snapshot(position.seq, encode_snapshot(position.state, position.seq, position.head))
    n = position.state.requests
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
    ended = c.ResponseCompleted(n, f"resp_{n}", _USAGE)
    step = step_of(position, hand.epoch, c.ItemCompleted(n, said), ended)
    await hand.commit(step, "park")
    return step.position.seq


async def _taken(running: Fleet, session: SessionId) -> tuple[Hand, Position, tuple[c.Command, ...]]:
    """A new child's claim, where it stands, and what begins its first request."""
    broker = running.opened.broker
    hand = await Hand.take(broker, session)
    (entry,) = await broker.logs.read_sq(session)
    submission = parse_submission(entry.payload)
    told = c.Submitted(submission.id, submission.op, "script")
    return hand, await position_of(running, session), (told, c.BeginRequest())


async def side_by_side(
    work: Callable[[SessionId], Coroutine[Any, Any, T]], sessions: Sequence[SessionId]
) -> list[T]:
    """The same for each, a few at once."""
    left = iter(sessions)

    async def hand() -> list[T]:
        return [await work(session) for session in left]

    return [done for hand in await asyncio.gather(*(hand() for _ in range(AT_ONCE))) for done in hand]
