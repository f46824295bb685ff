"""The turn that runs, while its items begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.core.frozen import replace
from orchestrator.views.turns import turn_records as r

Call = r.CommandExecution | r.FileChange | r.McpToolCall | r.DynamicToolCall | r.CollabToolCall
CALLS = (
    r.CommandExecution,
    r.FileChange,
    r.McpToolCall,
    r.DynamicToolCall,
    r.CollabToolCall,
)


@dataclass(slots=True)
class OpenTurn:
    """A turn that runs."""

    id: r.TurnId
    started_ms: int | None
    implied: bool = False
    """Whether no event told of its begin, as in logs of other programs."""
    fault: r.Fault | None = None
    inputs: int = 0
    compactions: int = 0
    phased: bool = False
    """Whether events tell of both ends of its compactions."""
    reviews: int = 0
    last_message: r.AgentMessage | None = None
    held: list[r.UserMessage] = field(default_factory=list)
    """Words that joined the turn while a call ran: the model reads them behind its output."""
    items: dict[r.ItemId, r.ThreadItem] = field(default_factory=dict)
    whole: set[r.ItemId] = field(default_factory=set)
    """Searches and compactions that are done."""
    speech: Speech = field(init=False)

    def __post_init__(self) -> None:
        self.speech = Speech(self.id)

    def starts(self, out: list[r.Change], item: r.ThreadItem) -> None:
        self.items[item.id] = item
        out.append(r.ItemStarted(self.id, item))

    def completes(self, out: list[r.Change], item: r.ThreadItem) -> None:
        self.items[item.id] = item
        out.append(r.ItemCompleted(self.id, item))

    def shows(self, out: list[r.Change], item: r.ThreadItem) -> None:
        """An item that is whole as it begins."""
        self.starts(out, replace(item, completed_ms=None))
        self.completes(out, item)

    def hears(self, out: list[r.Change], item: r.UserMessage) -> None:
        """Shows words, or holds them until the calls that run have ended, and words before them are shown."""
        if self.held or any(_runs(each) and not lasts(each) for each in self.items.values()):
            self.held.append(item)
        else:
            self.shows(out, item)

    def joins_held(self, out: list[r.Change]) -> None:
        """The model is about to be told the words that were held."""
        held, self.held = self.held, []
        for item in held:
            self.shows(out, item)

    def says(self, items: Sequence[r.ThreadItem]) -> None:
        """Keeps items of the model that are complete."""
        self.items |= {item.id: item for item in items}

    def thought_ends(self, out: list[r.Change]) -> None:
        if ended := self.speech.thought_ends(out):
            self.says(ended)

    def compacts(self, out: list[r.Change], at_ms: int | None) -> None:
        """A compaction begins, or an attempt after a broken one."""
        if self._compaction not in self.items:
            self.starts(out, r.ContextCompaction(self._compaction, at_ms))

    def compacted(self, out: list[r.Change], at_ms: int | None) -> None:
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
    def _compaction(self) -> r.ItemId:
        return r.ItemId(f"{self.id}-c" + (f"-{self.compactions + 1}" if self.compactions else ""))

    def breaks_off(self) -> None:
        """The model's stream broke: what it had begun to say or to search never completes."""
        self.speech.breaks_off()
        for item in [*self.items.values()]:
            if isinstance(item, r.WebSearch) and item.id not in self.whole:
                del self.items[item.id]

    def ends_calls(
        self, out: list[r.Change], status: r.ItemStatus, declined: set[str], at_ms: int | None
    ) -> None:
        """Ends what runs with its turn.

        A process goes on behind it; a search or a compaction that is not done leaves nothing.
        """
        for item in [*self.items.values()]:
            if isinstance(item, CALLS):
                if _runs(item) and not lasts(item):
                    how = r.ItemStatus.DECLINED if item.id in declined else status
                    self.completes(out, replace(item, status=how, completed_ms=at_ms))
            elif isinstance(item, r.ContextCompaction | r.WebSearch) and item.id not in self.whole:
                del self.items[item.id]

    def turn(
        self, status: r.TurnStatus = r.TurnStatus.IN_PROGRESS, completed_ms: int | None = None
    ) -> r.Turn:
        items = (*self.items.values(), *self.held)
        fault = self.fault if status is r.TurnStatus.FAILED else None
        return r.Turn(self.id, status, items, fault, self.started_ms, completed_ms)


