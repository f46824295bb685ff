"""Clients of lines: each has one session of its own or of others, and comes back behind its last event.

Their lines are numbered, and a number names an event: so a client that is told a line is told by that which
event of the session's queue it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

import orjson

from orchestrator.core.tree import ROOT
from orchestrator.gateways.bursts import NOT_ON_A_LINE
from orchestrator.gateways.client import GAP_TEXTS
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.sq_eq import STEP
from orchestrator.protocol import ops
from orchestrator.protocol.codec import encode_submission
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.submission import Submission
from orchestrator.requests import call_id_of, request_of
from sim.door_clients import ASKED_AGAIN_S, SMALL_WINDOW, WINDOW, DoorClient, Gone
from sim.doors import ASKING, ENDS, QUIET_S, Ears, Told, told_of
from sim.gateways import SimGateway, SimWire

GREETING = frozenset({"session_configured", "subagent_lifecycle", "agent_inbox", *ASKING})
NO_ENTRY = NOT_ON_A_LINE | {"request_resolved"}
DECISIONS = (ReviewDecision.APPROVED, ReviewDecision.APPROVED, ReviewDecision.DENIED, ReviewDecision.ABORT)


class LineEars(Ears):
    """The lines that one connection was told."""

    session = ""
    """Its session; empty until it knows."""
    place: tuple[int, int | None] | None = None
    """The last event of the queue that it was told, its entry too if it was; None: it was told of a gap."""
    number = greeted_at = 0
    _told_in = 0
    """How often Redis had gone back when it was told its place."""
    _last: tuple[int, Told, bool] | None = None
    """The last line of the queue, or of the gateway's own; and whether it had an id that was the client's."""
    _greeted = _gaps = False
    _since = 0
    """The entry behind which the log is told, where there was a gap."""
    _rewinds = 0

    def begins(self, session: str, before: LineEars | None) -> None:
        """`before`: the connection behind which it wants to go on; None: it leaves that to the gateway."""
        self.session, self.number = session, before.number if before is not None else 0
        self.place, self._greeted = (0, 0), not session
        self.came_s = self._doors.now_s
        self.replayed: list[Told] = []
        self.shown: dict[tuple[str, int], Mapping[str, Any]] = {}
        """Open requests, as far as it was told."""
        self._put: set[tuple[str, int]] = set()
        """Those of its greeting."""
        self.mine: set[str] = set()
        self.answered: set[str] = before.answered if before is not None else set()
        """Calls about which the client has answered itself."""
        self.place_known = before is not None
        if before is not None:
            self.place, self.shown, self._gaps = before.place, dict(before.shown), before._gaps
            self._told_in = before._told_in

    def line(self, id: str, message: Mapping[str, Any], number: int) -> None:
        """Takes in a line."""
        kind = message["type"]
        if not self.session and kind == "session_configured":
            self.session = message["session_id"]
        if not self._greeted and not id and kind in GREETING and number == (self.greeted_at or number):
            self._doors_greet(message, number)
            if kind in ASKING:
                # The queue does not keep it any more.
                self._put.add((call_id_of(message), message.get("agent_id") or ROOT))
                self._notes(kind, message)
            return
        self._greeted = True
        if kind == "warning" and message.get("message") in GAP_TEXTS.values():
            self._gap(message["message"])
            return
        told = told_of(id, message)
        names = self._doors.named(self.session, *divmod(number, STEP), told)
        last, self._last = self._last, (number, told, id in self.mine)
        if (
            kind == "error"
            and id in self.mine
            and (not names or (last != self._last and number == self.number))
        ):
            # The gateway's own word: whoever comes back behind it misses nothing, and is told nothing again.
            # It has the number of the last event: that may be an error of another client of the same name.
            if self.place is not None and number < self.number:
                self._broken("heard", self.session, f"is told {told} at {number}, behind {self.number}")
            return
        if self.place is not None:
            behind = any(self._doors.comes_behind(self.session, name, *self.place) for name in names)
            if not behind and not self._looks_like_this_branch():
                self._broken("heard", self.session, f"is told {number} {told} behind {self.place}")
            self.place, self._told_in = divmod(number, STEP), self._doors.rewinds
        elif names and (number // STEP != self.number // STEP or self._doors.is_of_queue(self.session, told)):
            # An entry that is read from the log has the number of the last event, and its own entry's.
            self._whole(divmod(number, STEP))
        else:
            self.replayed.append(told)
        self.number = number
        self._notes(kind, message)

    def _looks_like_this_branch(self) -> bool:
        """Whether its place, of a branch that Redis has lost, is one that the log has now as well.

        A number has no hash: nobody can tell that something else stood there.
        """
        if self.place is None or self._told_in == self._doors.rewinds:
            return False
        return self._doors.is_between(self.session, *self.place)

    def _doors_greet(self, message: Mapping[str, Any], number: int) -> None:
        if message["type"] == "session_configured" and self.number and number != self.number:
            self._broken("heard", self.session, f"came with {self.number}, and is greeted at {number}")
        self.greeted_at = number
        if message["type"] == "session_configured" and not self.place_known:
            self.number, self.place = number, (number // STEP, None)

    def _gap(self, text: str) -> None:
        self._doors.saw("heard")
        self._gaps = True
        if text == GAP_TEXTS["rewound"]:
            self._since, self.replayed = 0, []
            self.shown.clear()
        elif self.place is not None:
            self._since, self.replayed = self.number % STEP, []
        # A gap that is cut off while it is filled goes on behind what was told of it.
        self.place, self._rewinds = None, self._doors.rewinds

    def _whole(self, place: tuple[int, int]) -> None:
        """The first event behind a gap: the log up to there was told, entry by entry."""
        self.place, seq = place, place[1]
        if self._rewinds != self._doors.rewinds or not self._doors.known(self.session):
            return
        wanted = (self._doors.entries(self.session, self._since, last) for last in (seq - 1, seq))
        told, *most = ([one for one in each if self._counts(one)] for each in (self.replayed, *wanted))
        if told not in most:
            self._broken("heard", self.session, f"is told {told} of the log, and there is {most[1]}")

    def _counts(self, told: Told) -> bool:
        """Whether it is an entry of the log: no answer, and no error that may be the gateway's own."""
        id, kind = told[:2]
        return kind not in NO_ENTRY and not (kind == "error" and id in self.mine)

    def _notes(self, kind: str, message: Mapping[str, Any]) -> None:
        agent = message.get("agent_id") or ROOT
        if kind in ASKING:
            asked = call_id_of(message), agent
            if self._greeted and asked in self._put and asked in self.shown:
                self._broken("put", self.session, f"is asked about {asked} again, which its greeting has")
            self.shown[asked] = message
        elif kind == "request_resolved":
            self.shown.pop((call_id_of(message), agent), None)
        elif kind in ENDS:
            self.shown = {key: asked for key, asked in self.shown.items() if key[1]}

    # ── comparing ─────────────────────────────────────────────────────────────────────────────

    def knows(self, session: str, tree: str) -> bool:
        # Its gateway may wait for a Redis that takes nothing before it greets.
        greeted = self.greeted_at > 0 and self._doors.now_s - self.came_s > QUIET_S
        return greeted and self.session in (session, tree)

    def compare(self, session: str, tree: str, open_now: set[str]) -> None:
        number = ROOT if session == self.session else self._doors.agent(session)
        have = {call for call, agent in self.shown if agent == number}
        # Nobody is told that a client of lines has answered about a call of its own task.
        untold = {call for of, call in self._doors.answered_alone if of == session}
        lost, more = open_now - have, have - open_now - self.answered - untold
        if (lost or more) and not self._gaps:
            self._broken("put", session, f"is shown {sorted(have)}, and open are {sorted(open_now)}")

    def at_rest(self) -> None:
        if not self._doors.known(self.session) or self.place is None:
            return
        if self._doors.last_told(self.session) != self.place[0]:
            last = self._doors.last_told(self.session)
            self._broken("heard", self.session, f"was told up to {self.place}, and the last one is {last}")


