"""Pages of turns and items: no gap, no repeat, from both ends, and places that another log does not have."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.views.thread_log import ThreadLog
from orchestrator.views.thread_pages import (
    Asked,
    BadCursor,
    Cursor,
    Direction,
    Kind,
    end_of,
    items_page,
    turns_page,
)
from tests.views.test_thread_log import Logs, event, fact, log_of, turn
from tests.views.test_threads import CHILD, ROOT


def logs_of(turns: int) -> Logs:
    logs = Logs()
    logs.add(ROOT, [line for n in range(turns) for line in turn(f"t{n}", "go")])
    return logs


async def all_pages(
    log: ThreadLog, kind: Kind, direction: Direction, limit: int, cursor: Cursor | None = None
) -> list[list[Any]]:
    """Every page from a place on, each read with the place that the one before it answered."""
    pages: list[list[Any]] = []
    while True:
        asked = Asked(direction, limit, None if cursor is None else Cursor.of(str(cursor), kind))
        if kind == "turns":
            turns = await turns_page(log, asked)
            pages.append([one.id for one in turns.turns])
            cursor = turns.next
        else:
            items = await items_page(log, asked)
            pages.append([(id, item.id) for id, item in items.items])
            cursor = items.next
        if cursor is None:
            return pages
        assert len(pages) < 200, "a page that leads to itself"


def joined(pages: list[list[Any]]) -> list[Any]:
    return [one for page in pages for one in page]


@given(st.integers(0, 9), st.integers(1, 7), st.sampled_from(["turns", "items"]))
async def test_pages_of_every_size_have_everything_once_from_both_ends(
    turns: int, limit: int, kind: Kind
) -> None:
    log = await log_of(logs_of(turns) if turns else empty())
    newest = joined(await all_pages(log, kind, "desc", limit))
    oldest = joined(await all_pages(log, kind, "asc", limit))
    assert newest == oldest[::-1]
    assert len(set(oldest)) == len(oldest) == turns * (1 if kind == "turns" else 2)


def empty() -> Logs:
    logs = Logs()
    logs.add(ROOT, [event("session_configured")])
    return logs


@given(st.integers(1, 6), st.integers(1, 5), st.sampled_from(["turns", "items"]))
async def test_place_back_begins_with_the_first_of_its_page(turns: int, limit: int, kind: Kind) -> None:
    log = await log_of(logs_of(turns))
    for direction, other in (("desc", "asc"), ("asc", "desc")):
        one_way = joined(await all_pages(log, kind, cast(Direction, direction), 99))
        asked = Asked(cast(Direction, direction), limit)
        page: Any = await (turns_page(log, asked) if kind == "turns" else items_page(log, asked))
        back = joined(await all_pages(log, kind, cast(Direction, other), 99, page.back))
        assert back == one_way[:1]


def forked(own: int, inherited: int) -> Logs:
    """A thread that was forked from another one, which has gone on since."""
    logs = Logs()
    told = [line for n in range(inherited) for line in turn(f"t{n}", "go")]
    logs.add(CHILD, [event("session_configured"), *told, *turn("later", "go")])
    at = {"session": CHILD, "seq": 1 + len(told), "chain": logs.logs[CHILD][len(told)].chain.hex()}
    opening = [fact("configured"), fact("forked", parent=at, content="[]")]
    mine = [line for n in range(inherited, inherited + own) for line in turn(f"t{n}", "go")]
    logs.add(ROOT, [*opening, *mine], meta={"forked_from": "x"})
    return logs


@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4), st.sampled_from(["turns", "items"]))
async def test_pages_of_a_fork_have_its_sources_turns_and_its_own_and_each_place_back_the_same_way(
    own: int, inherited: int, limit: int, kind: Kind
) -> None:
    log = await log_of(forked(own, inherited))
    turns = [f"t{n}" for n in range(own + inherited)]
    oldest = joined(await all_pages(log, kind, "asc", 99))
    assert [one if kind == "turns" else one[0] for one in oldest] == (
        turns if kind == "turns" else [id for id in turns for _ in range(2)]
    )
    ways: tuple[tuple[Direction, Direction], ...] = (("asc", "desc"), ("desc", "asc"))
    for direction, other in ways:
        expected = oldest if direction == "asc" else oldest[::-1]
        assert joined(await all_pages(log, kind, direction, limit)) == expected
        cursor: Cursor | None = None
        seen = 0
        while seen < len(expected):
            asked = Asked(direction, limit, cursor)
            page: Any = await (turns_page(log, asked) if kind == "turns" else items_page(log, asked))
            back = joined(await all_pages(log, kind, other, 99, page.back))
            assert back == expected[: seen + 1][::-1]
            seen, cursor = seen + min(limit, len(expected) - seen), page.next
        assert cursor is None


async def test_items_of_one_turn_cost_what_comes_up_to_it_and_not_the_log() -> None:
    logs = logs_of(400)
    log = await log_of(logs)
    assert [id for id, _ in (await items_page(log, Asked("desc", 9), "t398")).items] == ["t398"] * 2
    assert logs.read < 300


async def test_place_at_the_end_of_a_log_comes_before_its_newest_turn_and_item() -> None:
    logs = logs_of(3)
    log = await log_of(logs)
    found = logs.heads[ROOT]
    turns = await turns_page(log, Asked("desc", 2, end_of(found, "turns")))
    assert [one.id for one in turns.turns] == ["t2", "t1"]
    items = await items_page(log, Asked("desc", 3, end_of(found, "items")))
    assert [id for id, _ in items.items] == ["t2", "t2", "t1"]


async def test_place_holds_while_the_thread_goes_on() -> None:
    logs = logs_of(4)
    first = await turns_page(await log_of(logs), Asked("desc", 2))
    logs.add(ROOT, [line for n in range(6) for line in turn(f"t{n}", "go")])
    rest = await turns_page(await log_of(logs), Asked("desc", 9, first.next))
    assert [one.id for one in rest.turns] == ["t1", "t0"]


async def test_items_of_one_turn_are_read_a_page_at_a_time() -> None:
    log = await log_of(logs_of(3))
    first = await items_page(log, Asked("asc", 1), "t1")
    rest = await items_page(log, Asked("asc", 9, first.next), "t1")
    assert [id for id, _ in (*first.items, *rest.items)] == ["t1", "t1"]
    assert (await items_page(log, Asked("asc", 9), "t9")).items == ()


async def test_place_of_a_log_that_was_put_back_is_refused() -> None:
    logs = logs_of(4)
    page = await turns_page(await log_of(logs), Asked("desc", 2))
    logs.add(ROOT, turn("t0", "go"))
    with pytest.raises(BadCursor, match="put back"):
        await turns_page(await log_of(logs), Asked("desc", 2, page.next))
    other = [line for n in range(4) for line in turn(f"o{n}", "go")]
    logs.add(CHILD, other)
    assert page.next is not None
    forged = Cursor("turns", "before", 0, page.next.seq, "deadbeef")
    with pytest.raises(BadCursor):
        await turns_page(await log_of(logs, CHILD), Asked("desc", 2, forged))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "é",
        "AAAA",
        "dDwuLTEuMS5hLjA=",
        "x" * 9_999,
        str(Cursor("items", "before", 0, 1, "a", 0)),
        *(str(Cursor("turns", "before", *at)) for at in ((-1, 1, "a", 0), (0, -1, "a", 0), (0, 1, "a", -1))),
    ],
)
def test_text_that_is_no_place_of_turns_is_refused(text: str) -> None:
    with pytest.raises(BadCursor):
        Cursor.of(text, "turns")


async def test_leg_and_entry_beyond_the_log_are_refused() -> None:
    log = await log_of(logs_of(1))
    for leg, seq in ((7, 1), (0, 1 << 60), (0, 0)):
        with pytest.raises(BadCursor):
            await turns_page(log, Asked("desc", 1, Cursor("turns", "before", leg, seq, "a")))
