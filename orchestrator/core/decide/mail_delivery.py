"""Mail on its way to a model: at the boundary of a turn, or as the result of an await.

A message of an ancestor, or of a person, is a `user` message: it instructs. Everything else (a child's
result, a sibling's word, a watchdog) is a synthetic `subagent_await` call with its output, both in one
commit. Its call id carries the agent's number and the number of the sender's first message in the
session's queue: neither is ever used again, not even in a fork's copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from orchestrator.core import agent_views as views
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.commit_parts import TreeNote
from orchestrator.core.decide.draft import Draft, publish_call, publish_depths, watchers
from orchestrator.core.frozen import replace
from orchestrator.core.history import user_message
from orchestrator.core.ids import AgentId
from orchestrator.core.settings import SessionFacts
from orchestrator.core.state import State, Task
from orchestrator.core.tree import Child, Mail
from orchestrator.protocol import events as ev
from orchestrator.protocol.agents import LifecycleChange, SubagentStatus
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.items import FunctionCall, FunctionCallOutput
from orchestrator.protocol.scalars import UserMessageKind
from orchestrator.protocol.wire import JsonMapping

_PERSON = "person"
AWAIT = "subagent_await"
MOST_BYTES = 64 << 10
"""Bytes of one await's result: messages that do not fit stay in the inbox, and the next await returns at
once."""
MOST_LETTERS = 48
"""Messages given to a model at one boundary. Each takes two entries of a commit, which carries 256; the rest
follows with the next request."""
MOST_UNREAD = 96
"""Messages that one commit lets go unread: each may become an `error` for a person."""


def is_instruction(facts: SessionFacts, mail: Mail) -> bool:
    """Whether a message comes from above, where people are too, and not from a timer of somebody there."""
    if mail.content.get("person"):
        return True
    above = mail.kind == "message" and mail.agent_id in facts.ancestors
    return above and not mail.content.get("watchdog")


def in_order(inbox: Iterable[Mail]) -> list[Mail]:
    """Interrupts first; within a lane in order of arrival."""
    return sorted(inbox, key=lambda mail: not mail.interrupt)


def by_sender(mails: Sequence[Mail]) -> list[list[Mail]]:
    """The messages in groups that one AWAIT describes: of one sender, with one completion at most."""
    groups: dict[tuple[int, int], list[Mail]] = {}
    completions: dict[int, int] = {}
    for mail in mails:
        groups.setdefault((mail.agent_id, completions.get(mail.agent_id, 0)), []).append(mail)
        if mail.kind == "completion":
            completions[mail.agent_id] = completions.get(mail.agent_id, 0) + 1
    return list(groups.values())


def deliver(draft: Draft, *, instructions_only: bool = False) -> None:
    """Puts the mail into the conversation, before the request that shows it."""
    facts = draft.state.facts
    mails = [mail for mail in in_order(draft.state.tree.inbox) if _by_itself(facts, mail)]
    if instructions_only:
        mails = [mail for mail in mails if is_instruction(facts, mail)]
    mails = _fitting(mails)
    if not mails:
        return
    for mail in mails:
        if is_instruction(facts, mail):
            text = mail.content["prompt"]
            draft.add(e.item(user_message(text)))
            person = mail.content.get("person")
            draft.event(
                ev.UserMessage(
                    message=text,
                    kind=UserMessageKind.PLAIN,
                    who=str(person) if person else None,
                    from_session=None if person else str(mail.sender["session_id"]),
                )
            )
    reported = [mail for mail in mails if not is_instruction(facts, mail)]
    for group in by_sender(reported):
        for item in _synthetic(draft.state, group):
            draft.add(e.item(item))
            publish_call(draft, AWAIT, item)
    take(draft, mails)


def _fitting(mails: list[Mail]) -> list[Mail]:
    """The first messages that one commit can carry; at least one."""
    size = 0
    for place, mail in enumerate(mails):
        size += len(orjson.dumps(mail.content, default=dict))
        if place and (place == MOST_LETTERS or size > MOST_BYTES):
            return mails[:place]
    return mails


def _shown_together(mails: Sequence[Mail]) -> Sequence[Mail]:
    """The first messages whose texts alone do not fill an await's result; at least one."""
    size = 0
    for place, mail in enumerate(mails):
        text = mail.content.get("prompt" if mail.kind == "message" else "completion")
        size += len(orjson.dumps(text, default=dict))
        if place and size > MOST_BYTES:
            return mails[:place]
    return mails


