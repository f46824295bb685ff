"""The answers to submissions: each is answered by its step, under its own id, with what holds by then.

Read from `docs/concepts.md`: whatever is accepted ends as a task, an answer or an error. `sim/inputs.py`
looks at inputs when all is at rest; here each step is looked at, with what it took from the queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.core.calls.ask import digest_of
from orchestrator.core.entries import DENDRO, EVENT_MSG, Entry
from sim.queued import Waiting

if TYPE_CHECKING:
    from sim.seen import Seen
    from sim.watch import Watch

TELLS = {
    "set_thread_name": "thread_name_updated",
    "get_path": "conversation_path",
    "thread_rollback": "thread_rolled_back",
    "inject_items": "items_injected",
    "reorder_queue": "queue_changed",
    "remove_queued": "queue_changed",
    "update_queued": "queue_changed",
    "configure_session": "session_configured",
}
"""Ops that are answered at once, each by an event of its own or by an error."""
TAKEN = frozenset({"input_accepted", "task_started", "error"})
"""Events that say where input went whose submission says where it shall go."""
ANSWERS = frozenset(
    {
        "exec_approval",
        "patch_approval",
        "resolve_ask_user_question",
        "resolve_elicitation",
        "resolve_plan_approval",
        "user_input_answer",
        "dynamic_tool_response",
    }
)
QUESTIONS = {"resolve_ask_user_question": "question", "user_input_answer": "user_input"}
"""The kind of call whose questions an op answers; one that names a turn answers no other kind of it."""
SETTINGS = ("approval_policy", "model", "effort", "summary")
DECIDED = re.compile(r"(\S+)(?: of agent (\d+))? was already decided: (.*), by (.*)", re.DOTALL)
STOPS = frozenset({"message", "interrupt"})
READ_S = 10.0
"""A step that answers now has read the decisions that are so old."""


@dataclass(slots=True)
class _Before:
    """A session as it stood behind its last step."""

    seq: int
    settings: Mapping[str, Any] | None = None
    agents: bool = False
    running: str = ""
    """The task that holds the session, also one that stops."""
    stopping: bool = False
    kind: str = ""

    @property
    def task(self) -> str:
        """The task that holds the session and goes on."""
        return "" if self.stopping else self.running


class Replies:
    """The rule `replied`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._before: dict[str, _Before] = {}
        self._decided_s: dict[tuple[str, str, str], float] = {}
        """When each call was decided, by session, call and turn."""
        self._named: dict[tuple[str, str], str] = {}
        """Names that clients gave to messages, by session and submission, until these are shown."""
        self._passed_on: list[tuple[str, str]] = []
        """Agents that are to be told of an interrupt by the step that is read, and its id."""
        self._to_tell: list[tuple[str, int, str, str]] = []
        """Tree, agent, decision and whose it was: the step that is read tells of these at the root."""
        self._late_at_root: list[tuple[str, str, str]] = []
        """Tree, submission and agent: the step that is read answers these with an error at the root."""

    def went_back(self) -> None:
        """Forgets how sessions stood: their logs are read anew."""
        self._before.clear()
        self._decided_s.clear()
        self._named.clear()

    def stepped(self, session: str, seen: Seen, consumed: Sequence[Waiting]) -> None:
        """Called behind each step of a session, with what it took from the queue."""
        before = self._before.get(session)
        if before is not None and before.seq == seen.seq and not consumed:
            return
        if before is not None:
            for fact in _answers(seen.entries[before.seq :]):
                if fact.get("agent_id") is None:
                    self._decided_s[session, fact["call_id"], fact["turn"]] = self._watch.now_s
                    self._is_to_be_told(seen, before, fact)
        if before is not None and consumed and not self._watch.reads_anew:
            entries = seen.entries[before.seq :]
            for one in consumed:
                self._comes_of(session, seen, before, one, entries)
                if one.op in ("user_input", "interrupt"):
                    self._reason(session, before, one, entries)
                if one.said.get("client_user_message_id"):
                    self._named[session, one.id] = one.said["client_user_message_id"]
        if before is not None:
            self._shows_names(session, seen.entries[before.seq :])
        task = seen.grammar.task
        now = ("", False, "") if task is None else (task["id"], bool(task["stopping"]), task["kind"])
        agents = bool(seen.state.tree.children)
        self._before[session] = _Before(seen.seq, dict(seen.grammar.settings), agents, *now)

    def _is_to_be_told(self, seen: Seen, before: _Before, fact: Mapping[str, Any]) -> None:
        """An abort is told with the end of the turn; a root without agents may have one client, who knows."""
        agent = seen.state.facts.agent_id
        alone = not agent and not (before.agents and seen.state.tree.children)
        if fact["decision"] != "abort" and not alone and not self._watch.reads_anew:
            self._to_tell.append((seen.tree, agent, fact["decision"], fact["who"]))

    def _comes_of(
        self, session: str, seen: Seen, before: _Before, one: Waiting, entries: Sequence[Entry]
    ) -> None:
        told = [entry for entry in entries if entry.type == EVENT_MSG and entry.id == one.id]
        kinds = {entry.payload["type"] for entry in told}
        if one.op in TELLS:
            if not kinds & {TELLS[one.op], "error"}:
                self._broken(session, f"{one.op} {one.id} is answered by {sorted(kinds)}")
        elif one.op in ANSWERS:
            self._answer(session, seen, one, told, entries)
        elif one.said.get("expected_turn_id") and one.op == "user_input" and not kinds & TAKEN:
            self._broken(session, f"input {one.id} for a turn by its id is answered by {sorted(kinds)}")
        elif one.op in ("override_turn_context", "user_input", "user_turn") and "error" not in kinds:
            self._settings(session, before, one, entries)
        if one.letter == "answer" and "id" in one.mail:
            self._sent_on(seen, one.mail, entries)
        of_tree = (one.op == "interrupt" and one.said.get("tree")) or one.letter == "interrupt"
        if of_tree and "error" not in kinds:
            self._passed_on += [
                (child, one.id)
                for child, its in self._watch.members[seen.tree].items()
                if its.state.facts.parent_session == session and its.state.tree.status != "canceled"
            ]
        if one.op == "interrupt" or (one.kind == "mail" and one.lane == 1 and one.letter in STOPS):
            meant = one.said.get("expected_turn_id") in (None, before.task)
            # Input of the same id may wait for the turn's end, and begin in this very commit.
            ends = any(e.type == DENDRO and e.payload["kind"] == "task_ended" for e in entries)
            runs = before.task and self._runs(seen) == before.task and not ends
            if runs and meant and "error" not in kinds:
                self._broken(session, f"{one.id} interrupts {before.task}, which goes on")

    def settled(self) -> None:
        """Called when all that a script has written was read."""
        passed_on, self._passed_on = self._passed_on, []
        for child, key in passed_on:
            seen = self._watch.sessions.get(child)
            if seen is None or seen.state.tree.canceling or seen.state.tree.pruned or seen.state.closed:
                continue
            if not any(one.kind == "mail" and key in one.id for one in seen.queue):
                self._broken(child, f"is at work below what {key} interrupts, and is not told of it")

    def logged(self) -> None:
        """Called when the tree's log was read that the step has written."""
        to_tell, self._to_tell = self._to_tell, []
        told = self._watch.surfaced.decided()
        for tree, agent, decision, who in to_tell:
            if (tree, agent, decision, who) not in told:
                seen = f"agent {agent}: {decision} by {who or 'nobody'} is told to nobody at the root"
                self._broken(tree, seen)
        late, self._late_at_root = self._late_at_root, []
        for tree, id, receiver in late:
            if id not in self._watch.surfaced.errors(tree):
                self._broken(tree, f"{receiver} decides nothing by {id}, and the root is not told")

    def _reason(
        self,
        session: str,
        before: _Before,
        one: Waiting,
        entries: Sequence[Entry],
    ) -> None:
        """An error has a reason for programs where the turn is why, and no other one has."""
        told = (entry for entry in entries if entry.type == EVENT_MSG and entry.id == one.id)
        for error in (entry for entry in told if entry.payload["type"] == "error"):
            meant, reason = one.said.get("expected_turn_id"), error.payload.get("reason")
            running, stopping, kind = before.running, before.stopping, before.kind
            for entry in entries:
                if entry is error:
                    break
                if entry.type == DENDRO and entry.payload["kind"] == "task":
                    running, stopping, kind = entry.payload["id"], False, entry.payload["task"]
                elif entry.type == DENDRO and entry.payload["kind"] == "task_ended":
                    running = ""
                elif entry.type == DENDRO and entry.payload["kind"] == "stopping":
                    stopping = True
            if meant is None or (not reason and running == meant and kind == "user"):
                wanted = None
            elif not running or (stopping and one.op == "user_input"):
                wanted = "no_active_turn"
            else:
                wanted = "other_turn" if running != meant else "turn_not_steerable"
            if error.id == running and wanted is None:
                # Its task has failed, under the same id.
                continue
            if reason != wanted:
                self._broken(
                    session, f"{one.id} is answered by {dict(error.payload)}, while {running!r} runs"
                )
            if reason:
                self._watch.reach.saw("reasons")

    def _shows_names(self, session: str, entries: Sequence[Entry]) -> None:
        """A person's message bears the name that its client has given it."""
        id = ""
        for entry in entries:
            if entry.type == DENDRO and entry.payload["kind"] in ("task", "steered"):
                id = entry.payload["id"]
            elif entry.type == EVENT_MSG and entry.payload["type"] == "user_message" and id:
                name, shown = self._named.pop((session, id), None), entry.payload.get("client_id")
                if name is not None and shown != name:
                    self._broken(
                        session, f"{id} was called {name!r} by its client, and is shown as {shown!r}"
                    )
                id = ""

    def _runs(self, seen: Seen) -> str:
        task = seen.grammar.task
        return task["id"] if task is not None and not (task["stopping"] or task["ended"] == "failing") else ""

    # ── answers ───────────────────────────────────────────────────────────────────────────────

    def _answer(
        self, session: str, seen: Seen, one: Waiting, told: Sequence[Entry], entries: Sequence[Entry]
    ) -> None:
        """An answer decides, is sent on, or is told to be late; said again, it may be met with silence."""
        self._watch.reach.saw("replied")
        about, agent = one.about, one.agent_id
        asked, kind = seen.grammar.questions, QUESTIONS.get(one.op)
        none: tuple[str | None, list[str]] = (kind, [])
        own = [
            fact
            for fact in _answers(entries)
            if about in (fact["call_id"], fact["turn"])
            and (kind is None or asked.get((fact["turn"], fact["call_id"]), none)[0] == kind)
        ]
        errors = [entry.payload["message"] for entry in told if entry.payload["type"] == "error"]
        decides = [] if errors else [fact for fact in own if fact.get("agent_id") is None]
        # Answers to several questions of a turn that are read together each fit their own.
        unfit = [_unfit(one, asked.get((fact["turn"], fact["call_id"]), none)[1]) for fact in decides]
        if unfit and all(unfit):
            self._broken(session, f"{one.op} {one.id} decides about {about}, and {unfit[0]}")
        clear = one.op == "user_input_answer" and one.kind == "submission" and decides
        if clear and "token" in one.said["response"]["answers"] and not _warns(told):
            self._broken(session, f"{one.id} was handed in in clear, and nobody is warned")
        if errors:
            self._late(session, seen, errors[0])
        elif not own:
            earlier = [
                fact
                for other in self._watch.members[seen.tree].values()
                if agent in (None, other.state.facts.agent_id)
                for fact in _answers(other.entries)
                if about in (fact["call_id"], fact["turn"])
            ]
            said = one.said.get("decision")
            same = [fact for fact in earlier if not isinstance(said, str) or fact["decision"] == said]
            if not same:
                self._broken(session, f"{one.op} {one.id} about {about} is met with silence")

    def _sent_on(self, seen: Seen, mail: Mapping[str, Any], entries: Sequence[Entry]) -> None:
        """An answer that the root has sent on decides, says what was decided last, or is an error there."""
        meant = mail["call_id"], mail["turn"]
        of_it = [fact for fact in _answers(seen.entries) if (fact["call_id"], fact["turn"]) == meant]
        if any(fact in of_it for fact in _answers(entries)):
            return
        response = mail.get("response")
        digest = "" if response is None else digest_of(response)
        said = mail["decision"], digest
        # Two secret answers are never the same, as far as logs tell.
        again = (
            "secret" not in mail and of_it and (of_it[-1]["decision"], of_it[-1].get("digest", "")) == said
        )
        if not again:
            agent = f"agent {seen.state.facts.agent_id}"
            self._late_at_root.append((seen.tree, mail["id"], agent))

    def _late(self, session: str, seen: Seen, error: str) -> None:
        """An answer that comes too late is told the decision on that very call, and whose it was."""
        match = DECIDED.fullmatch(error)
        if match is None:
            return
        call_id, number, decision, who = match.groups()
        agent = int(number) if number else seen.state.facts.agent_id
        members = self._watch.members[seen.tree]
        for other, its in members.items():
            for fact in _answers(its.entries):
                if fact["call_id"] != call_id or (fact["decision"], fact["who"] or "a client") != (
                    decision,
                    who,
                ):
                    continue
                if fact.get("agent_id") is None and its.state.facts.agent_id == agent:
                    return
                if other == session and not number and self._is_under_way(fact, members):
                    return
        self._broken(session, f"is told {error!r}, which nobody has decided of that very call")

    def _is_under_way(self, fact: Mapping[str, Any], members: Mapping[str, Seen]) -> bool:
        """Whether an answer that was sent on may not have been decided yet, as far as the step has read."""
        to = [session for session, seen in members.items() if seen.state.facts.agent_id == fact["agent_id"]]
        decided_s = [self._decided_s.get((session, fact["call_id"], fact["turn"])) for session in to]
        return all(at_s is None or at_s > self._watch.now_s - READ_S for at_s in decided_s)

    def _settings(self, session: str, before: _Before, one: Waiting, entries: Sequence[Entry]) -> None:
        """The settings of an op are set by its step, also where its input joins a turn."""
        named: Mapping[str, Any] = one.said
        if one.op == "user_input":
            named = one.said.get("overrides") or {}
        if one.op != "override_turn_context":
            joins = any(
                e.type == DENDRO and e.payload["kind"] == "steered" and e.payload["id"] == one.id
                for e in entries
            )
            if not joins:
                return
        known = before.settings or {}
        changes = [
            e.payload["changes"] for e in entries if e.type == DENDRO and e.payload["kind"] == "settings"
        ]
        for name in SETTINGS:
            # What a mode says of these counts in their place.
            of_mode = name in ("model", "effort") and named.get("collaboration_mode")
            wanted = None if of_mode else named.get(name)
            if (
                wanted is not None
                and wanted != known.get(name)
                and not any(wanted == it.get(name) for it in changes)
            ):
                self._broken(session, f"{one.id} sets {name} to {wanted}, and {known.get(name)} stays")

    def _broken(self, session: str, seen: str) -> None:
        self._watch.broken("replied", f"{session}: {seen}")


def _warns(told: Sequence[Entry]) -> bool:
    return any(
        entry.payload["type"] == "warning" and "in clear" in entry.payload["message"] for entry in told
    )


def _unfit(one: Waiting, names: Sequence[str]) -> str:
    """The reason why an answer decides nothing, whatever is asked; empty if it may decide."""
    response = one.said.get("response")
    if not isinstance(response, Mapping):
        return ""
    if response.get("type") == "revised" and not str(response.get("feedback", "")).strip():
        return "says nothing"
    given = response.get("answers")
    strange = [name for name in given if name not in names] if names and isinstance(given, Mapping) else []
    return f"{strange} was not asked" if strange else ""


def _answers(entries: Sequence[Entry]) -> Iterator[Mapping[str, Any]]:
    for entry in entries:
        if entry.type == DENDRO and entry.payload["kind"] == "answer":
            yield entry.payload
