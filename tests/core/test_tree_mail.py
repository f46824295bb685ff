"""Messages between the agents of a tree, decided without I/O; watchdogs, which send them again and again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orchestrator.core import commands as c
from orchestrator.core.decide.agent import MOST_TOLD
from orchestrator.core.decide.mail_delivery import MOST_LETTERS
from orchestrator.core.entries import decode_entry
from orchestrator.core.ids import AgentId
from tests.core.driver import assistant, op
from tests.core.tree_driver import Agent, TreeDriver, a_family, a_tree, answers, statuses, told_by

# ── mail ────────────────────────────────────────────────────────────────────────────────────


def test_result_wakes_an_idle_parent_as_a_synthetic_await() -> None:
    tree, (child,) = a_family()
    answers(tree.root, "spawned one")
    answers(child, "found it")
    tree.settle()
    assert tree.root.task.id == "auto-1"
    tree.root.begin()
    call, output = tree.root.shown()[-2:]
    assert call["name"] == "subagent_await"
    assert call["call_id"] == output["call_id"] == "await-0-1"
    assert '"injected":true' in output["output"]
    tree.check()


def test_all_results_that_a_parent_has_not_read_come_in_one_answer_each_by_itself() -> None:
    tree, (child,) = a_family()
    answers(child, "one")
    for number, said in enumerate(("two", "three"), 2):
        child.say("go on", f"u{number}")
        answers(child, said)
    ready = tree.root.awaits()["ready"]
    assert [each["completion"]["Completed"]["last_message"] for each in ready] == ["one", "two", "three"]


@pytest.mark.parametrize("parent", ["has completed", "is at work", "was interrupted", "has failed"])
def test_message_just_before_a_failure_is_read_with_the_failure(parent: str) -> None:
    tree, (child,) = a_family()
    if parent != "was interrupted":
        tree.root.begin()
    if parent == "has completed":
        tree.root.answers_now("so far")
    elif parent == "was interrupted":
        tree.root.interrupt()
    elif parent == "has failed":
        tree.root.breaks("fatal", "no such model")
    child.sends(0, "half of it is there")
    child.begin()
    child.breaks("fatal", "no such model")
    tree.settle()
    assert child.standing == "failed"
    if parent == "is at work":
        tree.root.answers_now("so far")
    elif parent != "has completed":
        # Neither begins a turn of a root that was stopped, or has failed: its next input does.
        assert tree.root.state.task is None
        tree.root.say("and?")
    tree.root.begin()
    (group,) = json.loads(tree.root.shown()[-1]["output"])["ready"]
    assert [message["prompt"] for message in group["messages"]] == ["half of it is there"]
    assert group["completion_status"] == "failed"
    assert tree.root.state.tree.inbox == ()


def test_no_autosubmit_leaves_the_result_for_an_await() -> None:
    tree, (child,) = a_family(facts={"tree_rules": {"autosubmit": False}})
    answers(tree.root)
    answers(child)
    tree.settle()
    assert tree.root.state.task is None
    tree.root.say("and?", "u2")
    assert len(tree.root.awaits()["ready"]) == 1
    assert [i["call_id"] for i in tree.root.shown() if i.get("call_id", "").startswith("await")] == []


@pytest.mark.parametrize("autosubmit", [True, False])
def test_task_goes_on_for_a_result_only_where_results_begin_turns(autosubmit: bool) -> None:
    tree, (child,) = a_family(facts={"tree_rules": {"autosubmit": autosubmit}})
    tree.root.begin()
    answers(child)
    tree.settle()
    tree.root.answers_now("so far")
    assert (tree.root.state.task is not None) is autosubmit
    assert len(tree.root.state.tree.inbox) == 1


def test_result_and_words_of_an_agent_wait_after_an_interrupt_of_its_root() -> None:
    tree, (child,) = a_family()
    tree.root.interrupt()
    child.sends(0, "half of it is there")
    tree.settle()
    assert tree.root.state.task is None
    answers(child)
    tree.settle()
    assert tree.root.state.task is None
    assert [mail.kind for mail in tree.root.state.tree.inbox] == ["message", "completion"]


def test_word_of_a_person_that_comes_behind_an_interrupt_of_its_root_begins_a_task() -> None:
    tree = a_tree()
    word = op("message_agent", agent_id=0, text="look again")
    tree.root.submit(word, agents=(tree.target(0),), who="ann")
    tree.root.interrupt()
    assert tree.root.state.task is None
    tree.settle()
    tree.root.begin()
    assert tree.root.texts()[-1] == "look again"


def test_task_goes_on_while_results_are_there_to_read() -> None:
    tree, (child,) = a_family()
    tree.root.begin()
    answers(child)
    tree.settle()
    tree.root.item(assistant("that is all"))
    tree.root.ends()
    assert tree.root.state.task is not None
    tree.root.begin()
    assert tree.root.shown()[-1]["call_id"] == "await-0-1"


def test_parents_message_is_a_user_message_and_starts_an_idle_child() -> None:
    tree, (child,) = a_family()
    answers(child)
    tree.settle()
    tree.root.sends(1, "look again")
    tree.settle()
    child.begin()
    assert child.texts()[-1] == "look again"
    assert child.task.id == "auto-1"
    tree.check()


def test_siblings_message_is_a_synthetic_await() -> None:
    tree, (first, second) = a_family(2)
    first.sends(2, "mind the gap")
    tree.settle()
    second.begin()
    output = second.told("await-2-1")
    assert output["ready"][0]["messages"][0]["prompt"] == "mind the gap"
    assert output["ready"][0]["metadata"]["agent_id"] == 1


@pytest.mark.parametrize(("sender", "instructs"), [(0, True), (1, True), (2, False), (4, False)])
def test_message_of_anyone_above_instructs_and_of_anyone_else_is_told(sender: int, instructs: bool) -> None:
    tree, (parent, _) = a_family(2)
    reader = parent.spawns("deeper")
    tree.settle()
    reader.spawns("deepest")
    tree.settle()
    assert reader.id == 3
    {agent.id: agent for agent in tree.agents.values()}[AgentId(sender)].sends(
        reader.id, "mind the gap", "said"
    )
    tree.settle()
    reader.begin()
    said = [item for item in reader.state.history if "mind the gap" in str(item)]
    assert [item.get("role") == "user" for item in said] == [instructs]


@pytest.mark.parametrize("reader", [0, 1])
def test_message_with_a_new_label_is_what_an_agent_is_known_by_from_then_on(reader: int) -> None:
    tree, (child, sibling) = a_family(2)
    sibling.sends(reader, "look again", label="archivist")
    tree.settle()
    known = (tree.root if reader == 0 else child).state.tree
    assert (known.label, known.summary) == ("archivist", "look again")


def test_child_writes_to_the_root() -> None:
    tree, (child,) = a_family()
    tree.root.awaits()
    child.sends(0, "half done")
    tree.settle()
    (ready,) = tree.root.told("wait")["ready"]
    assert ready["messages"][0]["prompt"] == "half done"
    assert ready["completion"] is None
    assert tree.registry().agents[1].status == "running"
    tree.check()


def test_regular_message_waits_for_the_turn_boundary_and_shows_in_the_depths() -> None:
    tree, (child,) = a_family()
    child.begin()
    tree.root.sends(1, "by the way")
    tree.settle()
    assert tree.registry().agents[1].pending == (1, 0)
    assert "by the way" not in child.texts()
    answers_to = child.item(assistant("hm"))
    child.ends()
    child.begin()
    assert child.texts()[-1] == "by the way"
    assert tree.registry().agents[1].pending == (0, 0)
    assert answers_to


def test_depths_are_told_at_both_moments() -> None:
    tree, (child,) = a_family()
    child.begin()
    tree.log.clear()
    tree.root.sends(1, "one")
    tree.settle()
    child.item(assistant("hm"))
    child.ends()
    child.begin()
    told = [fact.depths for fact in tree.log if fact.message["type"] == "agent_inbox"]
    assert told == [{child.sid: (1, 0)}, {child.sid: (0, 0)}]


def test_interrupting_message_aborts_now_and_comes_first() -> None:
    tree, (child,) = a_family()
    child.begin()
    tree.root.sends(1, "slowly")
    tree.root.sends(1, "stop, do this", interrupt=True)
    tree.settle()
    child.stopped()
    assert child.types.count("turn_aborted") == 1
    child.begin()
    assert child.texts()[-2:] == ["stop, do this", "slowly"]
    assert statuses(tree) == {1: "running"}
    assert all(mail.kind != "completion" for mail in tree.root.state.tree.inbox)
    tree.check()


def test_interrupting_message_begins_a_task_though_another_one_came_before_the_work_had_stopped() -> None:
    tree, (child,) = a_family()
    child.asks_for("c1")
    child.runs("c1")
    tree.root.sends(child.id, "this instead", interrupt=True)
    tree.root.sends(child.id, "and that")
    tree.settle()
    assert child.task.stopping
    child.stopped(c1=1.0)
    child.begin()
    assert child.texts()[-2:] == ["this instead", "and that"]


def test_interrupted_agent_still_reports_its_end() -> None:
    tree, (child,) = a_family()
    tree.root.sends(1, "do this", interrupt=True)
    tree.settle()
    answers(child, "did that")
    assert tree.root.awaits()["ready"][0]["completion"]["Completed"]["last_message"] == "did that"


def test_bare_interrupt_leaves_the_agent_ready() -> None:
    tree, (child,) = a_family()
    child.begin()
    tree.root.sends(1, interrupt=True)
    tree.settle()
    child.stopped()
    tree.settle()
    assert statuses(tree) == {1: "ready"}
    assert tree.counter("slots") == 0
    tree.check()
    tree.root.begin()
    assert tree.root.state.tree.inbox == ()
    assert statuses(tree) == {1: "ready"}, "there was nothing to read"
    tree.check()


def test_messages_of_one_sender_stay_in_order() -> None:
    tree, (child,) = a_family()
    child.begin()
    for words in ("one", "two", "three"):
        tree.root.sends(1, words)
    tree.settle()
    child.item(assistant("hm"))
    child.ends()
    child.begin()
    assert child.texts()[-3:] == ["one", "two", "three"]


@pytest.mark.parametrize("sender", [0, 2])
def test_message_that_would_start_an_agent_needs_a_slot(sender: int) -> None:
    tree, (first, second) = a_family(2, limits={"slots": 2, "spawned": 9})
    answers(first)
    tree.settle()
    tree.root.spawns("third")
    said = tree.agents[sender].sends(1, "again")
    assert said.startswith("no slot is free")
    assert statuses(tree)[1] == "idle"
    assert second.standing == "running"


def test_messages_of_calls_that_have_one_id_are_told_apart() -> None:
    """Ids of calls are the model's, and may come again: a queue takes a submission of an id once."""
    tree, (child,) = a_family()
    for words in ("one", "two"):
        tree.root.say(words)
        tree.root.sends(child.id, words, call_id="m")
    parts = [seen.decision.tree for seen in tree.root.seen]
    keys = [sent.key for part in parts if part for sent in part.outbox if sent.kind == "message"]
    assert len(set(keys)) == len(keys) == 2