def _runs(item: r.ThreadItem) -> bool:
    """Whether the item is a call that has not ended."""
    return isinstance(item, CALLS) and item.status is r.ItemStatus.IN_PROGRESS


def lasts(item: r.ThreadItem) -> bool:
    """Whether the item is a command that may go on behind its turn."""
    return isinstance(item, r.CommandExecution) and item.process_id is not None


# ── speech ────────────────────────────────────────────────────────────────────────────────────────
# Items that are streamed before they are whole: messages, reasoning, plans.
#
# The pieces are shown to those who listen, and no log has them. An item whose stream breaks, or is
# stopped, never completes, and leaves nothing. Names count what was completed, so that a log gives the
# same ones.


Spoken = r.AgentMessage | r.Plan


@dataclass(slots=True)
class _Stream:
    """An item while it is said, and the pieces that were shown of it."""

    item: Spoken
    pieces: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Thought:
    """Reasoning while it is shown: the parts of its summary, and those that are whole."""

    item: r.Reasoning
    parts: list[list[str]] = field(default_factory=lambda: [[]])
    raw: list[str] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    at_ms: int | None = None
    seq: int | None = None
    """The entry of the last whole part: the next one belongs to the same item if it follows at once."""

    @property
    def whole(self) -> bool:
        return bool(self.summary or self.content)


def _began(item: Spoken | r.Reasoning, done_ms: int | None) -> int | None:
    """When an item began: pieces have Redis's time, and a log its worker's, which may be a little behind."""
    if item.started_ms is None or done_ms is None:
        return item.started_ms
    return min(item.started_ms, done_ms)