def _by_itself(facts: SessionFacts, mail: Mail) -> bool:
    """Whether the message reaches a model without an await: without autosubmit a result does not."""
    return mail.kind == "message" or facts.tree_rules.autosubmit


def _synthetic(state: State, group: Sequence[Mail]) -> tuple[FunctionCall, FunctionCallOutput]:
    call = FunctionCall(
        name=AWAIT,
        arguments='{"timeout_s":0}',
        call_id=CallId(f"await-{state.facts.agent_id}-{group[0].n}"),
    )
    result = await_result(state, [views.awaited(state, group)], injected=True)
    return call, FunctionCallOutput(call_id=call.call_id, output=result)


def await_result(
    state: State, ready: Sequence[views.AwaitedAgent], *, injected: bool, timed_out: bool = False
) -> str:
    """The output of an await, whether a model or the session itself made the call."""
    waiting = [child.agent_id for child in state.tree.active_children]
    result = {"timed_out": timed_out, "injected": injected, "ready": list(ready), "waiting": waiting}
    return orjson.dumps(result, default=dict).decode()


def collect(draft: Draft, mails: Sequence[Mail]) -> list[views.AwaitedAgent]:
    """Takes messages for an await's result, as many as fit; at least one, of whoever wrote it."""
    ready: list[views.AwaitedAgent] = []
    taken: list[Mail] = []
    size = 0
    for group in by_sender(_shown_together(mails)):
        entry = views.awaited(draft.state, group)
        size += len(orjson.dumps(entry, default=dict))
        if ready and size > MOST_BYTES:
            break
        ready.append(entry)
        taken += group
    take(draft, taken)
    return ready


def take(draft: Draft, mails: Sequence[Mail]) -> None:
    """Takes messages out of the inbox; results among them count as read."""
    if not mails:
        return
    draft.add(f.MailTaken(tuple(mail.key for mail in mails)))
    for mail in mails:
        draft.tree.take(mail.interrupt)
    _read(draft, [mail for mail in mails if mail.kind == "completion"])
    publish_inbox(draft, draft.state.facts)


def forget_children(draft: Draft, agent_ids: Sequence[AgentId]) -> None:
    """Takes pruned children off the list; their unread results are void."""
    if not agent_ids:
        return
    inbox = draft.state.tree.inbox
    take(draft, [mail for mail in inbox if mail.kind == "completion" and mail.agent_id in agent_ids])
    draft.add(f.ChildrenChanged(tuple(agent_ids), {"pruned": True}))


def _read(draft: Draft, completions: Sequence[Mail]) -> None:
    """Turns ready children idle whose result was read, unless a child works again by now."""
    children = draft.state.tree.children
    idle: list[AgentId] = []
    for mail in completions:
        child, turn = children.get(mail.agent_id), mail.content["turn"]
        if (
            child is not None
            and child.status == "ready"
            and child.turn == turn
            and mail.content["completion"]
        ):
            idle.append(child.agent_id)
            publish_read(draft, child, mail.content)
    if idle:
        draft.add(f.ChildrenChanged(tuple(idle), {"status": "idle"}))