def test_message_to_a_running_agent_needs_no_slot() -> None:
    tree, _ = a_family(1, limits={"slots": 1, "spawned": 9})
    assert tree.root.sends(1, "psst")["agent_id"] == 1
    assert tree.counter("slots") == 1


def test_two_messages_that_start_an_agent_hold_one_slot() -> None:
    tree, (first, second) = a_family(2)
    answers(first)
    tree.settle()
    tree.root.sends(1, "a")
    second.sends(1, "b")
    tree.settle()
    tree.check()
    assert tree.counter("slots") == 2


def test_new_label_without_a_prompt_starts_nothing() -> None:
    tree, (child,) = a_family()
    answers(child)
    tree.settle()
    tree.root.sends(1, label="archivist")
    tree.settle()
    assert child.state.task is None
    assert tree.registry().agents[1].summary()["label"] == "archivist"
    assert "updated" in [fact.message.get("event") for fact in tree.log]
    tree.check()


def test_user_input_to_a_child_makes_its_parent_wait_for_it_again() -> None:
    tree, (child,) = a_family()
    answers(child)
    tree.root.awaits(call_id="w1")
    child.say("and another thing", "u9")
    assert tree.root.awaits(call_id="w2") is None
    tree.check()


# ── watchdogs ───────────────────────────────────────────────────────────────────────────────


