"""Defects of meaning in gateways: of requests, places, permissions, and what several clients share."""

from __future__ import annotations

from typing import Any

from orchestrator.broker import follow as follow_module
from orchestrator.broker.follow import EqCursor
from orchestrator.broker.logs import SharedReads
from orchestrator.gateways import permissions, sq_eq
from orchestrator.gateways import sq_eq as lines_door
from orchestrator.gateways.app_server.client_connection import Connection
from orchestrator.gateways.app_server.door import Conversations, Door
from orchestrator.gateways.app_server.live_threads import LiveThread
from orchestrator.gateways.app_server.outbox import Outbox
from orchestrator.gateways.app_server.write_requests import Asks
from orchestrator.gateways.bursts import Burst
from orchestrator.gateways.client import Client
from orchestrator.gateways.permissions import Permissions
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.resume import Greeting
from orchestrator.gateways.sq_eq import SqEqDoor
from orchestrator.gateways.wires.authentication import TokenWatch
from orchestrator.protocol import ops
from sim.mutant import Mutant, swapped, text


def _submitters_answer() -> None:
    """Lets whoever may speak to a session approve what it asks."""
    scopes: Any = permissions.SCOPES
    scopes[ops.ExecApproval] = scopes[ops.PatchApproval] = Scope.SUBMIT


def _from_the_end(real: Any) -> Any:
    """Places a client that resumes at the end, whatever is open."""

    async def greeting(found: Any, head: Any, history: Any) -> Any:
        told = await real(found, head, history)
        return Greeting(told.events, EqCursor.at(head))

    return greeting


def _doors(name: str, wrong: str, plant: Any, test: str = "") -> Mutant:
    return Mutant(name, wrong, plant, "doors", test)


def _crowds(name: str, wrong: str, plant: Any, test: str = "") -> Mutant:
    return Mutant(name, wrong, plant, "crowds", test)


