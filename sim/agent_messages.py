"""Messages to agents about each other, held against the logs of the agents that they tell of.

A letter says what its sender's log says: a result is the end of the sender's task, a message what the
sender's model wrote. And what a call of the tools for agents is answered with is what the log beside it
did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from typing import Any

import orjson

from sim.grammar import Grammar
from sim.grammar_terms import Item, check
from sim.refusals import may_make, refusal_is_true, to_be_refused

ACTIVE = ("queued", "running")
REQUESTS = (
    *("exec_approval_request", "apply_patch_approval_request", "plan_approval_request"),
    *("ask_user_question_request", "request_user_input", "elicitation_request"),
)
"""Events that ask a person something, which an answer or a withdrawal has to settle."""
NOT_RUN = ("aborted", "not run", "killed", "in doubt", "internal error", "in_doubt")
ENDS = {"completed": "Completed", "failed": "Failed", "canceled": "Canceled"}

LogOf = Callable[[str], Grammar | None]


def letter_is_true(mail: Mapping[str, Any], log_of: LogOf) -> None:
    """A letter that was put into a log, against its sender's; raises `Wrong`."""
    sender, content = mail["sender"], mail["content"]
    log = log_of(sender["session_id"])
    if log is None or mail["key"].startswith("person:"):
        return
    if mail["kind"] == "completion":
        _is_the_end(content, log)
    elif mail["kind"] == "message" and not content.get("watchdog"):
        call = log.asked.get(mail["key"].rpartition(":")[2])
        check(call is not None, f"{mail['key']} was asked for by no call")
        assert call is not None
        given = orjson.loads(call["arguments"])
        same = (content.get("prompt") or "") == given.get("prompt", "")
        check(
            same and mail["interrupt"] == given.get("interrupt", False), f"{given} became the letter {mail}"
        )


def _is_the_end(content: Mapping[str, Any], log: Grammar) -> None:
    end = log.ends.get(content["turn"])
    check(end is not None, f"its turn {content['turn']} never ended")
    assert end is not None
    check(content["status"] == end["status"], f"{content['status']} is told, and it was {end['status']}")
    check(content["tokens"] == end["used"], f"{content['tokens']} tokens are told of {end['used']}")
    told, outcome = content["completion"], content["completion_status"]
    if content["status"] == "canceled":
        check(outcome == "canceled", f"a cancelled agent ended as {outcome}")
        return
    wanted = end["outcome"] if end["outcome"] in ENDS else None
    check(outcome == wanted and bool(told) == bool(wanted), f"{outcome} is told, and it was {end['outcome']}")
    if outcome == "completed":
        said = told["Completed"]["last_message"]
        same = said == end["message"] or not isinstance(said, str) or len(said) > LONG
        check(same, f"{said!r} is told, and it said {end['message']!r}")


LONG = 1_000
"""A text that long may be cut."""


def output_is_true(item: Item, log: Grammar) -> None:
    """The output of a call about agents, against what its log did; raises `Wrong`."""
    call, output = log.asked.get(item["call_id"]), item["output"]
    if call is None:
        return
    check(output is not None, f"{item['call_id']} is answered with nothing")
    if not isinstance(output, str):
        return
    name = call.get("name", "")
    if name not in _JUDGES or output.startswith(NOT_RUN):
        return
    given = orjson.loads(call["arguments"])
    if output.startswith("{"):
        check(not to_be_refused(name, given, log), f"{name} {given} is carried out: {output[:200]}")
        _JUDGES[name](given, orjson.loads(output), log)
    else:
        refusal_is_true(name, given, output, log)


def _awaited(given: Mapping[str, Any], told: Mapping[str, Any], log: Grammar) -> None:
    named = given.get("agent_ids") or []
    ready, waiting = told["ready"], told["waiting"]
    check(waiting == _active(log), f"{waiting} are waited for, {_active(log)} work")
    check(not (told["timed_out"] and ready), "it timed out, and something is ready")
    expected = [id for id in waiting if not named or id in named]
    check(not told["timed_out"] or expected, f"it timed out, and nothing was to come of {named}")
    for group in ready:
        _was_sent(group, log, injected=told["injected"])
        agent = group["metadata"]["agent_id"]
        check(
            told["injected"] or not named or agent in {*named} or agent not in log.children,
            f"{agent}: {named}",
        )
    if told["injected"]:
        check(ready, "nothing is injected")