def test_watchdog_sends_its_message_again_and_again() -> None:
    tree, (child,) = a_family()
    watch = c.SetWatchdog(tree.target(1), 30_000, "how far?")
    assert tree.root.asks("w", "subagent_watchdog", watch)["action"] == "started"
    child.begin()
    for _ in range(2):
        tree.root.fires("watchdog:1")
        tree.settle()
    assert tree.registry().agents[1].pending == (2, 0)
    assert tree.root.asks("w2", "subagent_watchdog", watch)["action"] == "replaced"
    stopping = c.SetWatchdog(tree.target(1), 30_000, "", cancel=True)
    assert tree.root.asks("w3", "subagent_watchdog", stopping)["action"] == "canceled"
    assert tree.root.asks("w4", "subagent_watchdog", stopping)["action"] == "not_found"
    assert tree.root.timers == {}


def test_watchdog_wakes_its_owner() -> None:
    tree = a_tree()
    tree.root.asks("w", "subagent_watchdog", c.SetWatchdog(tree.target(0), 30_000, "where are we?"))
    answers(tree.root)
    tree.root.fires("watchdog:0")
    tree.settle()
    tree.root.begin()
    assert "where are we?" in tree.root.shown()[-1]["output"]


def test_watchdog_whose_target_takes_no_more_skips_a_message_and_stays() -> None:
    tree, (_,) = a_family()
    tree.root.asks("w", "subagent_watchdog", c.SetWatchdog(tree.target(1), 30_000, "how far?"))
    timer = tree.root.timers.pop("watchdog:1")
    tree.now_ms = timer.at_ms
    fired = c.TimerFired(timer.id, timer.generation)
    tree.root.happens(c.CommitRefused(fired, "queue_full", tree.target(1).session))
    assert tree.registry().agents[1].pending == (0, 0)
    assert tree.root.timers["watchdog:1"].at_ms == timer.at_ms + 30_000


