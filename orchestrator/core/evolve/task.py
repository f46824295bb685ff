"""`evolve` for the facts of a task and of its calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from orchestrator.core import facts as f
from orchestrator.core.calls import VariantsWork
from orchestrator.core.frozen import replace
from orchestrator.core.history import Item, Log
from orchestrator.core.state import Branch, Elicitation, State, Task
from orchestrator.core.tokens import TokenInfo, Usage
from orchestrator.core.turn_calls import Calls, Phase
from orchestrator.core.user_shell import shell_call


def task_of(state: State) -> Task:
    if state.task is None:
        raise ValueError("the rollout has an entry of a task where no task holds the session")
    return state.task


def evolve_task(state: State, fact: f.TaskFact) -> State:
    match fact:
        case f.TaskBegun():
            return _task_begun(state, fact)
        case f.TaskEnded(outcome):
            return replace(_without_branch(state), task=None, outcome=outcome)
        case f.Stopping(reason):
            return replace(state, task=replace(task_of(state), stopping=reason))
        case f.Failing(message, info):
            return replace(state, task=replace(task_of(state), failure=message, failure_info=info))
        case f.Ending(output):
            return replace(state, task=replace(task_of(state), ending=output))
        case f.CallsClosed(call_ids):
            task = task_of(state)
            return replace(state, task=replace(task, calls=task.calls.closed(frozenset(call_ids))))
        case f.ElicitationOpened(call_id, id, server, timer):
            task, asked = task_of(state), Elicitation(id, call_id, server, timer)
            return replace(state, task=replace(task, elicitations=(*task.elicitations, asked)))
        case f.ElicitationClosed(id, decision):
            task = task_of(state)
            decided = [
                replace(asked, decision=decision) if asked.id == id else asked for asked in task.elicitations
            ]
            return replace(state, task=replace(task, elicitations=tuple(decided)))
        case f.Steered(_, item):
            task = task_of(state)
            return replace(state, task=replace(task, steered=(*task.steered, item)))
        case f.SteeredJoined(count):
            task = task_of(state)
            return replace(state, task=replace(task, steered=task.steered[count:]))
        case f.VariantDrafted():
            return replace(state, task=_variant_drafted(task_of(state), fact))
        case f.PlanDecided(_, plan):
            return replace(state, task=replace(task_of(state), result={"plan": plan}))
        case _:
            assert_never(fact)


def _task_begun(state: State, fact: f.TaskBegun) -> State:
    branch = _branch(state, fact)
    schema = fact.output_schema
    task = Task(fact.id, fact.task, fact.settings, client=fact.client, output_schema=schema, branch=branch)
    if fact.command is not None:
        task = replace(task, calls=Calls((shell_call(fact.id, fact.command),)))
    if fact.takes_plan:
        task = replace(task, pinned=state.pinned)
        state = state.with_extras(pinned_plan=None)
    # Two clients may use one id: a task takes the first of its name, not everybody's input.
    place = next((at for at, waiting in enumerate(state.queue) if waiting.id == task.id), len(state.queue))
    queue = (*state.queue[:place], *state.queue[place + 1 :])
    tokens = state.tokens
    if tokens is not None and fact.task == "review":
        # Its window is empty: the one that the session's conversation fills is put back with its end.
        tokens = TokenInfo(tokens.total, Usage())
    return replace(state, task=task, queue=queue, closed=False, native=True, tokens=tokens)


def _variant_drafted(task: Task, fact: f.VariantDrafted) -> Task:
    call = task.call(fact.call_id)
    if call is None or not isinstance(call.work, VariantsWork):
        return task
    results = {**call.work.results, str(fact.agent_id): fact.variant}
    return task.with_call(replace(call, work=replace(call.work, results=results)))


def _branch(state: State, fact: f.TaskBegun) -> Branch | None:
    """The conversation of its own that a task begins with, by its kind."""
    last = state.tokens.last if state.tokens is not None else None
    told = state.told.last if state.told is not None else None
    match fact.task:
        case "plan":
            # With what was said so far: one can plan what was just talked about. A log is shared, not copied.
            items = _joined(state.history, fact.opening)
            kept, opening = state.kept_user_texts, fact.opening
            return Branch(state.settings, items, opening, kept, state.compacted, last, told)
        case "review":
            # With nothing of what was said: a reviewer judges what it finds.
            return Branch(state.settings, Log.of(fact.opening), fact.opening, last_usage=last, last_told=told)
        case "user" | "compact" | "shell":
            return None
        case _:
            assert_never(fact.task)


def _joined(items: Log[Item], more: Iterable[Item]) -> Log[Item]:
    for item in more:
        items = items.append(item)
    return items


def _without_branch(state: State) -> State:
    """The state whose window is that of the session's conversation again; a branch's tokens stay counted."""
    branch = state.task.branch if state.task is not None else None
    if branch is None or state.tokens is None:
        return state
    told = state.told and TokenInfo(state.told.total, branch.last_told or Usage())
    return replace(state, tokens=TokenInfo(state.tokens.total, branch.last_usage or Usage()), told=told)


def evolve_call(state: State, fact: f.CallMoved, seq: int) -> State:
    task = task_of(state)
    call = task.call(fact.call_id)
    if call is None:
        return state
    changes: dict[str, object] = {} if fact.epoch is None else {"epoch": fact.epoch}
    if fact.work is not None:
        changes["work"] = fact.work
    if isinstance(fact.work, VariantsWork):
        task = replace(task, drafted=True)
    if fact.phase is Phase.AWAITING_APPROVAL or fact.phase is Phase.ASKING:
        changes["asked_seq"] = seq
    task = task.with_call(call.moved(fact.phase, changes))
    if task.elicitations:
        # A server waits for nothing once its call is over.
        left = [asked for asked in task.elicitations if asked.call_id != fact.call_id]
        task = replace(task, elicitations=tuple(left))
    if fact.baselines:
        changed = fact.baselines
        kept = {path: data for path, data in task.baselines.items() if path not in changed["drop"]}
        task = replace(task, baselines={**kept, **changed["set"]})
    return replace(state, task=task)
