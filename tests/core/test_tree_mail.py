"""Letters between the agents of a tree, decided without I/O; watchdogs, which send them again and again."""

from __future__ import annotations

from orchestrator.core import commands as c
from orchestrator.core.stored import decode_entry
from tests.core.driver import assistant, op
from tests.core.grove import Agent, Grove, a_family, a_grove, answers, statuses

# ── mail ────────────────────────────────────────────────────────────────────────────────────


def test_result_wakes_an_idle_parent_as_a_synthetic_await() -> None:
    grove, (child,) = a_family()
    answers(grove.root, "spawned one")
    answers(child, "found it")
    grove.settle()
    assert grove.root.task.id == "auto-1"
    grove.root.begin()
    call, output = grove.root.shown()[-2:]
    assert call["name"] == "subagent_await"
    assert call["call_id"] == output["call_id"] == "await-0-1"
    assert '"injected":true' in output["output"]
    grove.check()


def test_no_autosubmit_leaves_the_result_for_an_await() -> None:
    grove, (child,) = a_family(facts={"tree_rules": {"autosubmit": False}})
    answers(grove.root)
    answers(child)
    grove.settle()
    assert grove.root.state.task is None
    grove.root.say("and?", "u2")
    assert len(grove.root.awaits()["ready"]) == 1
    assert [i["call_id"] for i in grove.root.shown() if i.get("call_id", "").startswith("await")] == []


def test_result_waits_after_an_interrupt() -> None:
    grove, (child,) = a_family()
    grove.root.interrupt()
    answers(child)
    grove.settle()
    assert grove.root.state.task is None
    assert len(grove.root.state.tree.inbox) == 1


def test_task_goes_on_while_results_are_there_to_read() -> None:
    grove, (child,) = a_family()
    grove.root.begin()
    answers(child)
    grove.settle()
    grove.root.item(assistant("that is all"))
    grove.root.ends()
    assert grove.root.state.task is not None
    grove.root.begin()
    assert grove.root.shown()[-1]["call_id"] == "await-0-1"


def test_parents_message_is_a_user_message_and_starts_an_idle_child() -> None:
    grove, (child,) = a_family()
    answers(child)
    grove.settle()
    grove.root.sends(1, "look again")
    grove.settle()
    child.begin()
    assert child.texts()[-1] == "look again"
    assert child.task.id == "auto-1"
    grove.check()


def test_siblings_message_is_a_synthetic_await() -> None:
    grove, (first, second) = a_family(2)
    first.sends(2, "mind the gap")
    grove.settle()
    second.begin()
    output = second.told("await-2-1")
    assert output["ready"][0]["messages"][0]["prompt"] == "mind the gap"
    assert output["ready"][0]["metadata"]["agent_id"] == 1


def test_child_writes_to_the_root() -> None:
    grove, (child,) = a_family()
    grove.root.awaits()
    child.sends(0, "half done")
    grove.settle()
    (ready,) = grove.root.told("wait")["ready"]
    assert ready["messages"][0]["prompt"] == "half done"
    assert ready["completion"] is None
    assert grove.registry().agents[1].status == "running"
    grove.check()


def test_regular_message_waits_for_the_turn_boundary_and_shows_in_the_depths() -> None:
    grove, (child,) = a_family()
    child.begin()
    grove.root.sends(1, "by the way")
    grove.settle()
    assert grove.registry().agents[1].pending == (1, 0)
    assert "by the way" not in child.texts()
    answers_to = child.item(assistant("hm"))
    child.ends()
    child.begin()
    assert child.texts()[-1] == "by the way"
    assert grove.registry().agents[1].pending == (0, 0)
    assert answers_to


def test_depths_are_told_at_both_moments() -> None:
    grove, (child,) = a_family()
    child.begin()
    grove.log.clear()
    grove.root.sends(1, "one")
    grove.settle()
    child.item(assistant("hm"))
    child.ends()
    child.begin()
    told = [fact.depths for fact in grove.log if fact.message["type"] == "agent_inbox"]
    assert told == [{child.sid: (1, 0)}, {child.sid: (0, 0)}]