def test_watchdog_whose_target_is_gone_ends() -> None:
    tree, (_,) = a_family()
    tree.root.asks("w", "subagent_watchdog", c.SetWatchdog(tree.target(1), 30_000, "how far?"))
    timer = tree.root.timers.pop("watchdog:1")
    fired = c.TimerFired(timer.id, timer.generation)
    tree.root.happens(c.CommitRefused(fired, "archived_target", tree.target(1).session))
    assert tree.root.state.tree.watchdogs == {}


def test_agent_that_keeps_its_limit_of_watchdogs_is_refused_another() -> None:
    tree, (_,) = a_family(facts={"tree_rules": {"watchdogs": 1}})
    watch = c.SetWatchdog(tree.target(1), 30_000, "how far?")
    assert tree.root.asks("w1", "subagent_watchdog", watch)["action"] == "started"
    other = c.SetWatchdog(tree.target(0), 30_000, "and you?")
    assert tree.root.asks("w2", "subagent_watchdog", other) == (
        "an agent keeps at most 1 watchdog; cancel one first"
    )
    assert tree.root.asks("w3", "subagent_watchdog", watch)["action"] == "replaced"
    assert list(tree.root.state.tree.watchdogs) == [1]


def test_inbox_that_a_watchdog_fills_is_told_to_who_made_the_agent() -> None:
    tree, (child,) = a_family()
    grandchild = child.spawns()
    tree.root.asks("w", "subagent_watchdog", c.SetWatchdog(tree.target(2), 30_000, "how far?"))
    child.asks("own", "subagent_watchdog", c.SetWatchdog(tree.target(2), 30_000, "and now?"))
    grandchild.asks("self", "subagent_watchdog", c.SetWatchdog(tree.target(2), 30_000, "go on"))
    # The root's log does not know who made agent 2.
    fired = c.TimerFired("watchdog:2", tree.root.timers["watchdog:2"].generation, parent=child.sid)
    for seen in (tree.root.happens(fired), child.fires("watchdog:2"), grandchild.fires("watchdog:2")):
        part = seen.decision.tree
        assert part is not None
        told = [event.targets for event in part.events if event.inbox == grandchild.sid]
        assert told == [(child.sid, tree.root.sid)]


def test_watchdog_of_an_agent_that_is_pruned_ends() -> None:
    tree, (child,) = a_family()
    tree.root.asks("w", "subagent_watchdog", c.SetWatchdog(tree.target(1), 30_000, "how far?"))
    tree.root.prunes(child.id, completed_only=False)
    assert tree.root.state.tree.watchdogs == {}
    assert "watchdog:1" not in tree.root.timers


