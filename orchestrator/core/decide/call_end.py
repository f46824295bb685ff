"""The end of a call: its output joins the conversation."""

from __future__ import annotations

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import ExecWork
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.elicitation import withdraw
from orchestrator.core.decide.item_events import publish_call
from orchestrator.core.turn_calls import Call, Phase
from orchestrator.core.user_shell import answer_item
from orchestrator.protocol.items import ToolOutput
from orchestrator.protocol.wire import EventModel, JsonObject


def close(
    draft: Draft,
    call: Call,
    output: ToolOutput,
    *,
    events: tuple[EventModel, ...] = (),
    baselines: JsonObject | None = None,
    sent: f.SentMessage | None = None,
    with_task: bool = False,
) -> None:
    """Gives the call its output, behind the `events` that tell of its end.

    `baselines` are what the task's diff counts from after an applied patch, `sent` the message that the call
    wrote. A call that ends `with_task` needs no entry that tells its phase.
    """
    if draft.task.elicitations:
        withdraw(draft, call, with_task=with_task)
    for event in events:
        draft.event(event)
    if call.phase is Phase.AWAITING_APPROVAL and isinstance(call.work, ExecWork) and isinstance(output, str):
        # Denied, withdrawn or timed out: the run in the sandbox is what there is.
        output = call.work.without_second(output)
    answer = answer_item(call.item, output)
    draft.add(e.item(answer))
    publish_call(draft, call.name, answer)
    if not with_task:
        draft.add(f.CallMoved(call.call_id, Phase.DONE, baselines=baselines or None, sent=sent))