class LineClient(DoorClient):
    """A client of lines."""

    habits: tuple[str, ...] = ("say", "say", "say", "stop", "loosen", "else")
    called = ""
    """Its name for itself, where that is not its own alone."""
    misspeaks: Random | None = None
    """Drawn from where it says what is refused at once while it reads nothing; None: it never does."""
    _misspoken = 0
    _session = ""
    _last: bytes = b""
    _last_id = ""
    _last_to: SimGateway | None = None
    _at: SimGateway | None = None
    """The submission that was sent last, which is sent again after a lost connection."""

    @property
    def is_done(self) -> bool:
        return self._is_over or (self.acts <= 0 and self.here)

    async def _dawdles(self, seconds: int) -> None:
        for second in range(seconds):
            if self.slow and self.misspeaks is not None and (not second or self.misspeaks.random() < 0.3):
                # The error waits behind what is written to the client, and is read behind all of that.
                await asyncio.sleep(self.misspeaks.random())
                self._says_nonsense()
            await super()._dawdles(1)

    def _says_nonsense(self) -> None:
        if self._wire is None or self._ears is None or not self._ears.living:
            return
        self._misspoken += 1
        id = f"{self.name}.no{self._misspoken}"
        self._line_ears.mine.add(id)
        self._doors.saw("refused_line")
        self._note("says nonsense", id)
        self._wire.write(orjson.dumps({"id": id, "op": {"type": "nonsense"}}) + b"\n")

    def _opens(self, gateway: SimGateway) -> SimWire:
        self._at = gateway
        return gateway.connect_lines(self.principal, self._lane, SMALL_WINDOW if self.slow else WINDOW)

    def _hears(self, gateway: SimGateway) -> LineEars:
        return LineEars(self._doors, f"{self.name} at {gateway.name}", self.principal)

    async def _greets(self) -> None:
        """Says who speaks and which session is meant, and waits for the first line."""
        ears, wire = self._line_ears, self._wire
        assert wire is not None
        before = self._ears_before
        if not self._session and self.shared and not (self.makes and self._rng.random() >= 0.8):
            self._session = self._rng.choice(self.shared)
        op: dict[str, Any] = {"type": "configure_session"}
        first: dict[str, Any] = {"id": f"{self.name}.first", "op": op, "auth": self.principal.token}
        first |= {"with_seq": True, "client": self.called or self.name}
        after = None
        if self._session:
            op["session_id"] = self._session
            known = before is not None and before.place is not None and before.session == self._session
            if before is not None and known and self._rng.random() < 0.7:
                first["last_event"], after = before.number, before
                self._doors.saw("went_on")
        else:
            op["cwd"] = "/sim"
            if not self.principal.may(Scope.SUBMIT):
                self._doors.saw("permitted")
        ears.begins(self._session, after)
        self._greeted = asyncio.get_running_loop().create_future()
        self._waiting[0] = "first", {}, self._greeted
        wire.write(orjson.dumps(first) + b"\n")
        self._note("begins", self._session[-4:], first.get("last_event"))
        await self._greeted
        if self._last and self._rng.random() < 0.5:
            if self._last_to is not self._at:
                self._doors.saw("said_elsewhere")
            ears.mine.add(self._last_id)
            wire.write(self._last)

    _ears_before: LineEars | None = None

    @property
    def _line_ears(self) -> LineEars:
        ears = self._ears
        assert isinstance(ears, LineEars)
        return ears

    def _ended(self) -> None:
        if isinstance(self._ears, LineEars) and self._ears.session and self._ears._greeted:
            self._ears_before = self._ears
        super()._ended()

    def _took(self, ears: Ears, data: bytes) -> None:
        assert isinstance(ears, LineEars)
        for row in data.splitlines():
            line = orjson.loads(row)
            message = line["msg"]
            ears.received(row, self._session)
            if message["type"] == "error" and "seq" not in line:
                # It cannot be served; the connection ends.
                self._note("is refused", message["message"][:80])
                if not self._doors.known(self._session) or self._session in self.foreign:
                    self._session = ""
                continue
            ears.line(line["id"], message, line["seq"])
            self._session = self._session or ears.session
            if not self._greeted.done():
                self._waiting.pop(0, None)
                self._greeted.set_result(None)
                self.here = True
            if self._session and self._session not in self.shared:
                self.shared.append(self._session)
            if message["type"] in ASKING:
                self._note("hears", ears.session[-4:], message["type"], call_id_of(message))
                self._answers_later(message)

    def _answers_later(self, message: Mapping[str, Any]) -> None:
        rng, wire = self._rng, self._wire
        if not self.principal.may(Scope.APPROVE) and rng.random() < 0.5:
            return
        for _ in range(rng.choice(self.replies or (0, 0, 0, 1, 1, 2))):
            op = request_of(message).decided(rng.choice(DECISIONS))
            after = rng.choice(self.waits_s) * rng.random()
            self._site.loop.on(self._lane, self._answers, wire, op, after=after)

    def _answers(self, wire: SimWire, op: Any) -> None:
        if wire is self._wire and self._ears is not None and self._ears.living:
            if not self.principal.may(Scope.APPROVE):
                self._doors.saw("permitted")
            self._line_ears.answered.add(op.id)
            self._doors.answered_alone.add((self._session, op.id))
            self._sends(op)

    def _sends(self, op: Any) -> None:
        if self._wire is None or self._ears is None or not self._ears.living:
            raise Gone
        self._sent += 1
        # Turns are called by what began them: those of two clients need names of their own.
        whose = self.name if isinstance(op, ops.UserInput) else self.called or self.name
        id = f"{whose}.{self._sent}"
        self._line_ears.mine.add(id)
        self._note("submits", self._session[-4:], id, op.type)
        self._last_id, self._last_to = id, self._at
        if self.called:
            self._doors.called(self._session, id, self.principal)
        self._last = encode_submission(Submission(SubmissionId(id), op)) + b"\n"
        self._wire.write(self._last)

    async def _resumes(self, session: str) -> None:
        """Has one session alone."""

    async def _act(self) -> None:
        rng = self._rng
        if not self._session:
            await asyncio.sleep(ASKED_AGAIN_S)
            return
        match rng.choice(self.habits):
            case "say":
                if not self.principal.may(Scope.SUBMIT):
                    self._doors.saw("permitted")
                said = [{"type": "text", "text": f"words {self.name}.{self._sent}"}]
                self._sends(ops.UserInput.model_validate({"items": said}))
            case "write":
                agent = 1 if self.called else rng.choice((1, 1, 2))
                self._sends(ops.MessageAgent(agent_id=agent, text=f"word {self.name}.{self._sent}"))
            case "stop":
                self._sends(ops.Interrupt())
            case "loosen":
                self._sends(ops.OverrideTurnContext.model_validate({"approval_policy": "never"}))
            case "else" if self.foreign and rng.random() < 0.5:
                self._doors.saw("apart")
                self.leaves()
                self._session, self._last = rng.choice(self.foreign), b""
                raise Gone
            case "else" if rng.random() < 0.3:
                self.leaves()
                self._session, self._last = "", b""
                raise Gone
            case _:
                pass

    def _answered(self, ears: Ears, method: str, params: Mapping[str, Any], result: Any) -> None:
        """Asks for nothing by name."""

    def _told(self, ears: Ears, method: str, params: Mapping[str, Any]) -> None:
        """Is told lines."""

    def _asked(self, ears: Ears, id: Any, params: Mapping[str, Any]) -> None:
        """Is told lines."""