@pytest.mark.parametrize("by", ["a call", "a person"])
def test_watchdogs_of_agents_that_are_cancelled_end_with_the_cancel_and_no_others(by: str) -> None:
    tree, (child, sibling) = a_family(2)
    grandchild = child.spawns()
    tree.settle()
    for watched in (child, sibling, grandchild, tree.root):
        watch = c.SetWatchdog(tree.target(watched.id), 30_000, "how far?")
        tree.root.asks(f"w{watched.id}", "subagent_watchdog", watch)
    if by == "a call":
        tree.root.cancels(child.id)
    else:
        cancel = op("cancel_agent", agent_id=child.id)
        tree.root.submit(cancel, "p1", agents=tuple(map(tree.target, (child.id, grandchild.id))))
    left = {0, sibling.id}
    assert set(tree.root.state.tree.watchdogs) == left
    assert {id for id in tree.root.timers if id.startswith("watchdog")} == {f"watchdog:{id}" for id in left}
    tree.settle()
    tree.check()


@pytest.mark.parametrize("known", ["its end was told", "it is to end", "by the registry"])
def test_watchdog_of_an_agent_that_others_have_cancelled_ends_with_its_next_time(known: str) -> None:
    tree, (child, _) = a_family(2)
    grandchild = child.spawns()
    tree.settle()
    # The keeper of the watchdog is told of the end of its own child alone.
    keeper, watched = (tree.root, grandchild) if known == "by the registry" else (child, grandchild)
    for other in (watched, keeper):
        watch = c.SetWatchdog(tree.target(other.id), 30_000, "how far?")
        keeper.asks(f"w{other.id}", "subagent_watchdog", watch)
    if known == "it is to end":
        child.shutdown()
        assert child.state.tree.children[grandchild.id].ending
        assert child.state.tree.watchdogs
    else:
        canceller = child if keeper is tree.root else tree.root
        canceller.cancels(grandchild.id)
        tree.settle()
    name = f"watchdog:{watched.id}"
    fired = c.TimerFired(name, keeper.timers.pop(name).generation, over=known == "by the registry")
    seen = keeper.happens(fired)
    part = seen.decision.tree
    assert part is None or not part.outbox
    assert list(keeper.state.tree.watchdogs) == [keeper.id]
    assert name not in keeper.timers
    tree.settle()
    tree.check()


def test_agent_that_was_cancelled_gets_no_watchdog() -> None:
    tree, (child,) = a_family()
    tree.root.asks("w", "subagent_watchdog", c.SetWatchdog(tree.target(child.id), 30_000, "how far?"))
    tree.root.cancels(child.id)
    watch = c.SetWatchdog(tree.target(child.id), 30_000, "how far?")
    refused = "agent 1 was canceled, for good: spawn another one"
    assert tree.root.asks("w2", "subagent_watchdog", watch) == refused
    tree.settle()
    watch = c.SetWatchdog(replace(tree.target(child.id), marked=False, status=""), 30_000, "how far?")
    assert tree.root.asks("w3", "subagent_watchdog", watch) == refused
    assert dict(tree.root.state.tree.watchdogs) == {}
    stopping = c.SetWatchdog(tree.target(child.id), 30_000, "", cancel=True)
    assert tree.root.asks("w4", "subagent_watchdog", stopping)["action"] == "not_found"


def test_person_who_writes_to_a_cancelled_agent_reads_that_it_takes_no_more_input() -> None:
    tree, (child,) = a_family()
    tree.root.cancels(child.id)
    tree.settle()
    word = op("message_agent", agent_id=child.id, text="how far are you?")
    seen = tree.root.submit(word, agents=(tree.target(child.id),))
    assert seen.one("error")["message"] == "agent 1 was cancelled: it takes no more input"
    assert not tree.queues[child.sid]


def test_watchdogs_end_by_number_whatever_order_they_were_set_in() -> None:
    tree, _ = a_family()
    tree.root.asks("w1", "subagent_watchdog", c.SetWatchdog(tree.target(1), 30_000, "well?"))
    tree.root.asks("w0", "subagent_watchdog", c.SetWatchdog(tree.target(0), 30_000, "and you?"))
    assert list(tree.root.state.tree.watchdogs) == [1, 0]
    tree.root.shutdown()
    tree.settle()
    logged = [decode_entry(line).payload for line in tree.root.lines]
    ended = [fact["agent_id"] for fact in logged if fact.get("kind") == "watchdog_ended"]
    assert ended == [0, 1]


