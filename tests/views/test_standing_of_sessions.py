"""The one word of a list for a session, and who has spoken in none: each fact with every other one."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from orchestrator.broker.worker_state import Serving
from orchestrator.gateways.submit import unread
from orchestrator.views.sessions import (
    nobody_spoke,
    not_taken,
    session_status,
    status_of,
    unserved,
    wants_worker,
)
from tests.views.test_threads import head

NOW_MS = 1_000_000
SERVINGS = {
    "parked": Serving(NOW_MS),
    "due": Serving(NOW_MS, due=True),
    "held": Serving(NOW_MS, NOW_MS + 1),
    "held and due": Serving(NOW_MS, NOW_MS + 1, due=True),
    "lost": Serving(NOW_MS, NOW_MS),
    "lost and due": Serving(NOW_MS, NOW_MS - 1, due=True),
}
STATUSES = (
    "idle",
    "waiting",
    "running",
    "retrying",
    "awaiting_approval",
    "awaiting_answer",
    "paused",
    "closed",
)


def expected(serving: str, status: str, facts: dict[str, bool]) -> str:
    """The first of these that is so: what blocks it, its worker, and only then its last commit."""
    for word in ("quarantined", "archived"):
        if facts[word]:
            return word
    if serving.startswith("lost"):
        return "lost"
    if serving.endswith("due"):
        return "due"
    if serving == "parked" or status not in ("idle", "waiting"):
        return status
    kept = status == "idle" and facts["processes"] and not facts["unread"]
    return "process_running" if kept else "running"


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("serving", SERVINGS)
def test_word_of_a_session_is_what_blocks_it_then_its_worker_then_its_last_commit(
    serving: str, status: str
) -> None:
    for values in product([False, True], repeat=4):
        facts = dict(zip(("quarantined", "archived", "processes", "unread"), values, strict=True))
        found = head(
            {"processes": 2} if facts["processes"] else {},
            status=status,
            quarantined=facts["quarantined"],
            archived=facts["archived"],
            sq_tip="2-0" if facts["unread"] else "1-0",
            holder="w1",
        )
        word = expected(serving, status, facts)
        assert session_status(found, SERVINGS[serving]) == word
        wants = wants_worker(found, SERVINGS[serving])
        assert bool(wants) is (word in ("due", "lost"))
        assert ("since w1 is lost" in wants) is (word == "lost")
        for standing in ("queued", "running", "ready", "failed", "canceled"):
            of_agent = word if word in ("quarantined", "archived") else standing
            if standing == "running" and word != "idle":
                of_agent = word
            assert status_of(found, SERVINGS[serving], standing) == of_agent


NEWBORN: dict[str, Any] = {"title": "", "updated_ms": 0}
SAID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "first words": ({"title": "hello"}, {}),
    "a rest": ({"updated_ms": 5}, {}),
    "its source": ({"forked_from": "s"}, {}),
    "a name": ({}, {"name": "Parser"}),
    "unread input": ({}, {"sq_tip": "2-0"}),
    "quarantine": ({}, {"quarantined": True}),
}


@pytest.mark.parametrize("about", SAID)
def test_session_was_spoken_in_as_soon_as_any_one_fact_says_so(about: str) -> None:
    meta, facts = SAID[about]
    assert nobody_spoke(head(NEWBORN))
    assert not nobody_spoke(head(NEWBORN | meta, **facts))
    # What a rest has recorded counts before what a birth has; but not before what came since.
    assert nobody_spoke(head(NEWBORN | meta | {"unspoken": True}))
    assert nobody_spoke(head(NEWBORN | {"unspoken": True}, **facts)) is (not facts)
    assert not nobody_spoke(head({"unspoken": False}))


@pytest.mark.parametrize("quarantined", [True, False])
@pytest.mark.parametrize(
    ("facts", "waits"), [({"sq_tip": "2-0"}, True), ({"sq_tip": "2-0", "holder": "w1"}, False), ({}, False)]
)
def test_who_hands_something_in_that_nobody_takes_reads_what_would_have_it_taken(
    facts: dict[str, Any], waits: bool, quarantined: bool
) -> None:
    """No worker takes a session that was set aside, however many are started."""
    one = head(quarantined=quarantined, pool="gpu", **facts)
    told = unserved(one)
    assert bool(told) is waits
    remedy = f"dendro revoke {one.session}" if quarantined else "dendro worker --pool gpu"
    assert not waits or told.endswith(remedy)
    assert unread(one) == f"handed in, and kept; {not_taken(one)}"
    assert not_taken(one).endswith(remedy)
