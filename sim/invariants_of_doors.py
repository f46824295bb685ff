"""Rules of what clients of gateways are told."""

from __future__ import annotations

from sim.rule import Case, Rule

DOOR_RULES = {
    "heard": Rule(
        (
            "A client of a gateway is told each turn, item and event of a session that it hears once, in "
            "order and of one branch; where events are missing, or Redis went back, it is told so first. "
            "Pieces of a text come once, and who hears a root hears an agent of its that begins to work."
        ),
        Case("a client of a gateway was told of a gap"),
    ),
    "put": Rule(
        (
            "A request is put to every client that hears its session and may answer, but for one that leaves"
            " that to a model, until it is settled, and to nobody afterwards."
        ),
        Case("a request was open, at a moment of quiet, that several clients could answer"),
    ),
    "apart": Rule(
        (
            "No client of a namespace is told of a session of another one, or by Dendro of a path of the "
            "machine."
        ),
        Case("a client named a session of another namespace"),
    ),
    "delivered": Rule(
        "An answer that a client gives to an open request is handed to the session that asked, as its own.",
        Case("an answer of a client of a gateway was handed in"),
    ),
    "dialect": Rule(
        (
            "A client whose first message says that it is of JSON-RPC 2.0 is told that in every message, "
            "and no other client is."
        ),
        Case("a client that says so was told a piece of a text"),
    ),
    "permitted": Rule(
        (
            "What a session is given comes from one whose token counts, is of its namespace, and holds the "
            "right to it; a client whose token was revoked is told nothing more."
        ),
        Case("a client tried what its token does not permit, or its token was revoked"),
    ),
    "by_person": Rule(
        (
            "A submission counts as one that was sent again only where the same person sent it before: two "
            "people of a namespace who call their clients and their messages alike are two."
        ),
        Case("two people handed in submissions to a session under one name and one id"),
    ),
}
DOOR_CASES = {
    "said_elsewhere": Case("a client of lines sent its words again to another gateway than before"),
    "went_on": Case("a client of lines went on behind its last event"),
    "refused_line": Case("a client of lines that read nothing said what is refused at once"),
    "answer_unwritten": Case("a client of a gateway answered when Redis had no memory"),
    "same_ids": Case("two sessions of a tree asked about calls of the same id at once"),
    "dropped": Case("a client of a gateway was dropped, because it did not read"),
    "gateway_lost": Case("a gateway died, and another one came"),
}
