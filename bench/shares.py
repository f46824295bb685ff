"""The parts of a turn, each by itself in one process: what a worker's CPU per turn is made of.

The same decisions, entries, commits and model requests as a worker's. What its figure has beyond them is
the runtime: tasks, waiting, looking for work, the rollout's file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from bench.lab import Fleet
from bench.scripted import Hand, answered, begun, user_input
from orchestrator.broker.broker import Broker
from orchestrator.broker.records import Submit
from orchestrator.config_keys import ProviderSettings
from orchestrator.core.ids import SessionId
from orchestrator.model.model_client import HttpBudget, ModelClient
from orchestrator.model.prompt import Completed, ItemDone, ModelEvent
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime.loader import end_of, folded
from orchestrator.runtime.model_request import build_prompt
from orchestrator.runtime.ports import Ports
from orchestrator.tools.apply_patch import APPLY_PATCH
from orchestrator.tools.images import VIEW_IMAGE
from orchestrator.tools.shell import SHELL
from orchestrator.tools.update_plan import UPDATE_PLAN

POOL = "bench-shares"
"""No worker serves it."""
_SESSION_TURNS = 25
OFFERED = (SHELL, APPLY_PATCH, UPDATE_PLAN, VIEW_IMAGE)
"""Turns until a new session is taken: as long a history as the throughput's sessions get."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Milliseconds of Python CPU per turn."""

    core_ms: float
    broker_ms: float
    model_ms: float


async def measure_shares(fleet: Fleet, turns: int) -> Shares:
    """Runs `turns` turns three times: the core alone, with its commits, and the requests alone."""
    core_s = await _seconds_of_turns(fleet, turns, None)
    committed_s = await _seconds_of_turns(fleet, turns, fleet.opened.broker)
    asked_s = await _seconds_of_requests(fleet, turns)
    return Shares(*(s / turns * 1000 for s in (core_s, committed_s - core_s, asked_s)))


async def _seconds_of_turns(fleet: Fleet, turns: int, broker: Broker | None) -> float:
    spent = 0.0
    for start in range(0, turns, _SESSION_TURNS):
        session = await fleet.session(pool=POOL)
        position = await position_of(fleet, session)
        for n in range(start, min(start + _SESSION_TURNS, turns)):
            payload = user_input(n)
            if broker is not None:
                await broker.commits.submit(Submit(session, "shares", f"turn-{n}", payload))
            began = time.process_time()
            position = await (
                _turn(position, payload)
                if broker is None
                else _committed_turn(broker, session, position, payload)
            )
            spent += time.process_time() - began
    return spent


async def _turn(position: Position, payload: bytes) -> Position:
    return answered(begun(position, 1, payload).position, 1).position


async def _committed_turn(broker: Broker, session: SessionId, position: Position, payload: bytes) -> Position:
    """In the two commits that a worker makes of it."""
    hand = await Hand.take(broker, session)
    step = begun(position, hand.epoch, payload)
    await hand.commit(step)
    step = answered(step.position, hand.epoch)
    await hand.commit(step, "park")
    return step.position


async def _seconds_of_requests(fleet: Fleet, turns: int) -> float:
    """The model client against the stub, with requests as large as a turn's in the middle of a session."""
    position = await position_of(fleet, await fleet.session(pool=POOL))
    for n in range(_SESSION_TURNS // 2):
        position = await _turn(position, user_input(n))
    state = begun(position, 1, user_input(0)).position.state
    assert state.task is not None
    assert state.task.request is not None
    async with ModelClient(ProviderSettings(id="openai", base_url=fleet.base_url)) as client:
        began = time.process_time()
        for _ in range(turns):
            prompt = build_prompt(state, state.task.request, OFFERED, lambda _: None)
            events: list[ModelEvent] = [event async for event in client.stream(prompt, HttpBudget(0))]
            assert isinstance(events[-1], Completed)
            assert any(isinstance(event, ItemDone) for event in events)
        return time.process_time() - began


async def position_of(fleet: Fleet, session: SessionId) -> Position:
    """Where a session's log stands, folded as a worker folds it."""
    head = await fleet.opened.broker.logs.head(session)
    assert head is not None
    unused: Any = None
    ports = Ports(fleet.opened.broker, fleet.opened.texts, models=unused, tools=unused)
    return await folded(ports, end_of(head))
