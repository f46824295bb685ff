"""How fast a log becomes a state again, what a resume costs when the history is long, and a bundle of it."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

import orjson

from bench.figures import Figure, at_least, at_most
from bench.lab import Fleet, Lab, fleet
from bench.scripted import Hand, user_input, whole_turn
from bench.shares import POOL, position_of
from orchestrator.broker.records import Submit
from orchestrator.core.chain import SALT_BYTES, next_chain, payload_digest
from orchestrator.core.commit_parts import NewEntry
from orchestrator.core.entries import decode_entry
from orchestrator.core.evolve import fold
from orchestrator.core.ids import SessionId
from orchestrator.core.snapshot import encode_snapshot
from orchestrator.core.state import State
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime.journal import Step, Writer

SNAPSHOT_ITEMS = 2_000
_COMMIT_ENTRIES = 256
_TRIES = 5
"""The best counts: what else runs on the machine can only slow a fold down."""
_TAIL_ENTRIES = 250
"""Behind the snapshot: a session gets a new one after 256."""


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """A session of turns with commands, folded in every way; then a very long one, resumed."""
    turns, length = (150, 50_000) if quick else (600, 1_000_000)
    async with fleet(lab, "instant") as running:
        session = await running.session(pool=POOL)
        await _lived(running, session, turns)
        found = [await _fold(running, session), await _replay(running, session)]
        session = await running.session(pool=POOL)
        found += await _resume(running, session, length)
        return [*found, *_bundle(lab, session, length)]


async def _lived(running: Fleet, session: SessionId, turns: int) -> Position:
    """Gives a session `turns` turns, each with a command."""
    broker = running.opened.broker
    await broker.commits.submit(Submit(session, "script", "go", user_input(0)))
    hand = await Hand.take(broker, session)
    position = await position_of(running, session)
    for n in range(turns):
        for step in whole_turn(position, hand.epoch, n):
            await hand.commit(step)
            position = step.position
    return position


async def _fold(running: Fleet, session: SessionId) -> Figure:
    entries, after = [], 0
    while page := await running.opened.broker.logs.read_rollout(session, after):
        entries += [decode_entry(stored.payload) for stored in page]
        after = page[-1].seq
    took = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        fold(State(), entries, 1)
        took.append(time.perf_counter() - began)
    return Figure(
        "fold of decoded entries",
        len(entries) / min(took),
        "entries/s",
        at_least(100_000),
        note=f"{len(entries)} entries of turns with a command each",
    )


async def _replay(running: Fleet, session: SessionId) -> Figure:
    took = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        position = await position_of(running, session)
        took.append(time.perf_counter() - began)
    return Figure(
        "read + decode + verify + fold",
        position.seq / min(took),
        "entries/s",
        at_least(40_000),
        note="the same session, from Redis",
    )


# ── the long session ──────────────────────────────────────────────────────────────────────────


async def _resume(running: Fleet, session: SessionId, length: int) -> list[Figure]:
    items = await _long_session(running, session, length)
    told = orjson.loads(running.lab.run("bench.resume_process", session))
    assert told["seq"] == length
    snapshot = f"a snapshot of {items:,} history items ({told['snapshot_kib']:,.0f} KiB)"
    note = f"{snapshot} and a tail of {_TAIL_ENTRIES} entries; from the session's hash to its state"
    return [
        Figure(f"resume of {length:,} entries: wall", told["wall_s"], "s", at_most(1), note=note),
        Figure(
            "resume: peak memory of the process",
            told["peak_mib"],
            "MiB",
            at_most(256),
            note="a fresh process with the worker's modules",
        ),
    ]


def _bundle(lab: Lab, session: SessionId, length: int) -> list[Figure]:
    """The same log in a bundle, and the check of that, each in a fresh process."""
    file = str(lab.folder / "run.zip")
    made = orjson.loads(lab.run("bench.bundle_process", session, file))
    assert made["entries"] == length
    checked = orjson.loads(lab.run("bench.bundle_process", file))
    assert (checked["entries"], checked["findings"]) == (length, 0)
    mib = f"{checked['peak_mib']:.0f} MiB"
    return [
        Figure(
            f"bundle of {length:,} entries",
            made["mb"] / made["wall_s"],
            "MB/s",
            at_least(20),
            note=f"{made['mb']:,.0f} MB of logs, from Redis into a ZIP",
        ),
        Figure(
            "bundle: peak memory of the process",
            made["peak_mib"],
            "MiB",
            at_most(100),
            note="a fresh process with the modules of a command",
        ),
        Figure(
            "verify of a bundle",
            checked["entries"] / checked["wall_s"],
            "entries/s",
            at_least(50_000),
            note=f"roots, chain, entries, without a server; the process has {mib} at its peak",
        ),
    ]


async def _long_session(running: Fleet, session: SessionId, length: int) -> int:
    """Makes a log of `length` entries that is sound where a resume reads it; answers the snapshot's items.

    What stands before the snapshot is filled up with chained copies of one entry: nobody folds it.
    """
    broker = running.opened.broker
    await broker.commits.submit(Submit(session, "script", "go", user_input(0)))
    hand = await Hand.take(broker, session)
    position = await position_of(running, session)
    while len(position.state.history) < SNAPSHOT_ITEMS - 4:
        position = whole_turn(position, hand.epoch, 0)[-1].position
    state, items = position.state, len(position.state.history)
    position = await _filled(
        hand, replace(await position_of(running, session), state=state), length - _TAIL_ENTRIES
    )
    await hand.snapshot(position.seq, encode_snapshot(state, position.seq, position.head))
    while position.seq < length:
        for step in whole_turn(position, hand.epoch, 0):
            _cut(step, length)
            await hand.commit(step)
            position = step.position
            if position.seq == length:
                break
    return items


async def _filled(hand: Hand, position: Position, length: int) -> Position:
    line = whole_turn(position, hand.epoch, 0)[0].entries[0].payload
    while position.seq < length:
        step = Step(position, Writer(hand.epoch, secrets.token_bytes), 0)
        seq, head = position.seq, position.head
        for _ in range(min(_COMMIT_ENTRIES, length - seq)):
            salt, seq = secrets.token_bytes(SALT_BYTES), seq + 1
            head = next_chain(head, seq, hand.epoch, payload_digest(salt, line))
            step.entries.append(NewEntry(line, salt, head))
        position = step.position = replace(position, seq=seq, head=head)
        await hand.commit(step)
    return position


def _cut(step: Step, length: int) -> None:
    """Ends a step at entry `length`: a log may end anywhere."""
    left = length - step.base.seq
    if len(step.entries) > left:
        step.entries[left:], step.events[:] = [], []
        step.position = replace(step.position, seq=length, head=step.entries[-1].chain)
