"""Items of a turn that are told whole (`item_events = "all"`), beside the older event of each."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.agent_views import TOLD_BY_ITEMS
from orchestrator.core.commands import ItemCompleted
from orchestrator.core.decide.draft import Draft
from orchestrator.core.history import Item
from orchestrator.core.turn_items import completed_item, publishes_items, user_item
from orchestrator.protocol import events as ev
from orchestrator.protocol.scalars import CompactionPhase
from orchestrator.protocol.turn_items import ContextCompactionItem, TurnItem
from orchestrator.protocol.wire import ItemModel, JsonMapping, written


def publish_input(draft: Draft, items: Sequence[Item]) -> None:
    """Publishes the item of what a person said, which is whole at once."""
    if publishes_items(draft.task.settings):
        item = user_item(items, f"{draft.task.id}-user-{len(draft.state.conversation)}")
        draft.show(_started(draft, item))
        draft.show(_completed(draft, item))


def publish_done(draft: Draft, command: ItemCompleted, said: str) -> None:
    """Publishes the end of an item of the model; an item without a name was begun by nobody."""
    if command.item_id and publishes_items(draft.task.settings):
        raw = draft.moment.rules.show_raw_reasoning
        item = completed_item(command.item, command.item_id, said, raw=raw)
        if item is not None:
            draft.show(_completed(draft, item))


def publish_compaction(draft: Draft, *, done: bool) -> None:
    """Publishes the begin or the end of a compaction; one that fails is begun again with its next request."""
    phase = CompactionPhase.DONE if done else CompactionPhase.BEGUN
    draft.event(ev.ContextCompaction(turn_id=draft.task.id, phase=phase))
    if publishes_items(draft.task.settings):
        item = ContextCompactionItem(id=f"{draft.task.id}-compaction-{draft.state.requests}")
        draft.show(_completed(draft, item) if done else _started(draft, item))
        if done:
            draft.event(ev.ContextCompacted())


def publish_call(draft: Draft, name: str, item: ItemModel | JsonMapping) -> None:
    """Publishes a call about agents, or its output, as it joins the conversation; others have events."""
    if name in TOLD_BY_ITEMS:
        draft.show(
            ev.RawResponseItem.model_validate(
                {"item": written(item) if isinstance(item, ItemModel) else item}
            )
        )


def _started(draft: Draft, item: TurnItem) -> ev.ItemStarted:
    return ev.ItemStarted(thread_id=draft.state.facts.session_id, turn_id=draft.task.id, item=item)


def _completed(draft: Draft, item: TurnItem) -> ev.ItemCompleted:
    return ev.ItemCompleted(thread_id=draft.state.facts.session_id, turn_id=draft.task.id, item=item)
