"""Questions of agents, decided without I/O: they surface at the root, and are answered there."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import Mcp, Phase, QuestionWork, UserInputWork
from orchestrator.core.calls.approval_policy import Segment, StrictRule, prefix_key
from orchestrator.core.decide.call import MOST_NAMED
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.ops import Op
from tests.core.driver import Seen, a_command, a_patch, exec_end, op, sandboxed, text
from tests.core.tree_driver import Agent, TreeDriver, a_family, answers, told_by


def below(agent: Agent, *calls: str) -> tuple[c.PendingBelow, ...]:
    return tuple(
        c.PendingBelow(agent.id, agent.sid, CallId(call), agent.task.id, sandboxed(agent.call(call)))
        for call in calls
    )


def asking(child: Agent, call_id: str = "c1") -> None:
    child.asks_for(call_id)
    child.assessed(call_id, a_command("rm", "-rf", "x", dangerous=True))


def test_childs_question_surfaces_at_the_root_and_is_answered_there() -> None:
    tree, (child,) = a_family()
    grandchild = child.spawns("deeper")
    tree.settle()
    asking(grandchild)
    asked = tree.log[-1].message
    assert (asked["type"], asked["agent_id"], asked["agent_path"]) == ("exec_approval_request", 2, "0/1/2")
    shown = {"text": "OUTSIDE THE SANDBOX", "surface": "terminal", "opened_ms": 7}
    answer = op("exec_approval", id="c1", decision="approved", shown=shown)
    tree.root.submit(answer, below=below(grandchild, "c1"), who="ann")
    tree.settle()
    assert grandchild.call("c1").phase is Phase.RUNNING
    assert grandchild.state.answers[-1].who == "ann"
    entries = [entry.payload for seen in grandchild.seen for entry in seen.entries]
    [fact] = [payload for payload in entries if payload.get("kind") == "answer"]
    assert (fact["shown"], fact["surface"], fact["opened_ms"]) == ("OUTSIDE THE SANDBOX", "terminal", 7)


def test_root_is_warned_of_an_agents_decision_that_nobody_has_signed_where_signatures_are_wanted() -> None:
    tree, (child,) = a_family()
    child.rules = replace(child.rules, signed_answers="wanted")
    asking(child)
    tree.root.submit(op("exec_approval", id="c1", decision="approved"), below=below(child, "c1"))
    tree.settle()
    assert child.call("c1").phase is Phase.RUNNING
    [warning] = [entry.message for entry in tree.log if entry.message["type"] == "warning"]
    assert "c1 of agent 1 was decided without a signature" in warning["message"]


@pytest.mark.parametrize("by", ["settings", "rule"])
@pytest.mark.parametrize("decision", ["approved", "approved_for_session", "denied", "abort"])
def test_decision_at_the_root_that_nobody_has_signed_leaves_an_agents_request_open(
    by: str, decision: str
) -> None:
    tree, (child,) = a_family()
    if by == "settings":
        child.rules = replace(child.rules, signed_answers="required")
    child.asks_for("c1")
    rule = StrictRule("prompt", "deploys are signed", sign=True) if by == "rule" else None
    child.assessed("c1", a_command("make", "deploy", dangerous=True, strict_rule=rule))
    tree.root.submit(op("exec_approval", id="c1", decision=decision), "a1", below=below(child, "c1"))
    tree.settle()
    assert child.call("c1").phase is Phase.AWAITING_APPROVAL
    assert child.state.approved == frozenset()
    (error,) = [entry.message for entry in tree.log if entry.message["type"] == "error"]
    assert error["message"].startswith("c1 of agent 1 was not answered: answers have to be signed here")


@pytest.mark.parametrize("who", ["", "ann"])
@pytest.mark.parametrize("decision", ["approved", "denied", "abort"])
def test_answer_that_the_root_sends_on_is_its_senders_in_both_logs(who: str, decision: str) -> None:
    tree, (_, child) = a_family(2)
    asking(child)
    turn, asked = child.task.id, below(child, "c1")
    answer = op("exec_approval", id="c1", decision=decision)
    seen = tree.root.submit(answer, below=asked, who=who, client="a-client")
    tree.settle()
    last = child.state.answers[-1]
    assert (last.call_id, last.decision, last.who) == ("c1", decision, who or "a-client")
    [fact] = [entry.payload for entry in seen.entries if entry.payload.get("kind") == "answer"]
    told = {name: fact[name] for name in ("agent_id", "call_id", "turn", "decision", "who")}
    assert told == {
        "agent_id": child.id,
        "call_id": "c1",
        "turn": turn,
        "decision": decision,
        "who": who or "a-client",
    }


def test_answer_of_the_root_to_itself_names_no_agent_in_its_log() -> None:
    tree, _ = a_family()
    asking(tree.root)
    seen = tree.root.submit(op("exec_approval", id="c1", decision="approved", agent_id=0))
    [fact] = [entry.payload for entry in seen.entries if entry.payload.get("kind") == "answer"]
    assert "agent_id" not in fact


@pytest.mark.parametrize("first", [0, 1])
def test_answer_means_the_call_of_that_name_before_the_turn_of_that_name(first: int) -> None:
    tree, children = a_family(2)
    named, other = children[first], children[1 - first]
    asking(named, other.task.id)
    asking(other, "c9")
    asked = tuple(each for child in children for each in below(child, *child.task.calls._places))
    tree.root.submit(op("exec_approval", id=other.task.id, decision="approved"), below=asked)
    tree.settle()
    assert named.call(other.task.id).phase is Phase.RUNNING
    assert other.call("c9").phase is Phase.AWAITING_APPROVAL


@pytest.mark.parametrize("second", ["approved", "denied", "abort"])
@pytest.mark.parametrize("said", ["approved", "denied", "abort"])
def test_answer_that_comes_behind_two_decisions_is_told_who_made_the_last_one(second: str, said: str) -> None:
    tree, (child,) = a_family(settings={"approval_policy": "on-failure"})
    child.asks_for("c1")
    child.assessed("c1", a_command("make", dangerous=True))
    asked = below(child, "c1")
    tree.root.submit(op("exec_approval", id="c1", decision=said), "late", below=asked, who="cas")
    late = tree.queues[child.sid].popleft()
    child.decides("c1", "approved", who="ann")
    child.finishes("c1", "denied", events=(exec_end("c1", 1),), sandbox_denied=True)
    child.decides("c1", second, who="ben")
    child.happens(late)
    told = [fact.message["message"] for fact in tree.log if fact.message["type"] == "error"]
    assert told == ([] if said == second else [f"c1 of agent 1 was already decided: {second}, by ben"])


def withdrawals(tree: TreeDriver) -> list[tuple[str, str, str]]:
    """Calls of agents as the root was told of their decisions, with who decided."""
    return [
        (m["call_id"], m["decision"], m["who"])
        for m in (fact.message for fact in tree.log)
        if m["type"] == "request_resolved"
    ]


@pytest.mark.parametrize("at_root", [True, False])
@pytest.mark.parametrize("earlier", ["abort", "denied", "approved"])
def test_request_that_ends_with_its_turn_is_withdrawn_whatever_was_decided_under_its_id_in_an_earlier_turn(
    earlier: str, at_root: bool
) -> None:
    tree, (child,) = a_family()
    asking(child)
    if at_root:
        answer = op("exec_approval", id="c1", decision=earlier)
        tree.root.submit(answer, below=below(child, "c1"), who="ann")
        tree.settle()
    else:
        child.decides("c1", earlier, who="ann")
    if earlier == "approved":
        child.finishes("c1")
    if earlier != "abort":
        answers(child)
    tree.settle()
    for turn in ("u2", "u3"):
        child.say("more", turn)
        asking(child)
        child.interrupt()
        tree.settle()
    assert withdrawals(tree) == [("c1", earlier, "ann"), ("c1", "withdrawn", ""), ("c1", "withdrawn", "")]


@pytest.mark.parametrize("aborted", ["c1", "c2", "c3"])
def test_abort_of_one_of_several_requests_withdraws_the_others_in_nobodys_name(aborted: str) -> None:
    """Also where the others were aborted by people in earlier turns."""
    tree, (child,) = a_family()
    for turn, (call, who) in enumerate((("c1", "ann"), ("c2", "bob"), ("c3", "cas"), (aborted, "dora"))):
        if turn:
            child.say("more", f"u{turn}")
        child.asks_for("c1", "c2", "c3")
        for asked in ("c1", "c2", "c3"):
            child.assessed(asked, a_command("rm", "-rf", asked, dangerous=True))
        before = len(tree.log)
        child.decides(call, "abort", who=who)
        tree.settle()
        told = {
            m["call_id"]: (m["decision"], m["who"])
            for m in (fact.message for fact in tree.log[before:])
            if m["type"] == "request_resolved"
        }
        assert told == {
            one: ("abort", who) if one == call else ("withdrawn", "") for one in ("c1", "c2", "c3")
        }


def test_answer_that_two_children_could_mean_is_refused_by_name() -> None:
    tree, (first, second) = a_family(2)
    asking(first)
    asking(second)
    pending = below(first, "c1") + below(second, "c1")
    seen = tree.root.submit(op("exec_approval", id="c1", decision="approved"), below=pending)
    assert seen.one("error")["message"] == (
        "several requests are open under 'c1' in the tree: c1 of agent 1, c1 of agent 2; "
        "answer one by its call id and agent_id"
    )
    tree.root.submit(op("exec_approval", id="c1", decision="denied", agent_id=2), below=pending)
    tree.settle()
    assert first.call("c1").phase is Phase.AWAITING_APPROVAL
    assert second.call("c1").phase is Phase.DONE


def test_answer_that_no_agent_waits_for_names_the_requests_that_are_open() -> None:
    tree, (child, _) = a_family(2)
    asking(child)
    for id, agent_id, where in (("c1", 2, "'c1' of agent 2"), ("c9", None, "'c9'")):
        answer = op("exec_approval", id=id, decision="approved", agent_id=agent_id)
        seen = tree.root.submit(answer, below=below(child, "c1"))
        assert seen.one("error")["message"] == (
            f"no request is open under {where}: it has ended, or never was; nothing was done; "
            "open are c1 of agent 1"
        )
    assert child.call("c1").phase is Phase.AWAITING_APPROVAL


def test_error_about_an_answer_names_so_many_open_requests_and_counts_the_rest() -> None:
    tree, (child,) = a_family()
    asking(child)
    seen = tree.root.submit(
        op("exec_approval", id="c1", decision="approved"), below=below(child, "c1") * (MOST_NAMED + 3)
    )
    assert seen.one("error")["message"].count("c1 of agent 1") == MOST_NAMED
    assert "c1 of agent 1 and 3 more; answer one" in seen.one("error")["message"]


def test_answer_at_the_root_to_a_confined_command_does_not_let_it_run_unconfined() -> None:
    tree, (child,) = a_family(
        settings={"approval_policy": "untrusted", "sandbox_policy": {"mode": "workspace-write"}}
    )
    child.asks_for("c1")
    child.assessed("c1", a_command("make"))
    both_saw = below(child, "c1")
    tree.root.submit(op("exec_approval", id="c1", decision="approved"), below=both_saw, who="ann")
    tree.settle()
    child.finishes("c1", "denied", events=(exec_end("c1", 1),), sandbox_denied=True)
    tree.root.submit(op("exec_approval", id="c1", decision="approved"), below=both_saw, who="bob")
    tree.settle()
    assert child.call("c1").phase is Phase.AWAITING_APPROVAL
    tree.root.submit(op("exec_approval", id="c1", decision="approved"), below=below(child, "c1"), who="bob")
    tree.settle()
    assert sandboxed(child.call("c1")) is False


def test_answer_at_the_root_to_an_earlier_turn_does_not_count_for_a_later_call_of_that_id() -> None:
    tree, (child,) = a_family()
    asking(child)
    of_the_first_turn = below(child, "c1")
    tree.root.sends(child.id, "do this instead", interrupt=True)
    tree.settle()
    asking(child)
    tree.root.submit(op("exec_approval", id="c1", decision="approved"), below=of_the_first_turn, who="ann")
    tree.settle()
    assert child.call("c1").phase is Phase.AWAITING_APPROVAL
    assert "c1 of agent 1 is not asked any more" in tree.log[-1].message["message"]


def test_late_answer_to_an_earlier_turn_is_not_held_against_a_later_call_of_that_id() -> None:
    tree, (child,) = a_family()
    asking(child)
    answer = op("exec_approval", id="c1", decision="approved")
    tree.root.submit(answer, "late", below=below(child, "c1"), who="cas")
    late = tree.queues[child.sid].popleft()
    child.interrupt()
    child.say("more", "u2")
    asking(child)
    child.decides("c1", "approved", who="ann")
    child.happens(late)
    told = [fact.message["message"] for fact in tree.log if fact.message["type"] == "error"]
    assert told == ["c1 of agent 1 is not asked any more: its turn has ended"]


def test_second_answer_under_a_turns_id_is_held_against_the_last_decision_of_that_turn() -> None:
    tree, _ = a_family()
    for n, decision in enumerate(("approved", "denied")):
        asking(tree.root, f"c{n}")
        tree.root.decides(f"c{n}", decision, who=f"person {n}")
        if decision == "approved":
            tree.root.finishes(f"c{n}")
    assert errors(tree.root.decides(tree.root.task.id, "denied")) == []
    told = errors(tree.root.decides(tree.root.task.id, "approved"))
    assert told == ["c1 was already decided: denied, by person 1"]


def test_prefix_allowed_at_the_root_counts_for_the_agent_that_asked_alone() -> None:
    tree, (child, other) = a_family(2, settings={"approval_policy": "untrusted"})
    asked = a_command("touch", "x", segments=(Segment(("touch", "x")),))
    child.asks_for("c1")
    child.assessed("c1", asked)

    def amends(*prefix: str) -> None:
        decision = {"approved_execpolicy_amendment": {"proposed_execpolicy_amendment": list(prefix)}}
        answer = op("exec_approval", id="c1", decision=decision)
        tree.root.submit(answer, below=below(child, "c1"), who="ann")
        tree.settle()

    amends("mv")
    assert child.call("c1").phase is Phase.AWAITING_APPROVAL
    assert "c1 of agent 1 was not answered" in tree.log[-1].message["message"]
    amends("touch")
    assert child.call("c1").phase is Phase.RUNNING
    assert child.state.approved == {prefix_key(("touch",))}
    assert tree.root.state.approved == other.state.approved == frozenset()


def test_end_of_an_agents_request_is_told_to_clients_of_the_root_and_of_the_agent() -> None:
    tree, (child,) = a_family()
    asking(child)
    seen = child.decides("c1", "approved", who="ann")
    part = seen.decision.tree
    assert part is not None
    told = {told_by(event)["type"]: set(event.targets) for event in part.events}
    assert told["request_resolved"] == {tree.root.sid, child.sid}


def test_second_answer_at_the_root_is_told_who_decided() -> None:
    tree, (child,) = a_family()
    asking(child)
    tree.root.submit(op("exec_approval", id="c1", decision="approved"), below=below(child, "c1"), who="ann")
    seen = tree.root.submit(op("exec_approval", id="c1", decision="denied"), who="bob")
    assert "by ann" in seen.one("error")["message"]


def test_root_is_told_once_of_each_request_that_an_abort_settles() -> None:
    tree, (child,) = a_family()
    child.asks_for("c1", "c2")
    child.assessed("c1", a_command("rm", "-rf", "x", dangerous=True))
    child.submit(op("exec_approval", id="c1", decision="abort"), who="ann")
    told = [fact.message for fact in tree.log if fact.message["type"] == "request_resolved"]
    assert [(m["call_id"], m["decision"], m["who"]) for m in told] == [("c1", "abort", "ann")]


def test_root_with_agents_is_told_of_every_decision_on_its_own_requests() -> None:
    tree = TreeDriver()
    tree.root.submit(op("user_input", items=[text("do it")]), "u1", client="front")
    tree.root.spawns("part")
    asking(tree.root)
    seen = tree.root.submit(op("exec_approval", id="c1", decision="denied"), who="ann", client="front")
    told = tree.log[-1].message
    assert (told["type"], told["agent_id"], told["who"]) == ("request_resolved", 0, "ann")
    assert seen.decision.tree is not None
    assert set(seen.decision.tree.events[-1].targets) == {tree.root.sid}


def test_root_is_told_what_its_tasks_client_decided_also_while_all_agents_are_at_rest() -> None:
    tree = TreeDriver()
    tree.root.submit(op("user_input", items=[text("do it")]), "u1", client="front")
    child = tree.root.spawns("part")
    tree.settle()
    answers(child)
    tree.settle()
    assert not tree.root.state.tree.active_children
    asking(tree.root)
    tree.root.submit(op("exec_approval", id="c1", decision="denied"), who="ann", client="front")
    told = [fact.message for fact in tree.log if fact.message["type"] == "request_resolved"]
    assert [(each["agent_id"], each["who"]) for each in told] == [(0, "ann")]


def test_root_is_told_of_an_answer_that_nobody_gave_in_time() -> None:
    tree, (child,) = a_family(facts={"approval_timeout_ms": 5_000})
    asking(child)
    child.fires("approval:c1")
    told = tree.log[-1].message
    assert (told["type"], told["decision"], told["who"]) == ("request_resolved", "denied", "timer")


def test_answer_for_another_agent_is_not_held_against_what_the_root_was_asked() -> None:
    tree, (child,) = a_family()
    asking(tree.root)
    tree.root.submit(op("exec_approval", id="c1", decision="approved"), who="ann")
    seen = tree.root.submit(op("exec_approval", id="c1", decision="denied", agent_id=child.id))
    assert "no request is open under 'c1' of agent 1" in seen.one("error")["message"]


def test_answer_that_was_sent_on_is_no_decision_about_a_call_of_the_root() -> None:
    """Models of two agents gave their calls one id: one was answered at the root, the other at its agent."""
    tree, (first, second) = a_family(2)
    asking(first)
    asking(second)
    turns = (first.task.id, second.task.id)
    abort = op("exec_approval", id="c1", decision="abort", agent_id=1)
    tree.root.submit(abort, below=below(first, "c1"), who="ann")
    tree.settle()
    second.submit(op("exec_approval", id="c1", decision="approved"), who="bob")
    decided = tuple(
        c.DecidedBelow(agent.id, CallId("c1"), turn, decision, who)
        for agent, turn, decision, who in zip(
            (first, second), turns, ("abort", "approved"), ("ann", "bob"), strict=True
        )
    )
    for agent_id, said in (
        (None, "c1 of agent 2 was already decided: approved, by bob"),
        (1, "c1 of agent 1 was already decided: abort, by ann"),
        (0, "no request is open under 'c1' of agent 0: it has ended, or never was; nothing was done"),
    ):
        late = op("exec_approval", id="c1", decision="denied", agent_id=agent_id)
        assert tree.root.submit(late, decided=decided).one("error")["message"] == said


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("named", ["call", "turn"])
@pytest.mark.parametrize("agent_id", [None, 1])
def test_late_answer_is_held_against_the_last_decision_of_a_call_that_was_asked_about_again(
    named: str, agent_id: int | None, count: int
) -> None:
    tree, (child,) = a_family()
    asking(child)
    turn = child.task.id
    id = "c1" if named == "call" else turn
    for chosen in itertools.product(("approved", "denied", "abort"), repeat=count):
        decided = tuple(
            c.DecidedBelow(child.id, CallId("c1"), turn, decision, f"person {n}")
            for n, decision in enumerate(chosen)
        )
        for decision in ("approved", "denied", "abort"):
            late = op("exec_approval", id=id, decision=decision, agent_id=agent_id)
            seen = tree.root.submit(late, decided=decided)
            told = [entry.payload["message"] for entry in seen.entries if entry.payload["type"] == "error"]
            said = f"c1 of agent 1 was already decided: {chosen[-1]}, by person {count - 1}"
            assert told == ([] if decision == chosen[-1] else [said])


def errors(seen: Seen) -> list[str]:
    """The errors that a session's client is told by a step."""
    return [message["message"] for _, message in seen.events if message["type"] == "error"]


