"""The items of one response while it streams: their names, and what clients are shown before they are done.

What is shown here is gone with the stream: the finished item, which is decided on, holds the text. In plan
mode the plan in a message is an item of its own; with `item_events = "all"` every item is one.
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.core import commands as c
from orchestrator.core.history import message_text
from orchestrator.core.modes import plan_item_id, plans
from orchestrator.core.state import Request, State
from orchestrator.core.tagged import Normal, Part, Plan, Start, TagParser, proposal
from orchestrator.core.turn_items import begun_item, publishes_items
from orchestrator.model.events import (
    ItemDone,
    ModelEvent,
    ReasoningRawDelta,
    ReasoningSectionBreak,
    ReasoningSummaryDelta,
    TextDelta,
)
from orchestrator.model.shapes import name_of
from orchestrator.protocol import events as ev
from orchestrator.protocol.events.text import StreamedText
from orchestrator.protocol.turn_items import PlanItem, TurnItem
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue, written
from orchestrator.runtime.deltas import pieces
from orchestrator.tools.site import DeltaSink

Push = Callable[[c.Command], None]

MOST_BEGUN = 1_024
"""Items of one response whose beginning is told: as many as the calls that run of it."""


class ItemStream:
    """The items of one request's response, in their order.

    An item is named by its provider, and by its place in the turn where the provider names none.
    """

    def __init__(self, state: State, request: Request, push: Push, delta: DeltaSink) -> None:
        assert state.task is not None
        settings = state.task.settings
        self._n = request.n
        self._push = push
        self._delta = delta
        self._thread_id, self._turn_id = str(state.facts.session_id), str(state.task.id)
        self._shown = request.purpose == "turn"
        """A compaction's text is not the agent's answer: nothing of it is shown."""
        self._plans = plans(settings)
        self._all = publishes_items(settings)
        self._silent = state.task.branch is not None
        """Beside the session's conversation nothing that is said is shown, but a plan is."""
        self._count = 0
        self._open = ""
        """The name of the item that has begun last, until it is done."""
        self._begun: set[str] = set()
        self._parser = TagParser()
        self._planned = False
        """Whether the message that is open has a plan."""
        self._section = 0

    # ── what comes ────────────────────────────────────────────────────────────────────────────

    def begins(self, item: JsonValue) -> None:
        """Takes the beginning of an item, which may be anything that a server sends."""
        given = item if isinstance(item, dict) else {}
        self._begins(name_of(given.get("id")))
        if self._shown and self._begun_now():
            self._tell(given)

    def shows(self, event: ModelEvent) -> None:
        """Shows a piece of the item that is open."""
        if not self._shown:
            return
        match event:
            case TextDelta(text) if self._plans:
                if not self._open:
                    # An item that begins behind its first piece would forget the tag that it is in.
                    self._begins("")
                self._parts(self._parser.feed(text))
            case TextDelta(text):
                self._said(text)
            case ReasoningSummaryDelta(text):
                index = max(0, self._section - 1)
                self._text(ev.AgentReasoningDelta, ev.ReasoningContentDelta, text, summary_index=index)
            case ReasoningRawDelta(text):
                kinds = ev.AgentReasoningRawContentDelta, ev.ReasoningRawContentDelta
                self._text(*kinds, text, content_index=0)
            case ReasoningSectionBreak():
                self._section += 1
                self._delta(written(ev.AgentReasoningSectionBreak()))
            case _:
                pass

    def done(self, event: ItemDone) -> None:
        """Hands a whole item on, behind all that was shown of it."""
        named = event.place[1]
        if named not in self._begun:
            if not self._open:
                self._begins(named)
            named = self._open
        begun = named in self._begun
        if self._shown and not begun and self._all and self._begun_now():
            self._tell(event.item, searches=False)
        if self._shown and self._plans:
            self._close_plan(event.item)
        self._open, self._section = "", 0
        self._push(c.ItemCompleted(self._n, event.item, named, begun=begun))

    # ── names ─────────────────────────────────────────────────────────────────────────────────

    def _begins(self, name: str) -> None:
        self._count += 1
        self._open = name or f"{self._turn_id}-{self._n}-{self._count}"
        self._parser, self._planned, self._section = TagParser(), False, 0

    def _begun_now(self) -> bool:
        """Whether the open item's beginning is to be told; it is asked once."""
        if self._open in self._begun or len(self._begun) >= MOST_BEGUN:
            return False
        self._begun.add(self._open)
        return True

    # ── what is told ──────────────────────────────────────────────────────────────────────────

    def _tell(self, item: JsonMapping, *, searches: bool = True) -> None:
        if searches and item.get("type") == "web_search_call":
            self._push(c.SearchBegun(self._n, self._open))
        silent = self._silent and item.get("type") == "message"
        if self._all and not silent and (begun := begun_item(item, self._open)) is not None:
            self._started(begun)

    def _started(self, item: TurnItem) -> None:
        self._delta(written(ev.ItemStarted(thread_id=self._thread_id, turn_id=self._turn_id, item=item)))

    def _said(self, text: str) -> None:
        if self._silent:
            return
        self._text(ev.AgentMessageDelta, ev.AgentMessageContentDelta, text)

    def _text(self, kind: type[StreamedText], of_item: type[StreamedText], text: str, **index: int) -> None:
        """Shows a piece of text, and where items are told also as the item's."""
        told = self._all or (self._plans and of_item is ev.AgentMessageContentDelta)
        if told and not self._open:
            self._begins("")
        for piece in pieces(text):
            if told:
                self._delta(self._of_item(of_item, self._open, piece, **index))
            self._delta(ev.text_delta(kind, piece))

    def _of_item(self, kind: type[StreamedText], item_id: str, text: str, **index: int) -> JsonObject:
        place = {"thread_id": self._thread_id, "turn_id": self._turn_id, "item_id": item_id}
        return ev.text_delta(kind, text, **place, **index)

    # ── plans ─────────────────────────────────────────────────────────────────────────────────

    def _parts(self, parts: list[Part]) -> None:
        for part in parts:
            match part:
                case Normal(text):
                    self._said(text)
                case Start():
                    self._plan_begins()
                case Plan(text):
                    for piece in pieces(text):
                        self._delta(self._of_item(ev.PlanDelta, plan_item_id(self._turn_id), piece))
                case _:
                    pass

    def _plan_begins(self) -> None:
        if not self._planned:
            self._planned = True
            self._started(PlanItem(id=plan_item_id(self._turn_id), text=""))

    def _close_plan(self, item: JsonMapping) -> None:
        """Shows what was held of a message; its plan has begun, too, where no piece of it came before."""
        self._parts(self._parser.finish())
        self._parser = TagParser()
        if item.get("type") == "message" and proposal(message_text(item)).plan is not None:
            self._plan_begins()
        self._planned = False
