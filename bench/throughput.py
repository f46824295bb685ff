"""Turns a second over real HTTP with every process on this machine, and where a turn's CPU goes.

The stub answers at once, so what is measured is Dendro. Beside it, in the same run: a bare loop of
scripts on the same Redis, and the parts of a turn each by itself.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, cast

from bench.broker import BareLoop, measured_bare_loop
from bench.figures import Figure, at_least, at_most
from bench.lab import Fleet, Lab, fleet
from bench.shares import Shares, measure_shares
from bench.turns import take_turns

_WATCH_S = 3.0

_SCRIPTS = 3
"""A turn's minimum: claim, commit, commit and release."""


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Sessions in parallel, each turn by turn; with one worker, with two, and with four."""
    sessions, each = (16, 8) if quick else (32, 25)
    found: list[Figure] = []
    rounds: list[_Round] = []
    async with fleet(lab, "instant") as running:
        for workers in (1, 2, 4):
            while len(running.workers) < workers:
                running.hire(sessions)
            rounds.append(await _round(running, sessions, each))
            found += _figures(
                rounds[0], rounds[-1], workers, f"{sessions} sessions in parallel, {each} turns each"
            )
        shares = await measure_shares(running, 100 if quick else 300)
        bare = await measured_bare_loop(lab, 2_000 if quick else 5_000)
    best = max(figure.value for figure in found if figure.unit == "turns/s")
    return [*found, *_split(shares), *_yardstick(best, bare)]


@dataclass(frozen=True, slots=True)
class _Round:
    """Turns with some number of workers: a second, and what each costs."""

    rate: float
    cpu_ms: dict[str, float]
    scripts: float
    """Scripts a turn, beside those that idle workers run anyway."""
    reads: float
    """Reads of logs and queues (XRANGE) a turn."""


async def _round(running: Fleet, sessions: int, each: int) -> _Round:
    crowd = [await running.session() for _ in range(sessions)]
    await asyncio.gather(*(take_turns(running, session, 1) for session in crowd))
    idle, began = await _calls(running), time.monotonic()
    await asyncio.sleep(_WATCH_S)
    asked, idle_s = await _calls(running), time.monotonic() - began
    before, began = running.costs(), time.monotonic()
    await asyncio.gather(*(take_turns(running, session, each, 1) for session in crowd))
    wall_s, now = time.monotonic() - began, await _calls(running)
    spent = {part: cost - before[part] for part, cost in running.costs().items()}
    turns = sessions * each
    anyway = (asked["evalsha"] - idle["evalsha"]) * wall_s / idle_s
    return _Round(
        turns / wall_s,
        {part: cost.own_s / turns * 1000 for part, cost in spent.items()},
        (now["evalsha"] - asked["evalsha"] - anyway) / turns,
        (now["xrange"] - asked["xrange"]) / turns,
    )


async def _calls(running: Fleet) -> dict[str, int]:
    info = cast(dict[str, Any], await running.opened.broker.command("INFO", "commandstats"))
    return {name: info.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "xrange")}


def _figures(alone: _Round, one: _Round, workers: int, note: str) -> list[Figure]:
    name = f"throughput, {workers} worker{'s'[: workers - 1]}"
    targets = {"worker": at_most(5)}
    found = [Figure(name, one.rate, "turns/s", at_least(150), note=note)]
    if one is not alone:
        lost = f"{one.scripts:.2f}, {alone.scripts:.2f} with one worker: polls and claims in vain"
        tails = f"XRANGE: {one.reads:.2f}, {alone.reads:.2f} with one worker: what another one wrote"
        found += [
            Figure(
                f"  of the rate of one worker, {workers}w", one.rate / alone.rate, "ratio", at_least(0.97)
            ),
            Figure(
                f"  more scripts a turn, {workers}w",
                max(0.0, one.scripts - alone.scripts),
                "",
                at_most(0.05),
                note=lost,
            ),
            Figure(
                f"  more reads a turn, {workers}w",
                max(0.0, one.reads - alone.reads),
                "",
                at_most(0.02),
                note=tails,
            ),
        ]
    return [
        *found,
        *(
            Figure(f"  CPU per turn, {workers}w: {part}", cost_ms, "ms", targets.get(part))
            for part, cost_ms in one.cpu_ms.items()
        ),
    ]


def _split(shares: Shares) -> list[Figure]:
    return [
        Figure(
            "  worker's share by itself: HTTP and SSE",
            shares.model_ms,
            "ms",
            None,
            note="the model client alone",
        ),
        Figure(
            "  worker's share by itself: broker", shares.broker_ms, "ms", None, note="a turn's commits alone"
        ),
        Figure(
            "  worker's share by itself: core", shares.core_ms, "ms", None, note="decide, fold, encode, chain"
        ),
    ]


def _yardstick(best: float, bare: BareLoop) -> list[Figure]:
    turns = bare.per_second / _SCRIPTS
    cpu = f"{bare.cpu_ms * _SCRIPTS:.2f} ms of Python CPU"
    note = f"{_SCRIPTS} small scripts a turn ({cpu}), one process, no model"
    ratio = "what a turn's worth of scripts alone would reach / the best rate of whole turns"
    return [
        Figure("bare loop of scripts", turns, "turns/s", note=note),
        Figure("bare loop / throughput", turns / best, "ratio", note=ratio),
    ]