def said(name: str, *ways: Mapping[str, Any]) -> tuple[Op, ...]:
    """Answers of one op to the request `c1`."""
    return tuple(op(name, id="c1", **way) for way in ways)


DECIDED = tuple({"decision": one} for one in ("approved", "approved_for_session", "denied", "abort"))
WORDS = ("here", "there", "here, there")
ANSWERED: Mapping[str, tuple[str, Any, tuple[Op, ...]]] = {
    "command": (
        "shell",
        a_command("rm", "-rf", "x", dangerous=True),
        said("exec_approval", *DECIDED),
    ),
    "patch": (
        "apply_patch",
        a_patch("/etc/x", outside=("/etc/x",)),
        said("patch_approval", *DECIDED),
    ),
    "question": (
        "ask_user_question",
        QuestionWork(({"question": "Where?", "header": "Where", "options": [], "multiSelect": False},)),
        said(
            "resolve_ask_user_question",
            *({"response": {"type": "answered", "answers": {"Where": words}}} for words in WORDS),
            {"response": {"type": "cancelled"}},
        ),
    ),
    "user_input": (
        "request_user_input",
        UserInputWork(({"id": "place", "header": "Where", "question": "Where?", "isOther": True},)),
        said(
            "user_input_answer",
            *({"response": {"answers": {"place": {"answers": words.split(", ")}}}} for words in WORDS),
            {"response": {"answers": {}}},
        ),
    ),
    "elicitation": (
        "mcp__files__wipe",
        Mcp("files", "wipe", {}, "/repo", read_only=False),
        tuple(
            op("resolve_elicitation", server_name="files", request_id="c1", decision=decision)
            for decision in ("accept", "decline", "cancel")
        ),
    ),
}
"""Per kind of a request: the tool that asks, its work, and answers of which no two say the same."""