def test_interrupting_message_aborts_now_and_comes_first() -> None:
    grove, (child,) = a_family()
    child.begin()
    grove.root.sends(1, "slowly")
    grove.root.sends(1, "stop, do this", interrupt=True)
    grove.settle()
    child.stopped()
    assert child.types.count("turn_aborted") == 1
    child.begin()
    assert child.texts()[-2:] == ["stop, do this", "slowly"]
    assert statuses(grove) == {1: "running"}
    assert all(mail.kind != "completion" for mail in grove.root.state.tree.inbox)
    grove.check()


def test_interrupted_agent_still_reports_its_end() -> None:
    grove, (child,) = a_family()
    grove.root.sends(1, "do this", interrupt=True)
    grove.settle()
    answers(child, "did that")
    assert grove.root.awaits()["ready"][0]["completion"]["Completed"]["last_message"] == "did that"


def test_bare_interrupt_leaves_the_agent_ready() -> None:
    grove, (child,) = a_family()
    child.begin()
    grove.root.sends(1, interrupt=True)
    grove.settle()
    child.stopped()
    grove.settle()
    assert statuses(grove) == {1: "ready"}
    assert grove.counter("slots") == 0
    grove.check()


def test_messages_of_one_sender_stay_in_order() -> None:
    grove, (child,) = a_family()
    child.begin()
    for words in ("one", "two", "three"):
        grove.root.sends(1, words)
    grove.settle()
    child.item(assistant("hm"))
    child.ends()
    child.begin()
    assert child.texts()[-3:] == ["one", "two", "three"]


def test_message_that_would_start_an_agent_needs_a_slot() -> None:
    grove, (first, second) = a_family(2, limits={"slots": 2, "spawned": 9})
    answers(first)
    grove.settle()
    grove.root.spawns("third")
    said = grove.root.sends(1, "again")
    assert said.startswith("no slot is free")
    assert statuses(grove)[1] == "idle"
    assert second.standing == "running"


def test_message_to_a_running_agent_needs_no_slot() -> None:
    grove, _ = a_family(1, limits={"slots": 1, "spawned": 9})
    assert grove.root.sends(1, "psst")["agent_id"] == 1
    assert grove.counter("slots") == 1


def test_two_messages_that_start_an_agent_hold_one_slot() -> None:
    grove, (first, second) = a_family(2)
    answers(first)
    grove.settle()
    grove.root.sends(1, "a")
    second.sends(1, "b")
    grove.settle()
    grove.check()
    assert grove.counter("slots") == 2


def test_new_label_without_a_prompt_starts_nothing() -> None:
    grove, (child,) = a_family()
    answers(child)
    grove.settle()
    grove.root.sends(1, label="archivist")
    grove.settle()
    assert child.state.task is None
    assert grove.registry().agents[1].summary()["label"] == "archivist"
    assert "updated" in [fact.message.get("event") for fact in grove.log]
    grove.check()


def test_user_input_to_a_child_makes_its_parent_wait_for_it_again() -> None:
    grove, (child,) = a_family()
    answers(child)
    grove.root.awaits(call_id="w1")
    child.say("and another thing", "u9")
    assert grove.root.awaits(call_id="w2") is None
    grove.check()


# ── watchdogs ───────────────────────────────────────────────────────────────────────────────


def test_watchdog_sends_its_message_again_and_again() -> None:
    grove, (child,) = a_family()
    watch = c.SetWatchdog(grove.target(1), 30_000, "how far?")
    assert grove.root.asks("w", "subagent_watchdog", watch)["action"] == "started"
    child.begin()
    for _ in range(2):
        grove.root.fires("watchdog:1")
        grove.settle()
    assert grove.registry().agents[1].pending == (2, 0)
    assert grove.root.asks("w2", "subagent_watchdog", watch)["action"] == "replaced"
    stopping = c.SetWatchdog(grove.target(1), 30_000, "", cancel=True)
    assert grove.root.asks("w3", "subagent_watchdog", stopping)["action"] == "canceled"
    assert grove.root.asks("w4", "subagent_watchdog", stopping)["action"] == "not_found"
    assert grove.root.timers == {}