def _active(log: Grammar) -> list[int]:
    listed = [child for child in log.children.values() if not child["pruned"]]
    return sorted(child["agent_id"] for child in listed if child["status"] in ACTIVE)


def _was_sent(group: Mapping[str, Any], log: Grammar, *, injected: bool) -> None:
    """Everything that a result tells of an agent is in that agent's letters."""
    letters = [mail for mail in log.mails.values() if mail["sender"]["session_id"] == group["session_id"]]
    said: defaultdict[Any, set[str]] = defaultdict(set)
    for mail in letters:
        said[mail["content"].get("prompt"), mail["at_ms"], mail["interrupt"]].add(mail["key"])
    for message in group["messages"]:
        if isinstance(message["prompt"], str):
            keys = said[message["prompt"], message["timestamp_ms"], message["interrupt"]]
            check(keys, f"{message} is in no letter")
            # Messages that are injected unasked are taken off behind the output.
            left = not injected and keys <= set(log.inbox)
            check(not left, f"{message} was read, and waits in the inbox still")
    if group["completion"] is not None:
        ends = [mail["content"] for mail in letters if mail["kind"] == "completion"]
        told = (group["completion_status"], group["completion"])
        check(
            any((end["completion_status"], end["completion"]) == told for end in ends),
            f"{told} is in no letter",
        )


def _made(given: Mapping[str, Any], told: Mapping[str, Any], log: Grammar) -> None:
    if "agent_id" not in told:
        return
    child = log.children.get(told["agent_id"])
    check(child is not None, f"agent {told['agent_id']} is told of, and was not made")
    check(may_make(log), f"agent {told['agent_id']} was made by one that makes none: {log.facts}")
    assert child is not None
    same = told["session_id"] == child["session"] and told["parent_agent_id"] == log.facts["agent_id"]
    check(same and told["parent_session_id"] == log.facts["session_id"], f"{child} is told of as {told}")
    for name in ("origin", "label", "summary"):
        check(told[name] == child[name], f"{name} of {child} is told as {told[name]!r}")
    if given.get("prompt"):
        check(
            told["summary"] == given["prompt"][: len(told["summary"] or "")], f"{given} is told of as {told}"
        )


def _helped(given: Mapping[str, Any], told: Mapping[str, Any], log: Grammar) -> None:
    check(may_make(log), f"a helper was made by an agent that makes none: {log.facts}")
    check(told.get("label") == given.get("label", "subagent"), f"{given} is answered as {told}")
    end = log.before.payload if log.before is not None else {}
    shown = end.get("result", {}).get("Ok") if end.get("type") == "sub_agent_tool_call_end" else None
    check(shown == told.get("response") or not isinstance(shown, str), f"{told} is shown as {shown!r}")


def _sent(given: Mapping[str, Any], told: Mapping[str, Any], log: Grammar) -> None:
    check(told.get("agent_id") == given.get("agent_id"), f"{given} is answered as {told}")
    child = log.children.get(given.get("agent_id", -1))
    if child is not None and told["agent_id"] != 0:
        for name in ("label", "summary"):
            check(told[name] == child[name], f"{name} of {child} is told as {told[name]!r}")
        check(given.get("label") in (None, child["label"]), f"{child} is not called as {given} says")
        working = not given.get("prompt", "").strip() or child["status"] in ACTIVE
        check(working, f"{child} was given work: {given}")
        old = [key for key in log.inbox if _is_end_of(log.mails[key], child)]
        stale = old and given.get("prompt", "").strip()
        check(not stale, f"{child} has new work, and {old} would answer for it")


def _is_end_of(mail: Mapping[str, Any], child: Mapping[str, Any]) -> bool:
    return bool(mail["kind"] == "completion" and mail["sender"]["agent_id"] == child["agent_id"])


def _ended(given: Mapping[str, Any], told: Mapping[str, Any], log: Grammar) -> None:
    child = log.children.get(given.get("agent_id", -1))
    check(child is None or told["session_id"] == child["session"], f"{given} is answered as {told}")


