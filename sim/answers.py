"""Answers of people, and the questions that they were given to: an answer is younger than its question.

A call may be asked about twice, first as it is and then without its sandbox. Whoever answers by the call's id
means the question that was there; so the queue's order is compared, and nothing that the product keeps of it.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Mapping
from hashlib import sha256
from typing import Any

import orjson

from orchestrator.core.calls import ANSWERABLE
from orchestrator.requests import call_id_of
from orchestrator.rollouts.signed_notes import REQUESTS
from sim.observer import Observer
from sim.seen import Seen

KNOWN = "ada+00000000"
"""The key that workers know; a signature of it is the digest of what it is under."""
RECENT_MS = 600_000


def signature_under(text: str) -> bytes:
    return sha256(f"{KNOWN} signs {text}".encode()).digest()


def is_signed(key: str, signature: bytes, message: bytes) -> bool | None:
    """The check of workers; None for another key."""
    return signature == signature_under(message.decode()) if key == KNOWN else None


class Answers:
    """The rule `asked_first`, for a session's own questions."""

    def __init__(self, watch: Observer) -> None:
        self._watch = watch
        self._asked: dict[tuple[str, str], int] = {}
        """By session and call: the end of its queue when it was asked about last."""
        self.without: Container[str] = ()
        """Those whose clients do not say what they had before them."""
        self.signed = False
        """Whether approvals have to be signed."""
        self._signatures: dict[str, tuple[str, str, int]] = {}
        """By signature: the session, the call, and the entry that it has led to."""
        self._requests: dict[tuple[str, str], str] = {}
        """By session and call: the digest of the last request to a person, of the bytes in the log."""

    def went_back(self) -> None:
        """Forgets when questions were asked: that is unknown for logs that are read anew.

        A signature whose decision was lost may decide again: its answer can still be in the queue. What logs
        keep of decisions is noted as they are read anew.
        """
        self._asked.clear()
        self._signatures.clear()

    def _requested(self, session: str, seen: Seen, id: str) -> None:
        """Keeps the digest of a request, whose event stands a few entries before its fact."""
        for _, fields in reversed(seen.stored[-8:]):
            line = fields[b"p"]
            told = orjson.loads(line)
            asks = told["type"] == "event_msg" and told["payload"]["type"] in REQUESTS
            if asks and call_id_of(told["payload"]) == id:
                self._requests[session, id] = sha256(line[40:]).hexdigest()
                return
        self._requests.pop((session, id), None)

    def _shown(self, session: str, fact: Mapping[str, Any]) -> None:
        """The rule `answer_shown`: who decides here says what they had before them, and the log keeps it."""
        if fact.get("digest") or fact.get("secret") or fact.get("surface", "sim") != "sim":
            return
        if "shown" not in fact and fact["who"] in self.without:
            return
        self._watch.reach.saw("answer_shown")
        if fact.get("shown") not in (f"sim {fact['call_id']}", f"sim {fact['turn']}"):
            self._watch.broken("answer_shown", f"{session}: {fact} does not keep what was shown of it")

    def _signed(self, session: str, seen: Seen, fact: Mapping[str, Any]) -> None:
        """The rule `answer_signed`: a decision that counts bears a fresh signature under just that, once."""
        asked = self._requests.get((session, fact["call_id"]))
        if not self.signed or asked is None:
            return
        digest = sha256(str(fact.get("shown", "")).encode()).hexdigest()
        about = ("dendro-answer/2", session, fact["turn"], fact["call_id"], asked, fact["decision"])
        text = "\n".join((*about, str(fact.get("digest", "")), str(fact["answered_ms"]), digest, ""))
        given, place = str(fact.get("sig", "")), (session, fact["call_id"], seen.seq)
        if self._watch.reads_anew:
            self._signatures[given] = place
            return
        self._watch.reach.saw("answer_signed")
        if fact.get("key") != KNOWN or base64.b64decode(given) != signature_under(text):
            self._watch.broken("answer_signed", f"{session}: {fact} is under no signature that it needs")
        elif self._signatures.setdefault(given, place) != place:
            self._watch.broken("answer_signed", f"{session}: {fact} is decided by a signature of before")

    def entry(self, session: str, seen: Seen, fact: Mapping[str, Any]) -> None:
        """A fact of a session's log, whose queue was read to its end before that was written."""
        persons = fact["kind"] == "answer" and "agent_id" not in fact and fact["who"] != "timer"
        if fact["kind"] == "elicitation":
            self._requested(session, seen, fact["id"])
        if fact["kind"] == "call" and fact["phase"] in ANSWERABLE:
            self._requested(session, seen, fact["call_id"])
        if self._watch.reads_anew:
            if persons:
                self._signed(session, seen, fact)
            return
        if fact["kind"] == "call" and fact["phase"] in ANSWERABLE:
            place = session, fact["call_id"]
            if place in self._asked:
                self._watch.reach.saw("asked_first")
            self._asked[place] = seen.tip
        elif persons:
            self._shown(session, fact)
            self._signed(session, seen, fact)
            self._answered(session, seen, fact)

    def _answered(self, session: str, seen: Seen, fact: Mapping[str, Any]) -> None:
        asked = self._asked.get((session, fact["call_id"]))
        if asked is None or seen.state.facts.agent_id:
            return
        meant = (fact["call_id"], fact["turn"])
        if not any(given.about in meant and given.n > asked for given in seen.given):
            self._watch.broken(
                "asked_first", f"{session}: {fact['call_id']} is {fact['decision']} by an earlier answer"
            )