@pytest.mark.parametrize("ways", list(itertools.product(["at the agent", "at the root"], repeat=2)))
@pytest.mark.parametrize("kind", ANSWERED)
def test_answer_that_crosses_another_one_is_told_who_decided_where_it_says_something_else(
    kind: str, ways: tuple[str, str]
) -> None:
    """At the root both were given before the agent had the first."""
    tool, work, answered = ANSWERED[kind]
    for first, second in itertools.product(answered, repeat=2):
        tree, (child,) = a_family()
        child.asks_for("call" if kind == "elicitation" else "c1", name=tool)
        child.assessed("call" if kind == "elicitation" else "c1", work)
        if kind == "elicitation":
            child.happens(c.Elicited("call", "c1", "files", "May I?"))
        open_then = (c.PendingBelow(child.id, child.sid, CallId("c1"), child.task.id, None, kind),)
        told = []
        for way, answer, who in zip(ways, (first, second), ("ann", "bob"), strict=True):
            if way == "at the root":
                told += errors(tree.root.submit(answer, below=open_then, who=who))
            else:
                tree.settle()
                told += errors(child.submit(answer, who=who))
        tree.settle()
        told += [fact.message["message"] for fact in tree.log if fact.message["type"] == "error"]
        counts = child.state.answers[-1]
        name = "c1 of agent 1" if ways[1] == "at the root" else "c1"
        late = f"{name} was already decided: {counts.decision}, by ann"
        assert (told, counts.who) == ([late] if first != second else [], "ann"), (first, second)
