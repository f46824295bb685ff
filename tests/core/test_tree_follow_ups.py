"""Another word to an agent: what it makes void and what it leaves; and the second time of what agents do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.core.birth import Birth, first_entries
from orchestrator.core.calls import Await
from orchestrator.core.client_tools import ClientTools
from orchestrator.core.ids import AgentId
from orchestrator.core.snapshot import decode, encode
from tests.core.driver import NOON_MS, Seen, a_command, assistant, op
from tests.core.tree_driver import Agent, TreeDriver, a_family, a_tree, answers, statuses


def letters(seen: Seen) -> list[str]:
    part = seen.decision.tree
    return [] if part is None else [each.kind for each in part.outbox]


# ── follow-ups ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asked", [1, 2])
def test_new_work_for_one_child_voids_its_unread_result_and_nothing_else(asked: int) -> None:
    tree, children = a_family(2)
    tree.root.begin()
    for child in children:
        child.sends(0, f"note of {child.id}")
        answers(child, f"result of {child.id}")
    tree.settle()
    target = tree.target(asked)
    tree.root.calls("m", name="subagent_send_message")
    tree.root.ends()
    tree.root.assessed("m", c.SendMessage(target, "once more"))
    left = [(mail.agent_id, mail.kind) for mail in tree.root.state.tree.inbox]
    assert left == [
        (child.id, kind)
        for child in children
        for kind in ("message", "completion")
        if (child.id, kind) != (asked, "completion")
    ]
    tree.settle()
    tree.check()


@pytest.mark.parametrize("prompt", ["", "look again"])
def test_parent_knows_a_child_by_the_label_that_it_gave_it_last(prompt: str) -> None:
    tree, (child, _) = a_family(2)
    said = tree.root.sends(child.id, prompt, label="archivist")
    tree.settle()
    answers(child)
    (ready,) = tree.root.awaits()["ready"]
    assert (said["label"], ready["metadata"]["label"]) == ("archivist", "archivist")
    shown = tree.registry().agents[child.id].summary()
    assert (shown["label"], shown["summary"]) == ("archivist", prompt or "part 0")
    tree.check()


GONE: dict[str, Callable[[TreeDriver, c.Target], c.Target]] = {
    "marked": lambda tree, target: replace(target, marked=True),
    "by the registry": lambda tree, target: replace(target, status="canceled"),
    "by its parent's log": lambda tree, target: target,
}


@pytest.mark.parametrize("known", GONE)
@pytest.mark.parametrize("said", [{"prompt": "again"}, {"label": "late"}, {"interrupt": True}])
def test_agent_that_was_cancelled_is_sent_nothing_however_that_is_known(
    known: str, said: dict[str, Any]
) -> None:
    tree, (child,) = a_family()
    target = tree.target(1)
    if known == "by its parent's log":
        tree.root.cancels(1)
        tree.settle()
        assert tree.root.state.tree.children[child.id].status == "canceled"
    asked = c.SendMessage(GONE[known](tree, target), **said)
    assert tree.root.asks("m", "subagent_send_message", asked) == (
        "agent 1 was canceled, for good: spawn another one"
    )
    assert letters(tree.root.seen[-1]) == []
    assert not tree.queues[child.sid]


def test_agent_is_described_alike_to_its_parent_and_to_another_that_writes_to_it() -> None:
    """But for what only its parent knows: how many messages it began with."""
    tree, (child, sibling) = a_family(2)
    to_parent, to_sibling = tree.root.sends(child.id, "go on"), sibling.sends(child.id, "and this")
    assert to_parent.keys() - to_sibling.keys() == {"initial_message_count"}
    assert not to_sibling.keys() - to_parent.keys()


def test_new_label_that_crosses_a_cancel_is_nobodys() -> None:
    tree, (child, sibling) = a_family(2)
    before = tree.registry().agents[child.id].summary()
    sibling.sends(child.id, label="archivist")
    message = tree.queues[child.sid].popleft()
    tree.root.cancels(child.id)
    tree.settle()
    child.happens(message)
    after = tree.registry().agents[child.id].summary()
    assert (before["label"], after["label"], after["status"]) == (None, None, "canceled")
    tree.check()


@pytest.mark.parametrize("ends", [1, 2, 3])
@pytest.mark.parametrize("written", ["before the end", "behind the end, unheard", "knowing of the end"])
def test_parent_is_told_that_its_child_works_again_only_where_it_did_not_ask_for_that(
    written: str, ends: int
) -> None:
    tree, (child,) = a_family()
    for number in range(1, ends):
        answers(child, f"done {number}")
        tree.settle()
        tree.root.sends(1, "once more", f"m{number}")
        tree.settle()
    tree.root.begin()
    tree.root.calls("m", name="subagent_send_message")
    tree.root.ends()
    if written != "before the end":
        answers(child, "done")
    if written == "knowing of the end":
        tree.settle()
    tree.root.assessed("m", c.SendMessage(tree.target(1), "one thing more"))
    message = tree.queues[child.sid].popleft()
    assert isinstance(message, c.MailArrived)
    if written == "before the end":
        answers(child, "done")
    assert (message.payload["turn"], child.state.tree.turns) == (
        ends - (written != "knowing of the end"),
        ends,
    )
    assert ("slot" in message.payload) == (written != "before the end"), "an agent at rest is paid for"
    seen = child.happens(message)
    assert child.standing == "running"
    assert ("status" in letters(seen)) == (written != "knowing of the end")
    tree.settle()
    assert tree.root.state.tree.children[child.id].active
    assert tree.counter("slots") == 1
    tree.check()


@pytest.mark.parametrize("first", ["sibling", "parent, unheard", "parent, knowing"])
def test_parent_is_told_of_work_that_another_agent_paid_for_unless_it_asked_for_that_as_well(
    first: str,
) -> None:
    tree, (child, sibling) = a_family(2)
    child.begin()
    child.interrupt()
    if first != "parent, unheard":
        child.stopped()
        tree.settle()
    if first.startswith("parent"):
        tree.root.begin()
        tree.root.calls("m", name="subagent_send_message")
        tree.root.ends()
        if first == "parent, unheard":
            child.stopped()
        tree.root.assessed("m", c.SendMessage(tree.target(1), "one thing more"))
    sibling.begin()
    sibling.calls("n", name="subagent_send_message")
    sibling.ends()
    sibling.assessed("n", c.SendMessage(tree.target(1), "and this"))
    seen = child.happens(tree.queues[child.sid].popleft())
    assert ("status" in letters(seen)) == (first != "parent, knowing")
    tree.settle()
    assert tree.root.state.tree.children[child.id].active
    assert tree.counter("slots") == 2
    tree.check()


def test_await_of_some_children_takes_strangers_words_and_leaves_those_of_its_other_children() -> None:
    tree, (parent, sibling) = a_family(2)
    named, other = parent.spawns("one"), parent.spawns("two")
    tree.settle()
    parent.begin()
    other.sends(parent.id, "not asked for")
    tree.settle()
    parent.calls("w", name="subagent_await")
    parent.ends()
    parent.assessed("w", Await(300_000, (named.id,)))
    sibling.sends(parent.id, "mind the gap")
    tree.settle()
    ready = parent.told("w")["ready"]
    assert [each["messages"][0]["prompt"] for each in ready] == ["mind the gap"]
    assert [mail.agent_id for mail in parent.state.tree.inbox] == [other.id]
    tree.check()


@pytest.mark.parametrize("named", [(1,), (1, 2), (2,), (1, 3), ()])
def test_await_returns_at_once_where_none_of_those_that_it_names_is_at_work(named: tuple[int, ...]) -> None:
    tree, (first, second, _) = a_family(3)
    for child in (first, second):
        answers(child)
    assert len(tree.root.awaits(call_id="read")["ready"]) == 2
    said = tree.root.awaits(*named)
    at_work = not named or 3 in named
    assert (said is None) == at_work
    assert ("wait:wait" in tree.root.timers) == at_work


@pytest.mark.parametrize("said", ["before the call", "while it waits", "messages without a turn"])
def test_await_returns_at_once_for_input_that_joins_its_task(said: str) -> None:
    tree, (child,) = a_family()
    tree.root.begin()
    if said == "before the call":
        tree.root.say("what else?", "u2", delivery="steer")
    tree.root.calls("w", name="subagent_await")
    tree.root.ends()
    tree.root.assessed("w", Await(300_000))
    if said == "while it waits":
        assert tree.root.task.waiting is not None
        tree.root.say("what else?", "u2", delivery="steer")
    elif said == "messages without a turn":
        added = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "by the way"}]}
        tree.root.submit(op("inject_items", items=[added]), "i1")
        assert tree.root.told("w") is None
        return
    waited = {"timed_out": False, "injected": False, "ready": [], "waiting": [child.id]}
    assert (tree.root.told("w"), tree.root.timers) == (waited, {})
    tree.root.begin()
    assert tree.root.texts()[-1] == "what else?"
    assert child.standing == "running"
    tree.check()


def test_word_of_a_child_that_works_is_no_result_and_says_that_it_works() -> None:
    tree, (first, second) = a_family(2)
    tree.root.begin()
    first.sends(0, "half done")
    second.answers("all done")
    tree.settle()
    tree.root.calls("w", name="subagent_await")
    tree.root.ends()
    tree.root.assessed("w", Await(300_000))
    word, result = tree.root.told("w")["ready"]
    assert (word["lifecycle_status"], word["metadata"]["status"], word["completion"]) == (
        "running",
        "running",
        None,
    )
    assert [said["prompt"] for said in word["messages"]] == ["half done"]
    assert (result["lifecycle_status"], result["completion_status"]) == ("ready", "completed")
    assert result["messages"] == []


# ── words behind a failure ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("came", ["before the failure", "behind it"])
@pytest.mark.parametrize("by", ["its parent", "a person", "its child"])
def test_agent_that_fails_is_begun_again_by_a_word_that_it_has_not_read(by: str, came: str) -> None:
    tree, (agent,) = a_family()
    child = agent.spawns("deeper")
    tree.settle()
    agent.begin()
    if by == "a person":
        word = op("message_agent", agent_id=agent.id, text="mind the gap")
        tree.root.submit(word, "word", who="ann", agents=(tree.target(agent.id),))
    else:
        (tree.root if by == "its parent" else child).sends(agent.id, "mind the gap")
    if came == "before the failure":
        tree.settle()
    agent.breaks("fatal", "no such model")
    tree.settle()
    assert [mail.content["completion_status"] for mail in tree.root.state.tree.inbox] == ["failed"]
    assert (agent.standing, agent.task.id) == ("running", "auto-1")
    assert [one.agent_id for one in tree.root.state.tree.active_children] == [agent.id]
    tree.check()
    agent.begin()
    assert "mind the gap" in str(agent.shown()[-1])
    agent.breaks("fatal", "no such model")
    assert (agent.standing, agent.state.tree.inbox) == ("failed", ())


def test_word_of_a_person_to_a_root_that_fails_is_read_and_results_wait() -> None:
    tree, (child,) = a_family()
    tree.root.begin()
    answers(child)
    tree.settle()
    tree.root.breaks("fatal", "no such model")
    assert tree.root.state.task is None
    tree.root.say("again", "u2")
    tree.root.begin()
    word = op("message_agent", agent_id=0, text="look again")
    tree.root.submit(word, agents=(tree.target(0),), who="ann")
    tree.settle()
    tree.root.breaks("fatal", "no such model")
    assert tree.root.task.id == "auto-1"


def test_agent_that_fails_before_a_request_has_shown_its_mail_rests_with_it() -> None:
    tree, (agent,) = a_family()
    tree.root.sends(agent.id, "mind the gap")
    tree.settle()
    agent.happens(c.CommitRefused(c.BeginRequest(), "budget_unpriced"))
    assert (agent.standing, agent.state.task) == ("failed", None)
    assert [mail.kind for mail in agent.state.tree.inbox] == ["message"]
    tree.settle()
    tree.check()


# ── the second time ─────────────────────────────────────────────────────────────────────────


def test_each_task_that_mail_begins_has_an_id_of_its_own() -> None:
    tree, (child,) = a_family()
    answers(tree.root)
    begun = []
    for number in range(3):
        child.say("go on", f"u{number}") if number else None
        answers(child)
        tree.settle()
        begun.append(tree.root.task.id)
        tree.root.answers("seen")
        tree.root.state = decode(encode(tree.root.state))
    assert begun == ["auto-1", "auto-2", "auto-3"]


def test_end_is_proved_where_the_worker_was_lost_in_an_earlier_task() -> None:
    tree, (child,) = a_family()
    child.asks_for("c1")
    child.runs("c1")
    child.is_taken_over()
    assert child.state.tree.evidence == "presumed"
    answers(child, "so far")
    tree.settle()
    tree.root.sends(1, "go on")
    tree.settle()
    tree.root.cancels(1)
    tree.settle()
    told = [f.message["cancel"] for f in tree.log if f.message.get("status") == "canceled"]
    assert told == ["proved"]


AGAIN: dict[str, Callable[[TreeDriver, Agent, Agent], Any]] = {
    "of its parent": lambda tree, child, _: tree.root.sends(child.id, "do this", interrupt=True),
    "of a sibling": lambda _, child, sibling: sibling.sends(child.id, "do this", interrupt=True),
    "behind another message": lambda tree, child, sibling: (
        sibling.sends(child.id, "when you have time"),
        tree.root.sends(child.id, "do this", interrupt=True),
    ),
}


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("lost", ["earlier", "earlier, twice", "in this one", "earlier and in this one"])
def test_end_of_a_task_that_an_interrupting_message_began_is_proved_unless_its_own_worker_was_lost(
    lost: str, again: str
) -> None:
    tree, (child, sibling) = a_family(2)
    for number in range(1, 2 + (lost == "earlier, twice")):
        child.asks_for(f"c{number}")
        child.runs(f"c{number}")
        if lost.startswith("earlier"):
            child.is_taken_over()
            assert child.state.tree.evidence == "presumed"
        else:
            child.finishes(f"c{number}")
        before, resting = child.task.id, child.state.tree.turns
        AGAIN[again](tree, child, sibling)
        tree.settle()
        if child.task.id == before:
            child.stopped()
        assert child.task.id != before
        assert child.state.tree.turns == resting, "it was not at rest between"
        assert child.standing == "running"
        assert child.state.tree.evidence == "proved"
    if lost.endswith("this one"):
        child.asks_for("d")
        child.runs("d")
        child.is_taken_over()
    tree.root.cancels(1)
    tree.settle()
    told = [f.message["cancel"] for f in tree.log if f.message.get("status") == "canceled"]
    assert told == ["presumed" if lost.endswith("this one") else "proved"]
    tree.check()


def test_message_of_a_replaced_watchdogs_timer_is_not_sent() -> None:
    tree, _ = a_family()
    for number in (1, 2):
        watch = c.SetWatchdog(tree.target(1), 30_000, f"how far, {number}?")
        tree.root.asks(f"w{number}", "subagent_watchdog", watch)
    now = tree.root.timers["watchdog:1"].generation
    seen = tree.root.happens(c.TimerFired("watchdog:1", now - 1))
    assert (letters(seen), tree.root.timers["watchdog:1"].generation) == ([], now)
    assert letters(tree.root.fires("watchdog:1")) == ["message"]
    assert letters(tree.root.fires("watchdog:1")) == ["message"]


UNRELATED: dict[str, Callable[[Agent], Any]] = {
    "settings": lambda agent: agent.submit(op("override_turn_context", effort="low")),
    "name": lambda agent: agent.submit(op("set_thread_name", name="Work")),
    "path": lambda agent: agent.submit(op("get_path")),
    "look-up": lambda agent: agent.submit(op("list_models")),
    "interrupt": lambda agent: agent.interrupt(),
    "messages": lambda agent: agent.submit(
        op(
            "inject_items",
            items=[{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "note"}]}],
        )
    ),
}


@pytest.mark.parametrize("unrelated", UNRELATED)
@pytest.mark.parametrize("reader", ["agent", "root"])
def test_what_waits_after_an_interrupt_begins_nothing_with_another_op(reader: str, unrelated: str) -> None:
    tree, (child, sibling) = a_family(2)
    agent = child if reader == "agent" else tree.root
    agent.begin()
    if reader == "agent":
        sibling.sends(child.id, "when you have time")
    else:
        word = op("message_agent", agent_id=0, text="when you have time")
        tree.root.submit(word, "word", client="a-client", agents=(tree.target(0),))
    tree.settle()
    agent.interrupt()
    agent.stopped()
    assert (agent.state.task, len(agent.state.tree.inbox)) == (None, 1)
    UNRELATED[unrelated](agent)
    assert agent.state.task is None
    agent.say("go on")
    agent.begin()
    assert "when you have time" in str(agent.shown())


# ── what an agent is made of ────────────────────────────────────────────────────────────────


MADE: dict[str, Callable[[TreeDriver], Agent]] = {
    "spawn": lambda tree: tree.root.spawns("work"),
    "fork": lambda tree: tree.root.forks("work"),
}


@pytest.mark.parametrize("made", MADE)
def test_agent_has_neither_the_client_tools_nor_the_import_of_its_root(made: str) -> None:
    brought = ClientTools("editor", 60_000, ()).wire()
    facts = {"client_tools": brought, "imported_from": "/elsewhere/rollout.jsonl"}
    tree = a_tree(facts=facts)
    own = tree.root.state.facts
    assert (own.client_tools is None, own.imported_from is None) == (False, False)
    for child in (MADE[made](tree), MADE[made](tree)):
        assert (child.state.facts.client_tools, child.state.facts.imported_from) == (None, None)


@pytest.mark.parametrize("made", MADE)
def test_agent_knows_the_turn_that_made_it_and_its_first_line_has_what_its_parents_has(made: str) -> None:
    tree = TreeDriver()
    facts, settings = tree.root.state.facts, tree.root.state.settings
    birth = Birth(facts, settings, "1.2.3", NOON_MS, user_instructions="be brief", git={"branch": "main"})
    tree.root.record(*first_entries(birth))
    for turn in ("u1", "u2"):
        tree.root.say("do it", turn)
        child = MADE[made](tree)
        assert child.state.facts.born_in == turn
        meta = child.state.meta
        assert (meta.instructions, meta.git) == ("be brief", {"branch": "main"})


@pytest.mark.parametrize("made", [*MADE, "helper"])
def test_agent_works_with_the_model_that_was_asked_for_and_else_with_its_parents(made: str) -> None:
    tree = a_tree()

    def make(**spec: Any) -> Agent:
        if made == "helper":
            number = tree.next_id()
            asked = c.Helper(tree.spec(number, "read it", **spec), "Reads")
            assert tree.root.asks(f"h{number}", "spawn_subagent", asked) is None
            tree.settle()
            answers(tree.agents[number])
            tree.settle()
            return tree.agents[number]
        return tree.root.spawns("work", **spec) if made == "spawn" else tree.root.forks("work", **spec)

    models = [make(**spec).state.settings.model for spec in ({}, {"model": "other"}, {})]
    assert models == ["gpt-5", "other", "gpt-5"]
    assert tree.root.state.settings.model == "gpt-5"


@pytest.mark.parametrize(("mode", "told"), [("plan", True), ("pair_programming", True), (None, False)])
def test_fork_of_a_conversation_in_a_mode_is_told_that_it_is_in_none(mode: str | None, told: bool) -> None:
    tree = TreeDriver()
    if mode is not None:
        settings = {"mode": mode, "settings": {"model": "gpt-5"}}
        tree.root.submit(op("override_turn_context", collaboration_mode=settings))
    tree.root.say("do it", "u1")
    child = tree.root.forks("work")
    tree.settle()
    assert child.state.settings.collaboration_mode is None
    assert ("You are in code mode" in " ".join(child.texts())) == told


# ── pruned at work ──────────────────────────────────────────────────────────────────────────


def test_agent_that_is_pruned_at_work_stops_and_gives_its_slot_back() -> None:
    tree, (child, _) = a_family(2)
    child.asks_for("c1")
    child.assessed("c1", a_command("make", safe=True))
    said = tree.root.prunes(child.id, completed_only=False)
    assert (said["pruned"], tree.fields["cancel:1"]) == ([child.sid], b"1")
    tree.settle()
    assert child.task.stopping == "canceled"
    child.stopped(c1=1.0)
    tree.settle()
    assert (child.standing, tree.counter("slots")) == ("canceled", 1)
    assert statuses(tree) == {2: "running"}
    assert tree.root.state.tree.inbox == (), "its result is nobody's"
    tree.check()


def test_agent_that_began_again_just_before_it_was_pruned_ends_with_its_next_request() -> None:
    tree, (child,) = a_family()
    answers(child)
    tree.settle()
    at_rest = tree.target(child.id)
    child.say("and this", "u2")
    asked = c.Prune((at_rest,), {"agent_ids": [1]}, (), True)
    tree.root.asks("prune", "subagent_prune", asked)
    tree.settle()
    assert child.task.stopping is None, "nobody has told it to stop"
    child.happens(c.BeginRequest())
    tree.settle()
    assert (child.status, child.standing, tree.counter("slots")) == ("idle", "canceled", 0)
    assert AgentId(1) not in tree.registry().agents


# ── what is told of a child ─────────────────────────────────────────────────────────────────


def test_parent_reads_under_which_heading_each_child_worked() -> None:
    tree, children = a_family(3)
    for child, heading in zip(children, ("Reading", "", "Counting"), strict=True):
        child.begin()
        if heading:
            part = {"type": "summary_text", "text": f"**{heading}** at first"}
            child.item({"type": "reasoning", "summary": [part]})
        child.answers_now("done")
    ready = tree.root.awaits()["ready"]
    assert [each["metadata"]["reasoning_header"] for each in ready] == ["Reading", None, "Counting"]


@pytest.mark.parametrize("worked", [False, True])
def test_end_of_an_agent_whose_result_waits_tells_that_it_was_read_only_where_there_was_one(
    worked: bool,
) -> None:
    tree = a_tree()
    child = tree.root.forks("look" if worked else "")
    tree.settle()
    if worked:
        answers(child)
        tree.root.awaits()
    at_rest = replace(tree.target(child.id), status="running")
    asked = c.CancelAgent(at_rest)
    tree.root.asks("m", "subagent_send_message", c.SendMessage(tree.target(child.id), "go on"))
    message = tree.queues[child.sid].popleft()
    tree.root.asks("x", "subagent_cancel", asked)
    tree.settle()
    child.happens(message)
    tree.settle()
    assert child.state.tree.ended
    idle = [fact.message for fact in tree.log if fact.message.get("status") == "idle"]
    assert len(idle) == (2 if worked else 0)
    assert not tree.root.state.tree.active_children


# ── ends of agents, and words to them ───────────────────────────────────────────────────────


def test_agent_that_was_closed_is_started_again_by_a_message() -> None:
    tree, (child, sibling) = a_family(2)
    answers(child)
    tree.settle()
    child.shutdown()
    assert child.status == "closed"
    tree.root.sends(child.id, "once more")
    tree.settle()
    child.begin()
    assert child.texts()[-1] == "once more"
    assert sibling.standing == "running"
    tree.check()


@pytest.mark.parametrize("at_work", [True, False])
def test_watchdogs_of_an_agent_end_with_its_cancel(at_work: bool) -> None:
    tree, (child, _) = a_family(2)
    for target in (1, 2):
        watch = c.SetWatchdog(tree.target(target), 30_000, "how far?")
        child.asks(f"w{target}", "subagent_watchdog", watch)
    assert len(child.timers) == 2
    if not at_work:
        answers(child)
        tree.settle()
        tree.root.sends(child.id, "go on")
        tree.queues[child.sid].clear()
        tree.inboxes[child.sid] = [0, 0]
    asked = c.CancelAgent(replace(tree.target(child.id), status="running"))
    tree.root.asks("x", "subagent_cancel", asked)
    tree.settle()
    assert (child.timers, dict(child.state.tree.watchdogs)) == ({}, {})


@pytest.mark.parametrize("by", ["a person", "its parent"])
def test_instruction_says_in_its_event_who_gave_it(by: str) -> None:
    tree, (child,) = a_family()
    child.begin()
    if by == "a person":
        word = op("message_agent", agent_id=child.id, text="look again")
        tree.root.submit(word, "word", who="ann", agents=(tree.target(child.id),))
    else:
        tree.root.sends(child.id, "look again")
    tree.settle()
    child.item(assistant("hm"))
    child.ends()
    told = child.happens(c.BeginRequest()).one("user_message")
    given = {"who": "ann"} if by == "a person" else {"from_session": tree.root.sid}
    assert {name: told[name] for name in ("who", "from_session") if name in told} == given
    assert told["message"] == "look again"


@pytest.mark.parametrize("gone", [(1,), (2,), (1, 2)])
def test_unread_results_of_pruned_agents_are_void_and_no_others(gone: tuple[int, ...]) -> None:
    tree, children = a_family(3)
    tree.root.begin()
    for child in children:
        child.sends(0, "half of it is there")
        answers(child, f"result of {child.id}")
    tree.settle()
    targets = tuple(map(tree.target, gone))
    tree.root.calls("p", name="subagent_prune")
    tree.root.ends()
    tree.root.assessed("p", c.Prune(targets, {"agent_ids": list(gone)}))
    tree.settle()
    left = [child.id for child in children if child.id not in gone]
    inbox = tree.root.state.tree.inbox
    assert [mail.agent_id for mail in inbox if mail.kind == "completion"] == left
    assert [mail.agent_id for mail in inbox if mail.kind == "message"] == [child.id for child in children]
    assert list(statuses(tree)) == left
    tree.check()