def test_wait_for_a_child_that_another_agent_prunes_ends_at_once() -> None:
    tree, (child,) = a_family()
    grandchild = child.spawns("deeper")
    tree.settle()
    assert child.awaits(grandchild.id) is None
    tree.root.prunes(grandchild.id, completed_only=False)
    tree.deliver(child)
    assert child.told("wait")["waiting"] == []
    assert child.task.waiting is None


@pytest.mark.parametrize("words", ["", " \n\t"])
@pytest.mark.parametrize("at_work", [True, False])
@pytest.mark.parametrize("reader", [0, 1])
def test_word_of_a_person_that_says_nothing_is_refused_whatever_the_root_does(
    reader: int, at_work: bool, words: str
) -> None:
    tree, _ = a_family()
    if not at_work:
        tree.root.interrupt()
    said = op("message_agent", agent_id=reader, text=words)
    seen = tree.root.submit(said, agents=(tree.target(reader),), who="ann")
    assert seen.types == ["error"]
    assert seen.one("error")["message"] == "there is nothing to say: the text is empty"
    assert (tree.root.state.task is not None) is at_work


@pytest.mark.parametrize("reader", [0, 1, 2])
def test_agent_at_rest_takes_no_word_for_another_one_nor_for_the_root(reader: int) -> None:
    tree, (child, _) = a_family(2)
    answers(child)
    tree.settle()
    said = op("message_agent", agent_id=reader, text="look again")
    seen = child.submit(said, agents=(tree.target(reader),), who="ann")
    assert seen.types == ["error"]
    assert "is for the root of a tree" in seen.one("error")["message"]
    assert child.state.task is None


def test_word_of_a_person_reaches_the_agent_that_it_names_and_none_below() -> None:
    tree, (child,) = a_family()
    grandchild = child.spawns("deeper")
    tree.settle()
    word = op("message_agent", agent_id=child.id, text="how far are you?")
    tree.root.submit(word, agents=(tree.target(child.id), tree.target(grandchild.id)))
    assert [len(tree.queues[agent.sid]) for agent in (child, grandchild)] == [1, 0]


# ── what a person said and no model will read ───────────────────────────────────────────────


def _person_says(tree: TreeDriver, agent_id: int, id: str = "word", **fields: object) -> None:
    said = op("message_agent", agent_id=agent_id, text="how far are you?", **fields)
    tree.root.submit(said, id, client="a-client", agents=(tree.target(agent_id),))


def _told_at_the_root(tree: TreeDriver) -> list[str]:
    """The errors that agents of the tree show at the root."""
    return [str(fact.message["message"]) for fact in tree.log if fact.message["type"] == "error"]


def _errors(agent: Agent) -> list[tuple[str, str]]:
    return [(id, str(message["message"])) for id, message in agent.events if message["type"] == "error"]


@pytest.mark.parametrize("said", ["word", "a:word", ":"])
def test_person_is_told_of_a_message_to_a_root_that_was_closed_before_it_arrived(said: str) -> None:
    tree = a_tree()
    _person_says(tree, 0, said)
    tree.root.shutdown()
    tree.settle()
    ((id, told),) = _errors(tree.root)
    assert id == said
    assert told.startswith("this message was not delivered: the session was closed first; resume it")
    assert f"dendro run --resume {tree.root.sid}" in told
    tree.check()


def test_person_is_told_of_a_message_to_a_root_that_is_being_closed() -> None:
    tree = a_tree()
    tree.root.begin()
    _person_says(tree, 0)
    tree.root.shutdown()
    tree.settle()
    assert tree.root.state.closing, "its request is in flight"
    assert [id for id, _ in _errors(tree.root)] == ["word"]


def test_person_is_told_of_an_interrupting_message_to_a_root_that_was_closed() -> None:
    tree = a_tree()
    _person_says(tree, 0, interrupt=True)
    tree.root.shutdown()
    tree.settle()
    assert [id for id, _ in _errors(tree.root)] == ["word"]
    tree.check()


