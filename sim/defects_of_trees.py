"""Defects of what a tree shares: slots, budgets, letters, deadlines, forks, providers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.core import birth, compaction, context, decide
from orchestrator.core.decide import agent_calls, mail_arrival, request, task
from orchestrator.core.decide.draft import Draft
from orchestrator.runtime import model_request
from orchestrator.runtime.journal import Step
from orchestrator.runtime.request_costs import Accounting
from orchestrator.runtime.step import Decisions
from sim.mutant import Mutant, lua, swapped, text


def _but_the_last(history: Any) -> Any:
    items = list(history)
    said = [place for place, item in enumerate(items) if item.get("type") == "message"]
    return [item for place, item in enumerate(items) if place not in said[-1:]]


def _unsettled(real: Any) -> Any:
    def settlement(self: Accounting, state: Any, fact: Any) -> Any:
        return real(self, state, fact) if fact.get("usage") or fact["outcome"] == "waiting" else None

    return settlement


def _keeps_its_slot(real: Any) -> Any:
    def come_to_rest(draft: Draft) -> None:
        real(draft)
        if draft.over is not None and draft.over.outcome == "failed":
            draft.tree.debits = [debit for debit in draft.tree.debits if debit.amount > 0]

    return come_to_rest


def _sets_what_it_clears(real: Any) -> Any:
    def take_timers(self: Step, decision: Any) -> None:
        cleared = decision.timers_clear
        real(self, replace(decision, timers_clear=()))
        self.timers_clear += cleared

    return take_timers


def _barks_for_ever() -> None:
    text(task, "close_session", "    end_watchdogs(draft)\n", "")()
    text(mail_arrival, "_begin_canceling", "    agent.end_watchdogs(draft)\n", "")()


def _fires_early() -> None:
    lua("timers_due", "'-inf', text(now)", "'-inf', text(now + 2000)")()
    lua("fire", "tonumber(at) > now then", "tonumber(at) > now + 2000 then")()


def _sends_at_once(real: Any) -> Any:
    async def admitted(*args: Any) -> int:
        return 0

    return admitted


DEFECTS = (
    Mutant(
        "takeover leaves a reservation",
        "a request whose end nobody saw, or that failed, is not settled",
        swapped(Accounting, "settlement", _unsettled),
    ),
    Mutant(
        "failed responses are an estimate",
        "a response that failed is settled by its reservation, though its server told what it used",
        text(
            Accounting,
            "settlement",
            "case _ if fact.usage:",
            "case f.RequestCompleted() if fact.usage:",
        ),
        "budgets",
    ),
    Mutant(
        "leaving ends nothing in pieces",
        "a worker that only ends what was lost does not tell the children of an agent that has many",
        text(
            Decisions,
            "_advance",
            "progressed, leaving = True, self._side_work.leaving()",
            "progressed = not (leaving := self._side_work.leaving())",
        ),
        "abandoned",
    ),
    Mutant(
        "settling wakes nobody",
        "who waits for what others have reserved is not woken when that is settled",
        lua(
            "_commit_refusals",
            "to_wake, budget.waiting.reserved = budget.waiting.reserved, ''",
            "to_wake = ''",
        ),
        "budgets",
    ),
    Mutant(
        "a day has its last usage alone",
        "what was used on a day before is forgotten with the next request of the same model and person",
        lua("_budget", "before[i] = before[i] + counted[i]", "before[i] = counted[i]"),
    ),
    Mutant(
        "estimates are counted on no day",
        "a request whose end nobody saw is spent by its tree, and on no day",
        lua("_commit_refusals", "known.who or ''}, counted)", "known.who or ''}, row.used)"),
    ),
    Mutant(
        "an hour forgets requests of the same five minutes",
        "of the requests of a tree that end in the same five minutes the last ones are counted alone",
        lua("_budget", "text(tonumber(count) + requests)", "text(requests)"),
    ),
    Mutant(
        "an hour's counts move too far",
        "what a tree did in the five minutes before is told as of the ones before those",
        lua("_budget", "string.rep(' 0', passed - 1)", "string.rep(' 0', passed)"),
        test="tests/broker/test_budgets.py::test_requests_of_the_last_hour_are_counted_by_five_minutes",
    ),
    Mutant(
        "a change keeps the limits behind it twice",
        "a tree's log says that limits were before a change what they are behind it",
        lua("raise_limits", "(was and text(was) or 'null')", "(was and text(value) or 'null')"),
        test="tests/broker/test_budgets.py::test_tree_s_log_has_the_limits_before_and_behind_a_change",
    ),
    Mutant(
        "raising wakes nobody",
        "who waits for a budget is not woken when more is added",
        lua(
            "raise_limits",
            "local woken = wake_waiting(waiting[1] or '', KEYS[3], now) "
            "+ wake_waiting(waiting[2] or '', KEYS[3], now)",
            "local woken = 0",
        ),
    ),
    Mutant(
        "spent budgets do not stop",
        "a request may begin when a budget is spent",
        lua(
            "_budget",
            "    if budget.limit[i] and budget.spent[i] >= budget.limit[i] then return 'spent', kind end\n",
            "",
        ),
        "budgets",
    ),
    Mutant(
        "reservations of others do not count",
        "a request may begin though it does not fit beside what is in flight",
        lua(
            "_budget",
            "if budget.limit[i] and asked > budget.limit[i] and budget.held[i] > 0 "
            "then return 'reserved', kind end",
            "",
        ),
        "budgets",
    ),
    Mutant(
        "slot kept by who fails",
        "an agent whose task fails does not give its slot back",
        swapped(decide, "come_to_rest", _keeps_its_slot),
    ),
    Mutant(
        "spawn does not count",
        "a new agent is not drawn from those that the tree may make",
        text(agent_calls, "_create", "parts.Debit(parts.SPAWNED, 1,", "parts.Debit(parts.SPAWNED, 0,"),
    ),
    Mutant(
        "inbox is not lowered",
        "`commit` does not take letters that were read off the inbox depths",
        lua("_commit_outcome", "  own.regular = math.max(0, own.regular - taken_regular)\n", ""),
    ),
    Mutant(
        "await without its timer",
        "a wait is recorded, and its deadline is not set",
        swapped(Draft, "set_timer_of", lambda real: lambda self, id, generation, at_ms: None),
    ),
    Mutant(
        "deadline ends nothing",
        "a wait whose time is over goes on",
        swapped(decide, "timed_out", lambda real: lambda *_: None),
    ),
    Mutant(
        "timers fire early",
        "deadlines count two seconds before their time",
        _fires_early,
        "watchdogs",
    ),
    Mutant(
        "what is cleared is set",
        "a timer that one step sets and clears is set",
        swapped(Step, "_take_timers", _sets_what_it_clears),
        "watchdogs",
    ),
    Mutant(
        "watchdogs bark for ever",
        "an agent that is cancelled, or a session that is closed, keeps its watchdogs",
        _barks_for_ever,
    ),
    Mutant(
        "fork forgets",
        "a fork begins without the last thing that was said",
        swapped(
            agent_calls,
            "inherited_history",
            lambda real: lambda items, forks: real(_but_the_last(items), forks),
        ),
    ),
    Mutant(
        "compaction forgets",
        "a compaction keeps what people said last, and nothing from before",
        swapped(compaction, "_newest", lambda real: lambda texts: real(texts[-1:])),
    ),
    Mutant(
        "compaction forgets the role",
        "an agent whose conversation was compacted does not know its part in the tree any more",
        swapped(context, "is_role", lambda real: lambda item: False),
        "forks",
    ),
    Mutant(
        "fork forgets people",
        "what people said before a fork is not kept by its compactions",
        swapped(agent_calls, "newest_texts", lambda real: lambda state: ()),
        "forks",
    ),
    Mutant(
        "heir forgets",
        "a session that a person forks from another begins without the last thing that was said there",
        swapped(
            birth,
            "inherited_history",
            lambda real: lambda items, forks: real(_but_the_last(items), forks),
        ),
        "heirs",
    ),
    Mutant(
        "heir forgets people",
        "what people said before a person forked the session is not kept by its compactions",
        swapped(birth, "newest_texts", lambda real: lambda state: ()),
        "heirs",
    ),
    Mutant(
        "rescued for ever",
        "a task whose conversation does not fit is compacted again and again, and never fails",
        text(request, "_rescue", "if task.rescued or nothing_said", "if nothing_said"),
    ),
    Mutant(
        "limits are not spent",
        "`admit` does not count the requests that it lets through",
        lua("admit", "spend('requests', requests_limit, 1)\n", ""),
        "limits",
    ),
    Mutant(
        "requests do not ask for room",
        "a request is sent whatever its provider's limit says",
        swapped(model_request, "admitted", _sends_at_once),
        "limits",
    ),
    Mutant(
        "revoke leaves the claim",
        "`revoke` leaves its holder the claim, and the right to write with it",
        lua(
            "revoke",
            "'epoch', text(row.epoch), 'claim', '', 'quarantined'",
            "'epoch', text(row.epoch - 1), 'quarantined'",
        ),
    ),
)
