"""The turn that runs, while its items begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.core.frozen import replace
from orchestrator.views.turns.records import (
    AgentMessage,
    Change,
    CollabToolCall,
    CommandExecution,
    ContextCompaction,
    DynamicToolCall,
    Fault,
    FileChange,
    ItemCompleted,
    ItemId,
    ItemStarted,
    ItemStatus,
    McpToolCall,
    ThreadItem,
    Turn,
    TurnId,
    TurnStatus,
    UserMessage,
    WebSearch,
)
from orchestrator.views.turns.speech import Speech

Call = CommandExecution | FileChange | McpToolCall | DynamicToolCall | CollabToolCall
CALLS = (CommandExecution, FileChange, McpToolCall, DynamicToolCall, CollabToolCall)


@dataclass(slots=True)
class OpenTurn:
    """A turn that runs."""

    id: TurnId
    started_ms: int | None
    implied: bool = False
    """Whether no event told of its begin, as in logs of other programs."""
    fault: Fault | None = None
    inputs: int = 0
    compactions: int = 0
    phased: bool = False
    """Whether events tell of both ends of its compactions."""
    reviews: int = 0
    last_message: AgentMessage | None = None
    held: list[UserMessage] = field(default_factory=list)
    """Words that joined the turn while a call ran: the model reads them behind its output."""
    items: dict[ItemId, ThreadItem] = field(default_factory=dict)
    whole: set[ItemId] = field(default_factory=set)
    """Searches and compactions that are done."""
    speech: Speech = field(init=False)

    def __post_init__(self) -> None:
        self.speech = Speech(self.id)

    def starts(self, out: list[Change], item: ThreadItem) -> None:
        self.items[item.id] = item
        out.append(ItemStarted(self.id, item))

    def completes(self, out: list[Change], item: ThreadItem) -> None:
        self.items[item.id] = item
        out.append(ItemCompleted(self.id, item))

    def shows(self, out: list[Change], item: ThreadItem) -> None:
        """An item that is whole as it begins."""
        self.starts(out, replace(item, completed_ms=None))
        self.completes(out, item)

    def hears(self, out: list[Change], item: UserMessage) -> None:
        """Shows words, or holds them until the calls that run have ended."""
        if any(_runs(each) and not lasts(each) for each in self.items.values()):
            self.held.append(item)
        else:
            self.shows(out, item)

    def joins_held(self, out: list[Change]) -> None:
        """The model is about to be told the words that were held."""
        held, self.held = self.held, []
        for item in held:
            self.shows(out, item)

    def says(self, items: Sequence[ThreadItem]) -> None:
        """Keeps items of the model that are complete."""
        self.items |= {item.id: item for item in items}

    def thought_ends(self, out: list[Change]) -> None:
        if ended := self.speech.thought_ends(out):
            self.says(ended)

    def compacts(self, out: list[Change], at_ms: int | None) -> None:
        """A compaction begins, or an attempt after a broken one."""
        if self._compaction not in self.items:
            self.starts(out, ContextCompaction(self._compaction, at_ms))

    def compacted(self, out: list[Change], at_ms: int | None) -> None:
        """The compaction that has begun is done."""
        begun = self.items.get(self._compaction)
        if begun is not None:
            self.compactions += 1
            self.whole.add(begun.id)
            self.completes(out, replace(begun, completed_ms=at_ms))

    @property
    def only_compacts(self) -> bool:
        """Whether the turn is a compaction that was asked for."""
        return bool(self.compactions) and not self.inputs

    @property
    def _compaction(self) -> ItemId:
        return ItemId(f"{self.id}-c" + (f"-{self.compactions + 1}" if self.compactions else ""))

    def breaks_off(self) -> None:
        """The model's stream broke: what it had begun to say or to search never completes."""
        self.speech.breaks_off()
        for item in [*self.items.values()]:
            if isinstance(item, WebSearch) and item.id not in self.whole:
                del self.items[item.id]

    def ends_calls(
        self, out: list[Change], status: ItemStatus, declined: set[str], at_ms: int | None
    ) -> None:
        """Ends what runs with its turn.

        A process goes on behind it; a search or a compaction that is not done leaves nothing.
        """
        for item in [*self.items.values()]:
            if isinstance(item, CALLS):
                if _runs(item) and not lasts(item):
                    how = ItemStatus.DECLINED if item.id in declined else status
                    self.completes(out, replace(item, status=how, completed_ms=at_ms))
            elif isinstance(item, ContextCompaction | WebSearch) and item.id not in self.whole:
                del self.items[item.id]

    def turn(self, status: TurnStatus = TurnStatus.IN_PROGRESS, completed_ms: int | None = None) -> Turn:
        items = (*self.items.values(), *self.held)
        fault = self.fault if status is TurnStatus.FAILED else None
        return Turn(self.id, status, items, fault, self.started_ms, completed_ms)


def _runs(item: ThreadItem) -> bool:
    """Whether the item is a call that has not ended."""
    return isinstance(item, CALLS) and item.status is ItemStatus.IN_PROGRESS


def lasts(item: ThreadItem) -> bool:
    """Whether the item is a command that may go on behind its turn."""
    return isinstance(item, CommandExecution) and item.process_id is not None