def _set(given: Mapping[str, Any], told: Mapping[str, Any], log: Grammar) -> None:
    if "action" not in told:
        return
    id, stands = told["agent_id"], told["agent_id"] in log.watchdogs
    check(id == given.get("agent_id", id) and told["interval_s"] == given["interval_s"], f"{given}: {told}")
    check(stands == (told["action"] in ("started", "replaced")), f"watchdogs {log.watchdogs} after {told}")
    check((told["action"] in ("canceled", "not_found")) == bool(given.get("cancel")), f"{given}: {told}")
    if stands:
        check(
            log.watchdogs[id]["interval_ms"] == given["interval_s"] * 1000,
            f"{log.watchdogs[id]} after {told}",
        )
        said = log.watchdogs[id]["message"]
        check(said == told["message"] and given.get("message", said) == said, f"{given}: {log.watchdogs[id]}")
        most = log.facts["tree_rules"]["watchdogs"]
        check(len(log.watchdogs) <= most, f"{len(log.watchdogs)} watchdogs of {most} are kept")


def _pruned(given: Mapping[str, Any], told: Mapping[str, Any], log: Grammar) -> None:
    for name, count in told["counts"].items():
        check(count == len(told[name]), f"{count} {name} of {told[name]}")
    own = {child["session"]: child for child in log.children.values()}
    for session in told["pruned"]:
        check(session not in own or own[session]["pruned"], f"{session} is told to be pruned, and is not")
    for session in told["skipped_active"]:
        # A helper is taken off the list with its answer, and a message may wake it all the same.
        check(
            session not in own or not own[session]["pruned"] or own[session].get("helper"),
            f"{session} is told to be skipped, and is pruned",
        )


_JUDGES: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any], Grammar], None]] = {
    "subagent_await": _awaited,
    "subagent_spawn": _made,
    "subagent_fork": _made,
    "subagent_send_message": _sent,
    "subagent_cancel": _ended,
    "subagent_watchdog": _set,
    "spawn_subagent": _helped,
    "subagent_prune": _pruned,
}


def untrue_event(message: Mapping[str, Any]) -> str:
    """The error in an event of the tree log; empty if the event describes the agent that it names."""
    if message.get("type") != "subagent_lifecycle":
        return ""
    shown = message.get("subagent")
    if not isinstance(shown, Mapping):
        return f"{message['event']} of agent {message.get('agent_id')} does not say what it is"
    names = [name for name in ("agent_id", "session_id", "status") if name in message]
    untrue = [name for name in names if shown.get(name) != message[name]]
    return f"{untrue} are told otherwise of the agent: {message}" if untrue else ""


class Surfaced:
    """Requests of agents at their roots, until somebody is told of their end, and errors of agents."""

    def __init__(self) -> None:
        self._open: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
        self._errors: defaultdict[str, set[str]] = defaultdict(set)
        self._decided: list[tuple[str, int, str, str]] = []

    def anew(self, tree: str) -> None:
        """The tree's log is read from its beginning."""
        self._open.pop(tree, None)
        self._errors.pop(tree, None)

    def heard(self, tree: str, id: str, message: Mapping[str, Any]) -> None:
        """An event of the tree's log."""
        if message.get("type") == "error":
            self._errors[tree].add(id)
        asked = next((message[key] for key in ("call_id", "callId", "id") if key in message), "")
        name = message.get("agent_id", 0), asked
        if message.get("type") in REQUESTS:
            self._open[tree].add(name)
        elif message.get("type") == "request_resolved":
            self._open[tree].discard(name)
            self._decided.append((tree, message["agent_id"], message["decision"], message["who"]))

    def decided(self) -> list[tuple[str, int, str, str]]:
        """Tree, agent, decision and whose it was, of each that was told since the last call of this."""
        decided, self._decided = self._decided, []
        return decided

    def errors(self, tree: str) -> Set[str]:
        """Submissions that an agent of the tree answered with an error at the root."""
        return self._errors[tree]

    def left(self, tree: str) -> list[tuple[int, str]]:
        """Agent and call of those that nobody was told the end of."""
        return sorted(self._open[tree])