def test_watchdog_wakes_its_owner() -> None:
    grove = a_grove()
    grove.root.asks("w", "subagent_watchdog", c.SetWatchdog(grove.target(0), 30_000, "where are we?"))
    answers(grove.root)
    grove.root.fires("watchdog:0")
    grove.settle()
    grove.root.begin()
    assert "where are we?" in grove.root.shown()[-1]["output"]


def test_watchdog_whose_target_takes_no_more_skips_a_message_and_stays() -> None:
    grove, (_,) = a_family()
    grove.root.asks("w", "subagent_watchdog", c.SetWatchdog(grove.target(1), 30_000, "how far?"))
    timer = grove.root.timers.pop("watchdog:1")
    grove.now_ms = timer.at_ms
    fired = c.TimerFired(timer.id, timer.generation)
    grove.root.happens(c.CommitRefused(fired, "queue_full", grove.target(1).session))
    assert grove.registry().agents[1].pending == (0, 0)
    assert grove.root.timers["watchdog:1"].at_ms == timer.at_ms + 30_000


def test_watchdog_whose_target_is_gone_ends() -> None:
    grove, (_,) = a_family()
    grove.root.asks("w", "subagent_watchdog", c.SetWatchdog(grove.target(1), 30_000, "how far?"))
    timer = grove.root.timers["watchdog:1"]
    fired = c.TimerFired(timer.id, timer.generation)
    grove.root.happens(c.CommitRefused(fired, "archived_target", grove.target(1).session))
    assert grove.root.state.tree.watchdogs == {}


def test_agent_that_keeps_its_limit_of_watchdogs_is_refused_another() -> None:
    grove, (_,) = a_family(facts={"tree_rules": {"watchdogs": 1}})
    watch = c.SetWatchdog(grove.target(1), 30_000, "how far?")
    assert grove.root.asks("w1", "subagent_watchdog", watch)["action"] == "started"
    other = c.SetWatchdog(grove.target(0), 30_000, "and you?")
    assert grove.root.asks("w2", "subagent_watchdog", other) == (
        "an agent keeps at most 1 watchdog; cancel one first"
    )
    assert grove.root.asks("w3", "subagent_watchdog", watch)["action"] == "replaced"
    assert list(grove.root.state.tree.watchdogs) == [1]


def test_watchdog_of_an_agent_that_is_pruned_ends() -> None:
    grove, (child,) = a_family()
    grove.root.asks("w", "subagent_watchdog", c.SetWatchdog(grove.target(1), 30_000, "how far?"))
    grove.root.prunes(child.id, completed_only=False)
    assert grove.root.state.tree.watchdogs == {}
    assert "watchdog:1" not in grove.root.timers


def test_person_who_writes_to_a_cancelled_agent_reads_that_it_takes_no_more_input() -> None:
    grove, (child,) = a_family()
    grove.root.cancels(child.id)
    grove.settle()
    word = op("message_agent", agent_id=child.id, text="how far are you?")
    seen = grove.root.submit(word, agents=(grove.target(child.id),))
    assert seen.one("error")["message"] == "agent 1 was cancelled: it takes no more input"
    assert not grove.queues[child.sid]


def test_watchdogs_end_by_number_whatever_order_they_were_set_in() -> None:
    grove, _ = a_family()
    grove.root.asks("w1", "subagent_watchdog", c.SetWatchdog(grove.target(1), 30_000, "well?"))
    grove.root.asks("w0", "subagent_watchdog", c.SetWatchdog(grove.target(0), 30_000, "and you?"))
    assert list(grove.root.state.tree.watchdogs) == [1, 0]
    grove.root.shutdown()
    grove.settle()
    logged = [decode_entry(line).payload for line in grove.root.lines]
    ended = [fact["agent_id"] for fact in logged if fact.get("kind") == "watchdog_ended"]
    assert ended == [0, 1]


def test_wait_for_a_child_that_another_agent_prunes_ends_at_once() -> None:
    grove, (child,) = a_family()
    grandchild = child.spawns("deeper")
    grove.settle()
    assert child.awaits(grandchild.id) is None
    grove.root.prunes(grandchild.id, completed_only=False)
    grove.deliver(child)
    assert child.told("wait")["waiting"] == []
    assert child.task.waiting is None


