"""Defects of where input goes, of the turn that an op is for, and of the lists that a commit keeps."""

from __future__ import annotations

from orchestrator.core import evolve, history, modes
from orchestrator.core.decide import call, ops, task
from orchestrator.model.canonical import _Input
from orchestrator.runtime.step import Decisions
from orchestrator.wiring.worker_parts import About
from sim.mutant import Mutant, lua, swapped, text

_USED = "if outcome.moves then index_move(KEYS[15], known, session, now) end"
_KEPT = "  if outcome.moves then set[#set + 1], set[#set + 2] = 'recency', text(now) end\n"

DEFECTS = (
    Mutant(
        "waiting input replaces",
        "input that was to wait behind the running turn stops it",
        text(ops, "_queue", "if turn.replaces:", "if True:"),
        "asks",
    ),
    Mutant(
        "answer is of who gave the task",
        "the log says of an approval that the one who gave the task has decided it, whoever did",
        text(call, "resolve", "by=draft.sender)", "by=draft.state.behalf)"),
        "approvals",
    ),
    Mutant(
        "only the first claim names its worker",
        "the log says which worker writes where it was the first one, and not behind a takeover",
        text(
            Decisions,
            "__init__",
            "self._opened = context.ports.about is None",
            "self._opened = context.ports.about is None or context.claim.epoch > 1",
        ),
    ),
    Mutant(
        "texts that claims name are kept anew",
        "each claim writes the texts of its settings and rules again, though the log has them",
        text(Decisions, "_opening", "if sha not in state.extras.texts", ""),
    ),
    Mutant(
        "worker names the rules of its start",
        "a worker says of each session that the rules hold in it which it read first, whatever they are now",
        text(About, "_of_rules", "if found is not self._read[0]:", "if self._read[0] is None:"),
        test="tests/runtime/test_about_worker.py::test_worker_tells_the_rules_and_the_trust_of_this_moment",
    ),
    Mutant(
        "digest of what was said before the rollback",
        "a request behind a compaction is digested as if all that was read before still stood in it",
        text(
            _Input,
            "precedes",
            "return self._items == list(items[: len(self._items)])",
            "return len(self._items) <= len(items)",
        ),
        "compactions",
    ),
    Mutant(
        "stop names nobody",
        "the log does not say who stopped a task of which something runs",
        text(
            task,
            "stop",
            "        draft.add(f.Stopping(reason, by, draft.sender))\n        return",
            "        draft.add(f.Stopping(reason, by))\n        return",
        ),
    ),
    Mutant(
        "agents work for the first person",
        "agents of a second person's task are told to work for the first one",
        text(
            evolve,
            "_task_begun",
            "if fact.by is not None:",
            "if fact.by is not None and state.extras.behalf is None:",
        ),
        "letters",
    ),
    Mutant(
        "another turn is meant",
        "input and interrupts for one turn are taken by whatever turn runs",
        text(ops, "refused_turn", "if task.id != expected:", "if False:"),
        "asks",
    ),
    Mutant(
        "input forgets its settings",
        "a turn begins without the settings that its input brought along",
        text(modes, "settings_named", "return settings_named(changed)", "return None"),
        "asks",
    ),
    Mutant(
        "queued turns are cut short",
        "a queued turn is stopped for the next one that waits behind it",
        text(task, "_replacing", "any(waiting.turn.replaces for waiting in state.queue)", "state.queue"),
        "asks",
        test="tests/core/test_core_queue.py::test_person_takes_input_back_that_waits_and_its_sender_is_told",
    ),
    Mutant(
        "added words pass for the model's",
        "a message in the model's name joins a turn that runs",
        text(ops, "_injection_refusal", "message.role == _MODEL", "False"),
        "queues",
    ),
    Mutant(
        "added words are doubled",
        "messages that join a running turn stand in the conversation at once, too",
        text(
            ops,
            "inject",
            "draft.add(f.Steered(command.id, item, draft.sender))",
            "draft.add(f.Steered(command.id, item, draft.sender), e.item(item))",
        ),
        "queues",
    ),
    Mutant(
        "added words keep their mark",
        "the model is shown the mark of messages that were added without a turn",
        text(history.Arrangement, "take", "if name not in _MARKS", ""),
        "queues",
    ),
    Mutant(
        "removed input comes back",
        "input that was taken out of the queue begins its turn all the same",
        text(ops, "remove_queued", "del ids[len(ids) - 1 - ids[::-1].index(removed)]", "pass"),
        "queues",
    ),
    Mutant(
        "changed input begins as it was",
        "input that says something else while it waits is said as it was at first",
        swapped(evolve, "_edited", lambda real: lambda queue, id, items: queue),
        "queues",
    ),
    Mutant(
        "removed input is not told",
        "nobody is told of input that was taken out of the queue",
        text(
            ops,
            "remove_queued",
            "draft.add(e.event(removed, ev.WarningEvent(message=REMOVED)))",
            "pass",
        ),
        "queues",
    ),
    Mutant(
        "used sessions stay behind",
        "a session that is used does not go to the front of its list",
        lua("_commit_writes", _USED, ""),
    ),
    Mutant(
        "places are not kept",
        "a session moves to the front of its list, and its hash does not say where it is",
        lua("_commit_writes", _KEPT, ""),
    ),
    Mutant(
        "depths are not kept",
        "a step that takes from its own inbox does not write how deep it is now",
        lua("_commit_writes", "if targets[0].counted then", "if false then"),
    ),
    Mutant(
        "input is consumed unread",
        "a step consumes an entry that got the number of the lost one that its holder had read",
        lua("_commit_outcome", "not is_as_read(cursor)", "false"),
        "births",
        test="tests/broker/test_commit.py"
        "::test_commit_consumes_no_entry_that_got_the_number_of_the_one_that_was_read",
    ),
    Mutant(
        "claims show no queue",
        "a worker that claims a session is not shown what waits for it",
        lua("claim", "queued and queued[2] or {}", "{}"),
    ),
)
