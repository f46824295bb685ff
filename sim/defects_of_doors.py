"""Defects of what gateways share among their clients."""

from __future__ import annotations

from typing import Any

from orchestrator.gateways.app_server import live_threads
from orchestrator.gateways.app_server.door import Conversations, Door
from orchestrator.gateways.app_server.live_threads import LiveThread, LiveThreads
from orchestrator.gateways.app_server.methods import turns
from orchestrator.gateways.app_server.outbox import Outbox
from orchestrator.gateways.app_server.write_requests import Asks
from orchestrator.gateways.client import Client
from sim.mutant import Mutant, swapped, text


def _first_alone(real: Any) -> Any:
    """Puts a request to nobody but the connection that heard its thread first."""

    def is_put(self: Door, session: Any, opened: Any) -> bool:
        found = self.subscriptions.get(session)
        return real(self, session, opened) and found is not None and found.live.listeners[0] is self

    return is_put


DEFECTS = (
    Mutant(
        "first client alone is asked",
        "a request is put to the connection that heard its thread first, and to no other",
        swapped(Door, "_is_put", _first_alone),
        "doors",
    ),
    Mutant(
        "whoever hears is asked",
        "a request is put to clients that may not answer it",
        text(Door, "_is_put", "found.asks and self.principal.may(Scope.APPROVE)", "found.asks"),
        "doors",
    ),
    Mutant(
        "asked again on coming back",
        "who resumes a thread that it hears is asked again about what is open",
        text(Asks, "open", "if any(one.key == asked.key for one in self._open.values()):", "if False:"),
        "doors",
    ),
    Mutant(
        "settled and not taken back",
        "a client is not told that a request was settled by somebody else",
        swapped(Door, "_settled", lambda real: lambda self, session, ids: None),
        "doors",
    ),
    Mutant(
        "requests outlive a rewind",
        "requests that were open when Redis went back are not taken back",
        swapped(live_threads, "withdrawn", lambda real: lambda projector: ()),
        "doors",
    ),
    Mutant(
        "turns outlive a rewind",
        "what was told of a log that Redis has lost is held against the one that it has",
        text(LiveThread, "_take", "self.projector = Projector(self.session)", "pass"),
        "doors",
    ),
    Mutant(
        "gap is not told to version 1",
        "a client of version 1 is told what comes behind a gap, and not of the gap",
        text(
            Conversations,
            "hear",
            "        self._tell(told.session, event.id, event.msg)\n",
            '        if event.type != "warning":\n'
            "            self._tell(told.session, event.id, event.msg)\n",
        ),
        "doors",
    ),
    Mutant(
        "another namespace is heard",
        "a tenant that names a session of another namespace hears it",
        swapped(Client, "_sees", lambda real: lambda self, namespace: True),
        "doors",
    ),
    Mutant(
        "slow readers miss messages",
        "what does not fit a slow client's outbox is left out, and the connection goes on",
        text(
            Outbox,
            "_add",
            "if self._closed or self.overflowed.is_set():",
            "if self._closed or self._bytes > self._limit // 4:",
        ),
        "doors",
    ),
    Mutant(
        "who left is told",
        "a thread that a client has left goes on telling it",
        text(Door, "unsubscribe", "self.threads.leave(session, self)", "pass"),
        "doors",
    ),
    Mutant(
        "error leaves a subscription",
        "a client whose `thread/resume` failed hears the thread all the same",
        text(Door, "heard_if_answered", "self.unsubscribe(session)", "pass"),
        "doors",
    ),
    Mutant(
        "settled while it is resumed",
        "who resumes a thread is asked about what was settled while its log was read",
        text(
            turns,
            "_resumed",
            "door.put_requests(head.session, asks_of(door, params.approvals_reviewer))\n",
            "door.put_requests(head.session, asks_of(door, params.approvals_reviewer))\n"
            "    door.ask_again(head.session)\n    door.asks.left(head.session)\n",
        ),
        "doors",
    ),
    Mutant(
        "agents are not heard",
        "who hears a root is not told of the agents that it makes, and not asked by them",
        swapped(LiveThreads, "_born", lambda real: lambda self, parent, child, newborn: None),
        "doors",
    ),
)