def test_word_of_a_person_reaches_the_agent_that_it_names_and_none_below() -> None:
    grove, (child,) = a_family()
    grandchild = child.spawns("deeper")
    grove.settle()
    word = op("message_agent", agent_id=child.id, text="how far are you?")
    grove.root.submit(word, agents=(grove.target(child.id), grove.target(grandchild.id)))
    assert [len(grove.queues[agent.sid]) for agent in (child, grandchild)] == [1, 0]


# ── what a person said and no model will read ───────────────────────────────────────────────


def _person_says(grove: Grove, agent_id: int, id: str = "word", **fields: object) -> None:
    said = op("message_agent", agent_id=agent_id, text="how far are you?", **fields)
    grove.root.submit(said, id, client="a-client", agents=(grove.target(agent_id),))


def _told_at_the_root(grove: Grove) -> list[str]:
    """The errors that agents of the tree show at the root."""
    return [str(fact.message["message"]) for fact in grove.log if fact.message["type"] == "error"]


def _errors(agent: Agent) -> list[tuple[str, str]]:
    return [(id, str(message["message"])) for id, message in agent.events if message["type"] == "error"]


def test_person_is_told_of_a_message_to_a_root_that_was_closed_before_it_arrived() -> None:
    grove = a_grove()
    _person_says(grove, 0)
    grove.root.shutdown()
    grove.settle()
    ((id, told),) = _errors(grove.root)
    assert id == "word"
    assert told.startswith("this message was not delivered: the session was closed first; resume it")
    assert f"dendro run --resume {grove.root.sid}" in told
    grove.check()


def test_person_is_told_of_a_message_to_a_root_that_is_being_closed() -> None:
    grove = a_grove()
    grove.root.begin()
    _person_says(grove, 0)
    grove.root.shutdown()
    grove.settle()
    assert grove.root.state.closing, "its request is in flight"
    assert [id for id, _ in _errors(grove.root)] == ["word"]


def test_person_is_told_of_an_interrupting_message_to_a_root_that_was_closed() -> None:
    grove = a_grove()
    _person_says(grove, 0, interrupt=True)
    grove.root.shutdown()
    grove.settle()
    assert [id for id, _ in _errors(grove.root)] == ["word"]
    grove.check()


def test_person_is_told_at_the_root_of_a_message_to_an_agent_that_was_cancelled_first() -> None:
    grove, (child,) = a_family()
    _person_says(grove, child.id)
    message = grove.queues[child.sid].popleft()
    grove.root.cancels(child.id)
    grove.settle()
    child.happens(message)
    assert _told_at_the_root(grove) == [
        "this message was not delivered: agent 1 was cancelled: it takes no more input; "
        "send it to another agent"
    ]
    grove.check()


def test_person_is_told_at_the_root_of_a_message_to_an_agent_that_was_pruned_first() -> None:
    grove, (child,) = a_family()
    answers(child)
    grove.settle()
    _person_says(grove, child.id)
    message = grove.queues[child.sid].popleft()
    grove.root.prunes(child.id)
    grove.settle()
    child.happens(message)
    assert _told_at_the_root(grove) == [
        "this message was not delivered: agent 1 was pruned: it takes no more input; send it to another agent"
    ]


def test_person_is_told_at_the_root_of_a_message_to_an_agent_that_is_being_closed() -> None:
    grove, (child,) = a_family()
    child.begin()
    child.shutdown()
    _person_says(grove, child.id)
    grove.settle()
    assert _told_at_the_root(grove) == [
        "this message was not delivered: agent 1 is being closed; send the message again"
    ]


def test_person_is_told_at_the_root_of_a_message_that_a_cancelled_agent_leaves_unread() -> None:
    grove, (child,) = a_family()
    child.begin()
    _person_says(grove, child.id)
    grove.settle()
    assert len(child.state.tree.inbox) == 1
    grove.root.cancels(child.id)
    grove.settle()
    assert len(_told_at_the_root(grove)) == 1
    grove.check()


def test_nobody_is_told_of_an_agents_message_that_is_left_unread() -> None:
    grove, (first, second) = a_family(2)
    second.begin()
    first.sends(second.id, "mind the gap")
    message = grove.queues[second.sid].popleft()
    grove.root.cancels(second.id)
    grove.settle()
    second.happens(message)
    assert _told_at_the_root(grove) == []
    grove.check()
