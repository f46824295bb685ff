"""The two ways in which `dendro run` shows a session: for a person, and for a program."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import orjson
from rich.console import Console

from orchestrator.broker.records import SessionHead
from orchestrator.cli.faults import ExitCode, deleted
from orchestrator.cli.live import Live
from orchestrator.cli.notifications import Notifications
from orchestrator.cli.prompts import show_request
from orchestrator.cli.text import json_for_stdout, plain
from orchestrator.views.event import Event


class Calling:
    """Another view, and the person's program and terminal, which are told when somebody is needed."""

    def __init__(self, view: LiveView | JsonView, notifications: Notifications) -> None:
        self._view = view
        self._notifications = notifications

    def event(self, event: Event) -> None:
        self._view.event(event)
        self._notifications.hear(event)

    def ask(self, request: Mapping[str, Any]) -> None:
        self._view.ask(request)

    def note(self, text: str) -> None:
        self._view.note(text)


class LiveView:
    """On the console. Remarks of our own go to stderr unless a terminal shows both together."""

    def __init__(
        self, console: Console | None = None, *, streaming: bool | None = None, whole: bool = False
    ) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(self._console, streaming)
        self._whole = whole
        """Whether the session's input is shown as well: not to the person who has just typed it."""
        self._began = time.monotonic()

    def event(self, event: Event) -> None:
        if self._whole and event.type == "user_message":
            self._live.line(f"» {event.msg['message']}", "bold")
        self._live.show(event)

    def know(self, labels: Mapping[int, str]) -> None:
        """Labels of the tree's agents."""
        self._live.know(labels)

    def ask(self, request: Mapping[str, Any]) -> None:
        show_request(self._live, request)

    def note(self, text: str) -> None:
        if self._console.is_terminal:
            self._live.line(text, "dim")
        else:
            print(plain(text), file=sys.stderr, flush=True)

    def end(self, session: str, code: ExitCode, at_rest: SessionHead | None, *, gone: bool) -> None:
        """The last line: what it cost, and how to go on; nothing does that `gone`, which was deleted."""
        took = f"{time.monotonic() - self._began:.1f} s"
        meta = orjson.loads(at_rest.meta) if at_rest is not None and at_rest.meta else {}
        parts = [part for part in (self._live.figures(meta), took) if part]
        if gone:
            parts.append(deleted(session))
        elif code in (ExitCode.DONE, ExitCode.INTERRUPTED):
            parts.append(f"dendro run --resume {session}")
        self.note(" · ".join(parts))


class JsonView:
    """Events as NDJSON on stdout, and nothing else there."""

    def event(self, event: Event) -> None:
        line = orjson.dumps({"id": event.id, "msg": event.msg})
        sys.stdout.buffer.write(json_for_stdout(line) + b"\n")
        sys.stdout.buffer.flush()

    def ask(self, request: Mapping[str, Any]) -> None:
        """The request is an event like any other; `event` is not called for it."""

    def note(self, text: str) -> None:
        print(plain(text), file=sys.stderr, flush=True)

    def end(self, session: str, code: ExitCode, at_rest: SessionHead | None, *, gone: bool) -> None:
        """Says what no event has said."""
        if gone:
            self.note(deleted(session))
