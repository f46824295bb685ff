"""Turns a second over real HTTP with every process on this machine, and where a turn's CPU goes.

The stub answers at once, so what is measured is Dendro. Beside it, in the same run: a bare loop of
scripts on the same Redis, and the parts of a turn each by itself.
"""

from __future__ import annotations

import asyncio
import time

from bench.accounts import Cpu
from bench.broker import BareLoop, measured_bare_loop
from bench.figures import Figure, at_least, at_most
from bench.lab import Fleet, Lab, fleet
from bench.shares import Shares, measure_shares
from bench.turns import take_turns

_SCRIPTS = 3
"""A turn's minimum: claim, commit, commit and release."""


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Sessions in parallel, each turn by turn; once with one worker, once with two."""
    sessions, each = (16, 8) if quick else (32, 25)
    found: list[Figure] = []
    async with fleet(lab, "instant") as running:
        for workers in (1, 2):
            running.hire(sessions)
            found += await _measured(running, workers, sessions, each)
        shares = await measure_shares(running, 100 if quick else 300)
        bare = await measured_bare_loop(lab, 2_000 if quick else 5_000)
    best = max(figure.value for figure in found if figure.unit == "turns/s")
    return [*found, *_split(shares), *_yardstick(best, bare)]


async def _measured(running: Fleet, workers: int, sessions: int, each: int) -> list[Figure]:
    crowd = [await running.session() for _ in range(sessions)]
    await asyncio.gather(*(take_turns(running, session, 1) for session in crowd))
    before, began = running.costs(), time.monotonic()
    await asyncio.gather(*(take_turns(running, session, each) for session in crowd))
    wall_s = time.monotonic() - began
    spent = {part: cost - before[part] for part, cost in running.costs().items()}
    turns = sessions * each
    note = f"{sessions} sessions in parallel, {each} turns each"
    name = f"throughput, {workers} worker{'s'[: workers - 1]}"
    rate = Figure(name, turns / wall_s, "turns/s", at_least(150), note=note)
    return [rate, *_per_turn(spent, turns, workers)]


def _per_turn(spent: dict[str, Cpu], turns: int, workers: int) -> list[Figure]:
    targets = {"worker": at_most(5)}
    return [
        Figure(f"  CPU per turn, {workers}w: {part}", cost.own_s / turns * 1000, "ms", targets.get(part))
        for part, cost in spent.items()
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
