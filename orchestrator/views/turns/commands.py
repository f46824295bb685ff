"""Commands between their begin and their end, which may come behind their turn's."""

from __future__ import annotations

import codecs

from orchestrator.protocol.wire import JsonMapping
from orchestrator.views.turns import calls
from orchestrator.views.turns.fields import chunk, optional, text
from orchestrator.views.turns.open_turn import OpenTurn
from orchestrator.views.turns.records import (
    Change,
    CommandExecution,
    DeltaKind,
    ItemCompleted,
    ItemDelta,
    ItemId,
    ItemStatus,
    TurnId,
)


class RunningCommands:
    """The commands of one session that run: those of its open turn, and those that went on behind theirs."""

    def __init__(self) -> None:
        self._lasting: dict[ItemId, tuple[TurnId, CommandExecution]] = {}
        """Commands whose turn is over."""
        self._decoders: dict[tuple[ItemId, str], codecs.IncrementalDecoder] = {}
        """Of their output, by stream: a cut may fall inside a character."""

    def outlive(self, turn: OpenTurn) -> None:
        """Keeps what still runs of a turn that ends."""
        for item in turn.items.values():
            if isinstance(item, CommandExecution) and item.status is ItemStatus.IN_PROGRESS:
                self._lasting[item.id] = (turn.id, item)

    def said(self, out: list[Change], turn: OpenTurn | None, id: ItemId, event: JsonMapping) -> None:
        """Tells a piece of a command's output."""
        found = self._running(turn, id)
        if found is not None:
            key = found[1].id, text(event.get("stream"))
            if key not in self._decoders:
                self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
            if said := self._decoders[key].decode(chunk(event.get("chunk"))):
                out.append(ItemDelta(found[0], found[1].id, DeltaKind.COMMAND_OUTPUT, said))

    def typed(self, out: list[Change], turn: OpenTurn | None, id: ItemId, event: JsonMapping) -> None:
        """Tells of input that was written to a command's terminal."""
        found = self._running(turn, id)
        if found is not None:
            typed, process = text(event.get("stdin")), optional(event.get("process_id"))
            kind = DeltaKind.TERMINAL_INPUT
            out.append(ItemDelta(found[0], found[1].id, kind, typed, process_id=process))

    def ended(
        self, out: list[Change], turn: OpenTurn | None, id: ItemId, event: JsonMapping, at_ms: int | None
    ) -> None:
        """Completes a command, in its turn or behind it."""
        found = self._running(turn, id)
        if found is None:
            return
        ended = calls.ended_command(found[1], event, at_ms)
        for stream in ("stdout", "stderr"):
            self._decoders.pop((ended.id, stream), None)
        if turn is not None and found[0] == turn.id:
            turn.completes(out, ended)
        else:
            del self._lasting[ended.id]
            out.append(ItemCompleted(found[0], ended))

    def _running(self, turn: OpenTurn | None, id: ItemId) -> tuple[TurnId, CommandExecution] | None:
        """A command that has begun and not ended, with its turn."""
        found = None if turn is None else turn.items.get(id)
        if isinstance(found, CommandExecution) and found.status is ItemStatus.IN_PROGRESS:
            assert turn is not None
            return turn.id, found
        return self._lasting.get(id)