class Speech:
    """The words of one turn's model."""

    def __init__(self, turn: r.TurnId) -> None:
        self._turn = turn
        self._attempt = 0
        self._messages = 0
        self._thoughts = 0
        self._plans = 0
        self._message: _Stream | None = None
        self._plan: _Stream | None = None
        self._thought: _Thought | None = None

    def breaks_off(self) -> None:
        """The stream is void: the next attempt says everything anew, under other names."""
        self._attempt += 1
        self._message = self._plan = self._thought = None

    def response_ends(self) -> None:
        """A response is over: what is not whole by now never will be."""
        self._message = self._plan = None
        if self._thought is not None and not self._thought.whole:
            self._thought = None

    # ── messages and plans ────────────────────────────────────────────────────────────────────

    def message_piece(self, out: list[r.Change], piece: str, at_ms: int | None) -> None:
        if self._message is None:
            self._message = self._begin(out, r.AgentMessage(self._message_id, started_ms=at_ms))
        self._piece(out, self._message, r.DeltaKind.MESSAGE, piece)

    def message(self, out: list[r.Change], text: str, phase: str | None, at_ms: int | None) -> r.AgentMessage:
        """A message is whole."""
        stream = self._message or self._begin(out, r.AgentMessage(self._message_id, started_ms=at_ms))
        self._message = None
        self._messages += 1
        self._rest(out, stream, r.DeltaKind.MESSAGE, text)
        done = r.AgentMessage(stream.item.id, text, phase, _began(stream.item, at_ms), at_ms)
        out.append(r.ItemCompleted(self._turn, done))
        return done

    def plan_piece(self, out: list[r.Change], piece: str, at_ms: int | None) -> None:
        """A piece of a plan; an empty one where it begins."""
        if self._plan is None:
            self._plan = self._begin(out, r.Plan(self._plan_id, started_ms=at_ms))
        if piece:
            self._piece(out, self._plan, r.DeltaKind.PLAN, piece)

    def plan(self, out: list[r.Change], text: str, at_ms: int | None) -> r.Plan:
        """A plan is whole; it may differ from its pieces."""
        stream = self._plan or self._begin(out, r.Plan(self._plan_id, started_ms=at_ms))
        self._plan = None
        self._plans += 1
        self._rest(out, stream, r.DeltaKind.PLAN, text)
        done = r.Plan(stream.item.id, text, _began(stream.item, at_ms), at_ms)
        out.append(r.ItemCompleted(self._turn, done))
        return done

    @property
    def _message_id(self) -> r.ItemId:
        return r.ItemId(f"{self._turn}-{self._attempt}-m{self._messages + 1}")

    @property
    def _plan_id(self) -> r.ItemId:
        return r.ItemId(f"{self._turn}-plan" + (f"-{self._plans + 1}" if self._plans else ""))

    def _begin(self, out: list[r.Change], item: Spoken) -> _Stream:
        out.append(r.ItemStarted(self._turn, item))
        return _Stream(item)

    def _piece(self, out: list[r.Change], stream: _Stream, kind: r.DeltaKind, piece: str) -> None:
        stream.pieces.append(piece)
        out.append(r.ItemDelta(self._turn, stream.item.id, kind, piece))

    def _rest(self, out: list[r.Change], stream: _Stream, kind: r.DeltaKind, text: str) -> None:
        """Shows what no piece had; one who came in the middle of the item has seen its end."""
        shown = "".join(stream.pieces)
        if text.startswith(shown) and len(shown) < len(text):
            self._piece(out, stream, kind, text[len(shown) :])

    # ── reasoning ─────────────────────────────────────────────────────────────────────────────

    def thought_piece(
        self, out: list[r.Change], piece: str, at_ms: int | None, *, raw: bool
    ) -> list[r.Reasoning]:
        """A piece of reasoning; an item that was whole before ends by it, and is returned."""
        ended = self.thought_ends(out)
        thought = self._open_thought(out, at_ms)
        if raw:
            thought.raw.append(piece)
            out.append(r.ItemDelta(self._turn, thought.item.id, r.DeltaKind.REASONING_TEXT, piece))
            return ended
        part, index = thought.parts[-1], len(thought.parts) - 1
        if not part:
            out.append(r.ItemDelta(self._turn, thought.item.id, r.DeltaKind.REASONING_PART, "", index))
        part.append(piece)
        out.append(r.ItemDelta(self._turn, thought.item.id, r.DeltaKind.REASONING_SUMMARY, piece, index))
        return ended

    def thought_breaks(self) -> None:
        """The next piece of the summary begins a part; it stands before the first one as well."""
        if self._thought is not None and self._thought.parts[-1]:
            self._thought.parts.append([])

    def thought(
        self, out: list[r.Change], text: str, at_ms: int | None, seq: int | None, *, raw: bool
    ) -> list[r.Reasoning]:
        """A part of the reasoning is whole; items that end by it are returned."""
        found = self._thought
        follows = found is None or not found.whole or None in (seq, found.seq) or seq == (found.seq or 0) + 1
        ended = [] if follows else self.thought_ends(out)
        thought = self._open_thought(out, at_ms)
        thought.at_ms, thought.seq = at_ms, seq
        if raw:
            thought.content.append(text)
            self._rest_of_thought(out, thought, thought.raw, "".join(thought.content), raw=True, index=0)
            return ended
        thought.summary.append(text)
        index = len(thought.summary) - 1
        while len(thought.parts) <= index:
            thought.parts.append([])
        self._rest_of_thought(out, thought, thought.parts[index], text, raw=False, index=index)
        return ended

    def thought_ends(self, out: list[r.Change]) -> list[r.Reasoning]:
        """Something else comes: reasoning with a whole part is complete; any other may still go on."""
        thought = self._thought
        if thought is None or not thought.whole:
            return []
        self._thought = None
        self._thoughts += 1
        done = replace(
            thought.item,
            summary=tuple(thought.summary),
            content=tuple(thought.content),
            started_ms=_began(thought.item, thought.at_ms),
            completed_ms=thought.at_ms,
        )
        out.append(r.ItemCompleted(self._turn, done))
        return [done]

    def _open_thought(self, out: list[r.Change], at_ms: int | None) -> _Thought:
        if self._thought is None:
            id = r.ItemId(f"{self._turn}-{self._attempt}-r{self._thoughts + 1}")
            self._thought = _Thought(r.Reasoning(id, started_ms=at_ms))
            out.append(r.ItemStarted(self._turn, self._thought.item))
        return self._thought

    def _rest_of_thought(
        self,
        out: list[r.Change],
        thought: _Thought,
        shown: list[str],
        text: str,
        *,
        raw: bool,
        index: int,
    ) -> None:
        said, id = "".join(shown), thought.item.id
        if not (text.startswith(said) and len(said) < len(text)):
            return
        if not raw and not shown:
            out.append(r.ItemDelta(self._turn, id, r.DeltaKind.REASONING_PART, "", index))
        kind = r.DeltaKind.REASONING_TEXT if raw else r.DeltaKind.REASONING_SUMMARY
        shown.append(text[len(said) :])
        out.append(r.ItemDelta(self._turn, id, kind, shown[-1], index))