def test_person_is_told_at_the_root_of_a_message_to_an_agent_that_was_cancelled_first() -> None:
    tree, (child,) = a_family()
    _person_says(tree, child.id)
    message = tree.queues[child.sid].popleft()
    tree.root.cancels(child.id)
    tree.settle()
    child.happens(message)
    assert _told_at_the_root(tree) == [
        "this message was not delivered: agent 1 was cancelled: it takes no more input; "
        "send it to another agent"
    ]
    tree.check()


def test_person_is_told_at_the_root_of_a_message_to_an_agent_that_was_pruned_first() -> None:
    tree, (child,) = a_family()
    answers(child)
    tree.settle()
    _person_says(tree, child.id)
    message = tree.queues[child.sid].popleft()
    tree.root.prunes(child.id)
    tree.settle()
    child.happens(message)
    assert _told_at_the_root(tree) == [
        "this message was not delivered: agent 1 was pruned: it takes no more input; send it to another agent"
    ]


def test_person_is_told_of_each_message_that_a_pruned_agent_has_not_read_when_it_hears_of_that() -> None:
    tree, (child,) = a_family()
    child.begin()
    for number in range(2):
        _person_says(tree, child.id, f"word{number}")
    tree.settle()
    child.interrupt()
    child.stopped()
    assert (child.state.task, len(child.state.tree.inbox)) == (None, 2)
    _person_says(tree, child.id, "last")
    message = tree.queues[child.sid].popleft()
    tree.root.prunes(child.id)
    tree.settle()
    child.happens(message)
    assert len(_told_at_the_root(tree)) == 3
    assert (child.state.tree.inbox, tree.inboxes[child.sid], child.standing) == ((), [0, 0], "ready")


def test_person_is_told_at_the_root_of_a_message_to_an_agent_that_is_being_closed() -> None:
    tree, (child,) = a_family()
    child.begin()
    child.shutdown()
    _person_says(tree, child.id)
    tree.settle()
    assert _told_at_the_root(tree) == [
        "this message was not delivered: agent 1 is being closed; send the message again"
    ]


def test_person_is_told_at_the_root_of_a_message_that_a_cancelled_agent_leaves_unread() -> None:
    tree, (child,) = a_family()
    child.begin()
    _person_says(tree, child.id)
    tree.settle()
    assert len(child.state.tree.inbox) == 1
    tree.root.cancels(child.id)
    tree.settle()
    assert len(_told_at_the_root(tree)) == 1
    tree.check()


def test_person_is_told_of_each_message_that_a_cancelled_agent_leaves_unread_however_many_they_are() -> None:
    tree, (child,) = a_family()
    child.begin()
    sent = MOST_TOLD + 2
    for number in range(sent):
        _person_says(tree, child.id, f"word{number}")
        tree.settle()
    assert len(child.state.tree.inbox) == sent
    tree.root.cancels(child.id)
    tree.settle()
    child.happens(c.Stopped())
    tree.settle()
    assert child.state.tree.inbox == ()
    assert len(_told_at_the_root(tree)) == sent


def test_forty_eight_messages_come_at_one_boundary_and_the_rest_at_the_next() -> None:
    tree, (child,) = a_family()
    child.begin()
    for number in range(MOST_LETTERS + 1):
        _person_says(tree, child.id, f"word{number}")
    tree.settle()
    child.item(assistant("hm"))
    child.ends()
    told = [len(child.happens(c.BeginRequest()).all("user_message"))]
    child.answers_now("hm")
    told.append(len(child.happens(c.BeginRequest()).all("user_message")))
    assert told == [MOST_LETTERS, 1]


def test_nobody_is_told_of_an_agents_message_that_is_left_unread() -> None:
    tree, (first, second) = a_family(2)
    second.begin()
    first.sends(second.id, "mind the gap")
    message = tree.queues[second.sid].popleft()
    tree.root.cancels(second.id)
    tree.settle()
    second.happens(message)
    assert _told_at_the_root(tree) == []
    tree.check()


def test_second_watchdog_of_an_agent_whose_target_is_gone_ends_alone() -> None:
    tree, _ = a_family(2)
    for target in (1, 2):
        watch = c.SetWatchdog(tree.target(target), 30_000, "how far?")
        tree.root.asks(f"w{target}", "subagent_watchdog", watch)
    timer = tree.root.timers.pop("watchdog:2")
    fired = c.TimerFired("watchdog:2", timer.generation)
    tree.root.happens(c.CommitRefused(fired, "archived_target", tree.agents[2].sid))
    assert list(tree.root.state.tree.watchdogs) == [1]