DEFECTS = (
    Mutant(
        "two people of one name are one",
        "clients of two people of a namespace that call themselves alike are one client",
        text(
            lines_door, "_client_id", "principal.namespace, principal.name, name", "principal.namespace, name"
        ),
        "crowds",
    ),
    Mutant(
        "pieces of text without the version",
        "a client of JSON-RPC 2.0 is told pieces of a text that are sent together without the member",
        text(
            Outbox,
            "_take",
            "return versioned(data) if self.versioned else data",
            "return versioned(data) if self.versioned and waiting.data else data",
        ),
        "doors",
    ),
    _doors(
        "settled in another thread",
        "a request that is settled in one thread takes back another thread's of the same call id",
        text(Asks, "resolved", "one.session == session and change.item", "change.item"),
    ),
    _crowds(
        "settled for another agent",
        "at a client of version 1 a request that is settled takes back those of other agents of the same id",
        text(
            Conversations,
            "_settled",
            "meant = (session, _name(message))\n"
            "    self._forget(lambda asked: (asked.session, asked.name) == meant)",
            "meant = (session, _name(message)[0])\n"
            "    self._forget(lambda asked: (asked.session, asked.name[0]) == meant)",
        ),
    ),
    _crowds(
        "agents' requests end with the root's turn",
        "a client of version 1 that answers an agent behind the end of its root's turn is not heard",
        text(
            Conversations,
            "hear",
            "asked.session == told.session and not asked.agent",
            "asked.session == told.session",
        ),
    ),
    _doors(
        "asked before, and settled meanwhile",
        "a new listener of version 1 is asked about what was told, or settled, while it was added",
        text(Conversations, "listen", "if _name(opened.event) not in told:", "if True:"),
        test="tests/gateways/test_live_threads.py"
        "::test_listener_of_version_1_is_asked_once_of_what_was_told_or_settled_while_it_was_added",
    ),
    _doors(
        "leaving one thread forgets all requests",
        "a client that leaves a thread is not told any more that requests of other threads are settled",
        text(Asks, "left", "one.session == session", "True"),
    ),
    _doors(
        "leaving one thread drops what all tell",
        "what waits behind the answer to `thread/unsubscribe` is dropped, whichever thread tells it",
        text(Door, "drop_held", "_session_of(each) not in gone", "False"),
    ),
    _doors(
        "told before the answer",
        "what a thread tells while it is resumed goes out before the answer",
        text(Connection, "_request", "with self.door.response_first():", "if True:"),
    ),
    _crowds(
        "agents at rest stay unheard",
        "who resumes a root does not hear an agent that was at rest then and works again",
        text(LiveThread, "_of_agent", "self._born(self, SessionId(id), False)", "pass"),
    ),
    _doors(
        "followed from a later head",
        "a thread is read up to one head, and followed from another one, which is read behind that",
        text(
            LiveThread,
            "read",
            "head.seq, EqCursor.at(head)",
            "head.seq, EqCursor.at(await self.client.head(self.session) or head)",
        ),
        test="tests/gateways/test_live_threads.py"
        "::test_thread_is_followed_from_the_very_event_up_to_which_its_log_was_read",
    ),
    _doors(
        "followed from an earlier event",
        "a thread that was read up to its head is told its last event once more",
        text(
            LiveThread,
            "read",
            "head.seq, EqCursor.at(head)",
            "head.seq, EqCursor(max(0, head.eq_n - 1), head.seq, EqCursor.at(head).hash8)",
        ),
        test="tests/gateways/test_live_threads.py"
        "::test_thread_is_followed_from_the_very_event_up_to_which_its_log_was_read",
    ),
    _doors(
        "reads shared across branches",
        "followers share a read by the number of their last event, whatever event it is",
        text(SharedReads, "wait_behind", '("behind", session, at)', '("behind", session, at.n)'),
        test="tests/broker/test_shared_reads.py::test_followers_at_one_number_of_two_branches_share_no_read",
    ),
    _doors(
        "head behind the log",
        "who was told of a gap goes on from a head that is read when the log was read",
        text(
            follow_module,
            "follow",
            "at = EqCursor.at(head)",
            "at = EqCursor.at(await _head(reader, session))",
        ),
    ),
    _doors(
        "place's number given away meanwhile",
        "who looks for a gap looks at its place before the head, and at the next event behind it",
        text(
            follow_module,
            "_gap_at",
            "any(event.n == at.n and event.seq > at.seq for event in kept)",
            "any(event.n == at.n and event.seq > at.seq for event in at_place)",
        ),
        test="tests/gateways/test_client_behind_a_gap.py"
        "::test_client_whose_last_events_number_is_given_anew_while_it_looks_is_told_of_a_gap",
    ),
    _doors(
        "log is not owed after a failure",
        "who was told that Redis went back gets no log if the connection is lost just then",
        text(Client, "bursts", "at = NOWHERE", "pass"),
        test="tests/gateways/test_client_behind_a_gap.py"
        "::test_client_that_was_told_that_redis_went_back_gets_the_log_also_after_a_failure",
    ),
    _doors(
        "gap is filled anew after a cut",
        "who is cut off while the log of a gap is read is told its entries again from the begin of the gap",
        text(Client, "bursts", "CaughtUp | Replayed) else at", "CaughtUp) else at"),
        test="tests/gateways/test_client_behind_a_gap.py"
        "::test_client_that_is_cut_off_while_a_gap_is_filled_is_told_no_entry_twice",
    ),
    _doors(
        "lines come back one event late",
        "a client of lines that comes back behind its last event does not get the one that follows",
        text(
            sq_eq,
            "cursor_of",
            "return EqCursor(n, seq, kept[0].hash8)",
            "return EqCursor(n + 1, seq, kept[0].hash8)",
        ),
    ),
    _doors(
        "lines come back to a number alone",
        "a client of lines that comes back is placed by its number, whatever event has it by now",
        text(sq_eq, "cursor_of", "(kept[0].n, kept[0].seq) == (n, seq)", "kept[0].n == n"),
        test="tests/gateways/test_client_behind_a_gap.py"
        "::test_number_that_another_event_has_by_now_means_the_clients_entry_and_not_that_event",
    ),
    _doors(
        "open requests are not shown again",
        "a client of lines that resumes a session is not shown what is open in it",
        swapped(lines_door, "greeting", _from_the_end),
    ),
    _doors(
        "numbers of a burst's first event",
        "a line that comes behind several at once has the number of the first of them",
        text(Burst, "number", "numbers(self.events[-1], number)", "numbers(self.events[0], number)"),
    ),
    _doors(
        "submitters approve",
        "a token that may speak to a session may approve what it asks",
        _submitters_answer,
    ),
    _doors(
        "submitters loosen",
        "a token that may speak to a session may set a policy under which nobody is asked",
        text(Permissions, "check", "self.check_policies(now.changed(op), now)", "pass"),
    ),
    _doors(
        "one connection alone is ended",
        "of the connections of a token that is revoked the first one alone is ended",
        text(
            TokenWatch,
            "look",
            "            task.cancel()\n",
            "            task.cancel()\n            break\n",
        ),
        test="tests/gateways/wires/test_listeners.py"
        "::test_every_connection_whose_token_is_revoked_ends_with_1008_and_no_other",
    ),
    _doors(
        "lines outlive their token",
        "a connection of lines goes on when its token is revoked",
        text(
            SqEqDoor,
            "serve",
            "await self._watch.serve(principal, self._session(stream, rest, first, principal))",
            "await self._session(stream, rest, first, principal)",
        ),
    ),
    _crowds(
        "answered by an agent of the same id",
        "an answer of a client of version 1 to an agent goes to the root's call of the same id",
        text(
            Conversations,
            "answered",
            "op = found.request.decided(",
            "op = found.request.in_own_session().decided(",
        ),
    ),
)