def publish_read(draft: Draft, child: Child, content: JsonMapping) -> None:
    """Publishes that the result of the child's turn was read; `content` is a message about that turn."""
    turn = content["turn"]
    message = ev.SubagentLifecycle(
        event=LifecycleChange.STATUS,
        agent_id=child.agent_id,
        session_id=child.session,
        status=SubagentStatus.IDLE,
        subagent=views.child_summary(draft.state.facts, replace(child, status="idle")),
    )
    facts = draft.state.facts
    targets = dict.fromkeys((facts.session_id, facts.tree_id))
    about: TreeNote = {"read": turn, "agent_id": child.agent_id}
    draft.tree.publish(content["born_in"], message, targets, inbox=child.session, about=about)
    # A field of its own: the child may be writing its record at this very moment.
    draft.tree.note(f"d:{child.agent_id}", str(turn))


def publish_inbox(draft: Draft, facts: SessionFacts) -> None:
    """An `agent_inbox` event about this session; the commit fills in the depths."""
    publish_depths(draft, facts.born_in, facts.agent_id, facts.session_id, watchers(facts))


# ── mail that begins a task ──────────────────────────────────────────────────────────────────────


def mail_begins(draft: Draft) -> bool:
    """Whether mail begins a task: when it comes, or when the task that it met ends."""
    state = draft.state
    if draft.over is not None:
        interrupted = any(mail.interrupt for mail in state.tree.inbox)
        tried = state.outcome == "completed" or (state.outcome == "failed" and _read_mail(draft.before.task))
        return interrupted or (tried and _wants_turn(state))
    return _mail_came(draft) and _wants_turn(state)


def _read_mail(task: Task | None) -> bool:
    """Whether a request of the failed task showed the mail that it met: what waits has come since.

    A task that fails without one leaves its mail where it was, or the next would fail of it for ever.
    """
    if task is None:
        return False
    return len(task.calls) > 0 or (task.request is not None and task.request.purpose == "turn")


def _mail_came(draft: Draft) -> bool:
    now, before = draft.state.tree.inbox, draft.before.tree.inbox
    return bool(now) and now[-1] not in before[-1:]


def _wants_turn(state: State) -> bool:
    """Whether the inbox of an idle session begins a task: an order does, a result if that is wanted.

    After an interrupt or an error a result waits for the next input; so does what agents write to a root.
    """
    results = state.facts.tree_rules.autosubmit and state.outcome == "completed"
    orders = results if state.facts.is_root else True
    return any(
        bool(mail.content.get("person")) or (orders if mail.kind == "message" else results)
        for mail in state.tree.inbox
    )


# ── what a person said and no model will read ─────────────────────────────────────────────────────


def key_of_person(client: str, id: str) -> str:
    """The key of the message that a person's submission becomes."""
    return f"{_PERSON}:{client}:{id}"


def leave_unread(draft: Draft) -> None:
    """Empties the inbox of an agent that ends, as far as one commit carries it; people are told whose words
    these were."""
    mails = draft.state.tree.inbox[:MOST_UNREAD]
    take(draft, mails)
    publish_undelivered(draft, [mail.key for mail in mails])


def publish_undelivered(draft: Draft, keys: Iterable[str]) -> None:
    """An `error` at the root for each message of a person among these: the agent ends without reading it."""
    facts = draft.state.facts
    for key in keys:
        writer, _, name = key.partition(":")
        # A client's id is a UUID: whatever follows it is the submission's.
        id = name.partition(":")[2]
        if writer != _PERSON or not id:
            continue
        error = ev.Error(message=f"this message was not delivered: {_over(draft.state)}")
        if facts.is_root:
            draft.add(e.event(id, error))
        else:
            draft.tree.publish(id, error, (facts.tree_id,))


def _over(state: State) -> str:
    facts = state.facts
    if facts.is_root:
        resume = f"dendro run --resume {facts.session_id}"
        return f"the session was closed first; resume it with `{resume}`, and send the message again"
    name = f"agent {facts.agent_id}"
    if state.tree.canceling:
        return f"{name} was cancelled: it takes no more input; send it to another agent"
    if state.tree.pruned:
        return f"{name} was pruned: it takes no more input; send it to another agent"
    return f"{name} is being closed; send the message again"
