"""Look-ups that people ask for, how long a machine's files take, and the log held against both."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from orchestrator.broker.open_requests import person_of
from orchestrator.core.entries import DENDRO, EVENT_MSG
from orchestrator.instructions.skills import Instructions
from orchestrator.protocol import ops
from orchestrator.protocol.catalog import CustomPrompt, SkillsListEntry
from orchestrator.runtime.machine_files import PATIENCE_S, NoFiles

if TYPE_CHECKING:
    from sim.audit import Ended
    from sim.seen import Seen
    from sim.watch import Watch

ANSWERS = {
    "add_to_history": None,
    "user_input": "task_started",
    "get_history_entry_request": "get_history_entry_response",
    "list_custom_prompts": "list_custom_prompts_response",
    "list_mcp_tools": "mcp_list_tools_response",
    "list_models": "list_models_response",
    "list_skills": "list_skills_response",
}
"""The event that answers each op; input that goes back to an earlier turn is answered by its task."""


class SimLibrary(NoFiles):
    """A machine whose files answer when the seed lets them, and at times not at all."""

    def __init__(self, rng: Random, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._rng = rng
        self._sleep = sleep

    async def _read(self) -> None:
        took_s = self._rng.choice((0.0, 0.0, 0.3, 4.0, 12.0))
        await self._sleep(min(took_s, PATIENCE_S))
        if took_s > PATIENCE_S:
            raise TimeoutError

    async def instructions(self, folder: str, known: Sequence[str]) -> Instructions:
        await self._read()
        left_out = self._rng.random() < 0.2
        return Instructions(f"rules of {folder}", ("a link was left out",) if left_out else ())

    async def prompts(self) -> tuple[CustomPrompt, ...]:
        await self._read()
        return (CustomPrompt(name="a", path="/a.md", content="a" * 5_000),)

    async def skills(self, folder: str, *, anew: bool) -> SkillsListEntry:
        await self._read()
        return await super().skills(folder, anew=anew)


def a_lookup(rng: Random, text: str) -> ops.Op:
    """An op that a person looks something up with."""
    chosen: ops.Op = rng.choice(
        (
            ops.AddToHistory(text=text),
            ops.GetHistoryEntryRequest(offset=0, log_id=1),
            ops.ListCustomPrompts(),
            ops.ListMcpTools(),
            ops.ListSkills(),
        )
    )
    # Not drawn, so that nobody else does something else for it.
    return ops.ListModels() if chosen.type == "list_mcp_tools" and text[-1] in "02468" else chosen


def check_lookups(watch: Watch, session: str, seen: Seen) -> None:
    """The rule `looked_up`: what was accepted is answered once, by an event of its kind or an error."""
    waiting: dict[tuple[str, str], tuple[str, bytes]] = {}
    asked: defaultdict[str, list[str]] = defaultdict(list)
    for entry, (_, stored) in zip(seen.entries, seen.stored, strict=True):
        fact = entry.payload
        if entry.type != DENDRO:
            continue
        key = (fact.get("client") or "", fact.get("id") or "")
        match fact["kind"]:
            case "lookup":
                if any(id == key[1] for _, id in waiting):
                    watch.reach.saw("looked_up_by_two")
                waiting[key] = fact["op"]["type"], stored[b"e"]
            case "looked_up" if key not in waiting:
                watch.broken("looked_up", f"{session}: {key} was answered, and nobody waits for it")
            case "looked_up":
                kind, epoch = waiting.pop(key)
                asked[key[1]].append(kind)
                if epoch != stored[b"e"]:
                    watch.reach.saw("looked_up")
            case "closing":
                # Input that waits for an earlier turn waits in the queue again.
                waiting = {of: asked for of, asked in waiting.items() if asked[0] != "user_input"}
    if waiting:
        watch.broken("looked_up", f"{session}: {list(waiting)} were accepted, and never answered")
    for id, kinds in asked.items():
        _answered(watch, session, seen, id, kinds)


def check_prompts(world: Ended) -> None:
    """The rule `typed_once`: a person's history has each prompt that a session took, once a submission."""
    watch = world.site.watch
    if watch.went_back_s > 0 or watch.redactions.planned:
        return
    typed: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    taken: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for session, seen in watch.sessions.items():
        for entry in seen.entries:
            fact = entry.payload
            if entry.type == DENDRO and fact["kind"] == "lookup" and fact["op"]["type"] == "add_to_history":
                typed[person_of(fact["who"])][session, fact["op"]["text"]] += 1
                taken[session, fact["id"]].add(fact.get("client") or "")
    if any(len(clients) > 1 for clients in taken.values()):
        watch.reach.saw("typed_once")
    for who, wanted in typed.items():
        log, _ = watch.keys.history(who)
        rows = (row for _, row in world.double.stream_after(log, 0))
        kept = Counter((row[b"s"].decode(), row[b"x"].decode()) for row in rows)
        if kept != wanted:
            lacks, beside = wanted - kept, kept - wanted
            watch.broken("typed_once", f"the history of {who} lacks {lacks}, and has {beside} beside it")


def _answered(watch: Watch, session: str, seen: Seen, id: str, kinds: Sequence[str]) -> None:
    """Of look-ups of one id, by several clients where there are several: they ask for the same."""
    kind = kinds[0]
    told: list[Any] = [entry.payload["type"] for entry in seen.entries if _about(entry, id)]
    wanted = ANSWERS[kind]
    answers = [type for type in told if type in (wanted, "error")]
    if wanted == "task_started":
        # The task that answers it may fail.
        answers = answers[:1]
    if wanted is None:
        holds = len(answers) <= len(kinds) and {*answers} <= {"error"}
    else:
        holds = len(answers) == len(kinds)
    if not holds:
        watch.broken("looked_up", f"{session}: {id} ({kind}) was answered by {told}")


def _about(entry: Any, id: str) -> bool:
    return bool(entry.type == EVENT_MSG and entry.id == id)
