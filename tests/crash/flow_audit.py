"""Rules for the flows of a crash run: what was asked is settled once, and what began has one end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.core.decide.takeover import IN_DOUBT
from orchestrator.core.entries import DENDRO
from orchestrator.requests import ServerRequest
from tests.crash.flows import TYPED, Asked, typed_by
from tests.crash.logs import Log

BEGUN = ("exec_command", "mcp_tool_call")
LOST = "is gone: its worker was lost"
WITHDRAWN = "withdrawn"


def settled(log: Log, person: Asked, folder: Path) -> Iterator[str]:
    """Every violation of a person's session, in words."""
    outputs = {call_id: text for _, call_id, text in log.outputs()}
    yield from _answered(log, person, outputs)
    yield from _elicited(log, person, outputs)
    yield from _ended(log)
    yield from _processes(log)
    yield from _typed(log, outputs, folder)


def _answered(log: Log, person: Asked, outputs: dict[str, str]) -> Iterator[str]:
    """Every request to the person was settled once, by the person's own words."""
    answers = [fact["call_id"] for fact in log.facts("answer")]
    for call_id, words in person.told.items():
        if answers.count(call_id) != 1:
            yield f"{call_id} was asked and has {answers.count(call_id)} answers"
        if words not in outputs.get(call_id, ""):
            yield f"{call_id} was answered {words!r}, and the model read {outputs.get(call_id)!r}"
    for kind in ("plan", "review"):
        entered = sum(msg["type"] == f"entered_{kind}_mode" for _, msg in log.events())
        exited = sum(msg["type"] == f"exited_{kind}_mode" for _, msg in log.events())
        if entered != exited:
            yield f"{kind} mode was entered {entered} times and left {exited} times"


def _elicited(log: Log, person: Asked, outputs: dict[str, str]) -> Iterator[str]:
    """A server's question is settled once: by the person's decision, or with its lost call."""
    asked = Counter(msg["id"] for _, msg in log.events() if msg["type"] == ServerRequest.tag)
    closed: dict[str, list[str]] = {}
    for fact in log.facts("elicitation_closed"):
        closed.setdefault(fact["id"], []).append(fact["decision"])
    for id, times in asked.items():
        decisions = closed.get(id, [])
        if times != 1 or len(decisions) != 1:
            yield f"question {id} was asked {times} times and settled by {decisions}"
            continue
        output = outputs.get(id.rpartition("-q")[0], "")
        if decisions[0] == WITHDRAWN and IN_DOUBT not in output:
            yield f"question {id} was withdrawn, and the model read {output!r}"
        if decisions[0] != WITHDRAWN and decisions[0] != person.decisions.get(id):
            yield f"question {id} was decided {decisions[0]!r}, the person said {person.decisions.get(id)!r}"
        if decisions[0] != WITHDRAWN and IN_DOUBT not in output and f"said {decisions[0]}" not in output:
            yield f"question {id} was decided {decisions[0]!r}, and the model read {output!r}"


def _ended(log: Log) -> Iterator[str]:
    """Commands, processes and calls of servers that were told to begin have one end each."""
    for kind in BEGUN:
        begun, ended = (
            Counter(msg["call_id"] for _, msg in log.events() if msg["type"] == f"{kind}_{end}")
            for end in ("begin", "end")
        )
        for call_id in sorted(begun.keys() | ended.keys()):
            if (begun[call_id], ended[call_id]) != (1, 1):
                yield f"{kind} {call_id} began {begun[call_id]} times and ended {ended[call_id]} times"


def _processes(log: Log) -> Iterator[str]:
    """Each process is over once; of one that was lost, people and the model are told once."""
    kept, over = (Counter(fact["number"] for fact in log.facts(kind)) for kind in ("process", "process_over"))
    if kept != over or set(kept.values()) - {1}:
        yield f"processes began {dict(kept)} and were over {dict(over)}"
    warned = [msg["message"] for _, msg in log.events() if msg["type"] == "warning"]
    said = _told(log)
    ends = {msg["call_id"]: msg for _, msg in log.events() if msg["type"] == "exec_command_end"}
    for fact in log.facts("process"):
        name = f"process {fact['number']} ("
        lost = LOST in ends[fact["call_id"]]["stderr"]
        for whom, texts in (("people", warned), ("the model", said)):
            times = sum(line.startswith(name) and LOST in line for text in texts for line in text.split("\n"))
            if times != lost:
                yield f"{name}…) {'was' if lost else 'was not'} lost, {whom} were told so {times} times"


def _told(log: Log) -> list[str]:
    """The texts that the model was told; those of a review's or a plan's own conversation, which join the
    session's as it ends, count once."""
    texts, own, apart = list[str](), set[str](), False
    told = dict(log.said())
    for seq, entry in enumerate(log.entries, 1):
        if entry.type == DENDRO and entry.payload["kind"] == "task":
            # What joins comes behind the end of the task.
            own, apart = set(), entry.payload["task"] in ("review", "plan")
        elif seq in told:
            new = [text for text in _texts(told[seq]) if text not in own]
            texts += new
            own |= set(new) if apart else set()
    return texts


def _texts(item: Any) -> list[str]:
    content = item.get("content") if item.get("role") == "user" else None
    return [part.get("text", "") for part in content or ()]


def _typed(log: Log, outputs: dict[str, str], folder: Path) -> Iterator[str]:
    """Words reached their process at most once, and once where the model read its answer."""
    file = folder / TYPED
    lines = Counter(file.read_text().splitlines() if file.exists() else ())
    decided = log.decisions()
    for call_id, output in outputs.items():
        times = lines[typed_by(log.session, call_id)]
        if times > decided[call_id]:
            yield f"{call_id} was decided {decided[call_id]} times, and typed {times} times"
        if f"got {typed_by(log.session, call_id)}" in output and times != 1:
            yield f"{call_id} was typed {times} times, and its process has read it"