def test_word_of_a_newer_version_changes_nothing() -> None:
    _, (child,) = a_family()
    before = child.state
    child.happens(c.MailArrived("hologram", {"from": {"agent_id": 0}}, "m9", 9))
    assert child.state == before


def test_old_result_that_is_read_leaves_a_child_ready_that_has_worked_since() -> None:
    tree, (child,) = a_family()
    answers(child, "1" * 40_000)
    child.say("once more", "u9")
    answers(child, "2" * 40_000)
    tree.root.awaits()
    tree.settle()
    assert [mail.content["turn"] for mail in tree.root.state.tree.inbox] == [2], (
        "one await carries one of them"
    )
    assert tree.root.state.tree.children[child.id].status == statuses(tree)[1] == "ready"
    tree.root.awaits(call_id="again")
    tree.settle()
    assert tree.root.state.tree.inbox == ()
    assert tree.root.state.tree.children[child.id].status == statuses(tree)[1] == "idle"
    tree.check()


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_result_is_told_to_the_root_and_to_who_made_the_agent_that_it_waits_for(levels: int) -> None:
    tree = a_tree()
    line = [tree.root]
    for _ in range(levels):
        line.append(line[-1].spawns())
        tree.settle()
    part = answers(line[-1], "found it").decision.tree
    assert part is not None
    (waits,) = [event for event in part.events if told_by(event)["type"] == "agent_inbox"]
    makers = {tree.root.sid, line[-3].sid if levels > 1 else tree.root.sid}
    assert told_by(waits)["agent_id"] == line[-2].id
    assert set(waits.targets) == makers


def a_line_with_pruned(gone: tuple[int, ...]) -> tuple[TreeDriver, Agent]:
    """A line of agents of which the last one works; those above it are done, and some are off the list."""
    tree = a_tree()
    line = [tree.root.spawns()]
    tree.settle()
    for _ in range(3):
        line.append(line[-1].spawns())
        tree.settle()
    line[-1].begin()
    for agent in reversed(line[:-1]):
        answers(agent, "mine is done")
        tree.settle()
    assert len(tree.root.prunes(*gone)["pruned"]) == len(gone)
    tree.settle()
    return tree, line[-1]


PRUNED = [(1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3)]


@pytest.mark.parametrize("gone", PRUNED)
def test_interrupt_of_a_tree_reaches_agents_at_work_below_pruned_ones(gone: tuple[int, ...]) -> None:
    tree, last = a_line_with_pruned(gone)
    tree.root.submit(op("interrupt", tree=True), "stop")
    tree.settle()
    assert last.task.stopping == "interrupted"
    assert "canceled" not in statuses(tree).values()


@pytest.mark.parametrize("gone", PRUNED)
def test_shutdown_of_a_root_ends_agents_at_work_below_pruned_ones_first(gone: tuple[int, ...]) -> None:
    tree, last = a_line_with_pruned(gone)
    tree.root.shutdown()
    tree.settle()
    assert tree.root.status != "closed"
    last.stopped()
    tree.settle()
    assert last.standing == "canceled"
    assert tree.counter("slots") == 0
    assert tree.root.status == "closed"


@pytest.mark.parametrize("at_work", [True, False])
def test_interrupt_of_a_tree_stops_its_agents_whatever_the_root_does(at_work: bool) -> None:
    tree, (first, second) = a_family(2)
    if not at_work:
        tree.root.interrupt()
    tree.root.submit(op("interrupt", tree=True))
    tree.settle()
    assert [agent.state.task for agent in (tree.root, first, second)] == [None] * 3
    assert statuses(tree) == {1: "ready", 2: "ready"}, "none is cancelled"


def test_interrupt_of_a_tree_reaches_agents_at_work_below_one_at_rest() -> None:
    tree, (child,) = a_family()
    grandchild = child.spawns()
    tree.settle()
    grandchild.begin()
    answers(child, "mine is done")
    tree.settle()
    assert statuses(tree) == {1: "ready", 2: "running"}
    tree.root.submit(op("interrupt", tree=True), "stop")
    tree.settle()
    assert grandchild.task.stopping == "interrupted"
    assert "canceled" not in statuses(tree).values()
