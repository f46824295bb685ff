"""`dendro sessions` lists trees, filtered; no figure is cut, and what is left out is said."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from orchestrator.broker.worker_state import Serving
from orchestrator.cli.cancel import _abandon, _cancel, _revoke
from orchestrator.cli.invocation import Invocation, opened
from orchestrator.cli.send import _interrupt, nothing_to_stop
from orchestrator.cli.sessions import COLUMNS, DROPPED, render
from orchestrator.core.ids import SessionId, new_session_id
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.views import ViewError
from orchestrator.views.find import addressed
from orchestrator.views.sessions import (
    Filter,
    ListedTree,
    Listing,
    listed_rows,
    session_status,
    sessions_listed,
    trees_listed,
)
from orchestrator.wiring.open_deployment import Opened
from tests.cli.planted import planted_tree
from tests.servers import RedisServer

NOW_MS = 1_790_000_000_000
ALL = Filter()


@pytest.fixture
async def found(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Opened]:
    with redis_server.client() as client:
        client.flushall()
    environ = {
        "HOME": str(tmp_path),
        "DENDRO_HOME": str(tmp_path / "own"),
        "DENDRO_REDIS_URL": redis_server.url,
    }
    async with opened(load_settings(SettingsSources(cwd=tmp_path, environ=environ))) as found:
        yield found


def ids(count: int, shard: int = 0, start: int = 0) -> list[SessionId]:
    return [new_session_id(NOW_MS + start + at, shard, (start + at + 1) * 7_919) for at in range(count)]


async def test_person_sees_a_tree_as_one_line_with_the_standing_of_its_agents(found: Opened) -> None:
    await planted_tree(found, ids(4), ["ready", "failed", "ready"])
    listing = await trees_listed(found.broker, ALL, 100, all=False)
    assert [dict(tree.agents) for tree in listing.trees] == [{"ready": 2, "failed": 1}]
    assert listing.whole


@pytest.mark.parametrize("who", [None, 0, 1, 2])
async def test_line_of_a_tree_says_that_nobody_serves_any_one_of_its_sessions(
    found: Opened, who: int | None
) -> None:
    family = await planted_tree(found, ids(3), ["ready", "ready"])
    if who is not None:
        keys = found.broker.keys
        due = keys.due(keys.shard_of(family[who]), "default")
        await found.broker.command("ZADD", due, 1, family[who])
        await found.broker.command("HSET", keys.session(family[who]), "sq", 1)
    (tree,) = (await trees_listed(found.broker, ALL, 9, all=False)).trees
    assert tree.root["nobody_serves"] == (who is not None)
    assert tree.root["session_id"] == family[0]


async def test_person_finds_trees_by_status_folder_and_text_of_their_agents_too(found: Opened) -> None:
    failing = await planted_tree(found, ids(2, 1), ["failed"], cwd="/srv/a", title="Mend the flaky test")
    named = await planted_tree(found, ids(1, 2), cwd="/srv/a/b", name="Release", updated_ms=5_000)
    await planted_tree(found, ids(1, 3), cwd="/srv/ab")

    async def roots(wanted: Filter) -> Sequence[str]:
        return [
            tree.root["tree_id"] for tree in (await trees_listed(found.broker, wanted, 9, all=False)).trees
        ]

    assert await roots(Filter(statuses=frozenset({"failed"}))) == [failing[0]]
    assert await roots(Filter(folder="/srv/a")) == [named[0], failing[0]], "the newest first"
    assert await roots(Filter(text="FLAKY")) == [failing[0]]
    assert await roots(Filter(text="release", folder="/srv/ab")) == []


@pytest.mark.parametrize("meta", [{"unspoken": True}, {"title": "", "updated_ms": 0}])
async def test_sessions_that_a_terminal_only_opened_are_listed_with_all_alone(
    found: Opened, meta: dict[str, Any]
) -> None:
    spoken = await planted_tree(found, ids(1, 1))
    opened = await planted_tree(found, ids(1, 2), **meta)
    family = await planted_tree(found, ids(2, 3), ["ready"], **meta)
    listing = await trees_listed(found.broker, ALL, 9, all=False)
    assert {tree.root["tree_id"] for tree in listing.trees} == {spoken[0], family[0]}
    assert "1 session in which nobody has said anything yet" in drawn(listing, 120)
    assert len((await trees_listed(found.broker, ALL, 9, all=True)).trees) == 3
    assert opened[0] not in drawn(listing, 120)
    for all in (False, True):
        rows = (await sessions_listed(found.broker, ALL, 9, all=all)).rows
        assert {row["session_id"] for row in rows} == {*spoken, *family, *(opened if all else ())}


@pytest.mark.parametrize("page", [1, 250])
async def test_trees_that_a_client_put_away_are_in_no_list_but_with_all(
    found: Opened, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.views.sessions.PAGE", page)
    kept = await planted_tree(found, ids(2, 1), ["ready"], updated_ms=5_000)
    away = await planted_tree(found, ids(3, 2), ["ready", "ready"])
    assert await found.broker.trees.enlist(away[0], shelve=True)
    for all in (False, True):
        listing = await trees_listed(found.broker, ALL, 9, all=all)
        shown = {*kept, *(away if all else ())}
        assert {tree.root["session_id"] for tree in listing.trees} == shown & {kept[0], away[0]}
        assert ("1 tree put away (archived) by a client: --all shows" in drawn(listing, 120)) is not all
        marked = [line for line in drawn(listing, 160).splitlines() if line.endswith("(archived)")]
        assert [away[0][-4:] in line for line in marked] == [True] * all
        rows = (await sessions_listed(found.broker, ALL, 9, all=all)).rows
        assert {row["session_id"] for row in rows} == shown
        assert [row["session_id"] for row in rows if row["put_away"]] == [away[0]] * all
    for shelved, those in ((False, kept), (True, away)):
        rows = [row async for row, _ in listed_rows(found.broker, 9, shelved=shelved)]
        assert {row["session_id"] for row in rows} == {*those}
    only = await trees_listed(found.broker, Filter(text=away[0][-4:]), 9, all=False)
    assert "no session fits" not in drawn(only, 120)


@pytest.mark.parametrize(
    ("processes", "tip", "word"),
    [(1, "1-0", "process_running"), (0, "1-0", "running"), (1, "2-0", "running")],
)
async def test_idle_session_with_a_living_process_is_told_from_one_at_work(
    found: Opened, processes: int, tip: str, word: str
) -> None:
    (session,) = await planted_tree(found, ids(1), processes=processes)
    head = await found.broker.logs.head(session)
    assert head is not None
    kept = replace(head, cursor="1-0", sq_tip=tip, holder="w1")
    assert session_status(kept, Serving(now_ms=1, lease_ms=2)) == word


async def test_interrupt_of_an_idle_session_names_the_way_to_end_its_processes(found: Opened) -> None:
    (session,) = await planted_tree(found, ids(1), processes=2)
    idle = await addressed(found, session, None, certain=True)
    assert nothing_to_stop(idle).endswith("does nothing: there is nothing to interrupt"), "they went with it"
    told = nothing_to_stop(replace(idle, head=replace(idle.head, holder="w1")))
    assert "2 processes of it still running" in told
    assert f"`dendro cancel {session}` ends them" in told


async def test_program_gets_single_sessions_with_their_place_in_the_tree(found: Opened) -> None:
    await planted_tree(found, ids(3), ["running", "ready"])
    listing = await sessions_listed(found.broker, Filter(statuses=frozenset({"ready"})), 100, all=False)
    assert [(found["agent_id"], found["label"]) for found in listing.rows] == [(2, "a2")]


async def test_person_is_told_how_many_of_very_many_sessions_were_looked_at(found: Opened) -> None:
    for start in range(0, 300, 3):
        await planted_tree(found, ids(3, start % 16, start), updated_ms=10 + start)
    listing = await trees_listed(found.broker, ALL, 20, all=False)
    assert (len(listing.trees), listing.total) == (20, 300)
    assert not listing.whole
    told = drawn(listing, 200)
    assert "20 trees; looked at " in told
    assert " of 300 sessions, the newest: the others with --all or a filter" in told
    everything = await trees_listed(found.broker, ALL, 20, all=True)
    assert len(everything.trees) == 100
    assert "looked at" not in drawn(everything, 200)


@pytest.mark.parametrize("page", [1, 2, 250])
async def test_agents_of_listed_trees_are_no_others_that_a_limit_leaves_out(
    found: Opened, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.views.sessions.PAGE", page)
    await planted_tree(found, ids(1), updated_ms=1_000)
    await planted_tree(found, ids(3, 1, 1), ["ready", "ready"], updated_ms=5_000)
    await planted_tree(found, ids(2, 2, 4), ["ready"], updated_ms=9_000)
    both = await trees_listed(found.broker, ALL, 2, all=False)
    assert "looked at 5 of 6 sessions" in drawn(both, 200)
    await found.broker.command("DEL", found.broker.keys.sessions(0))
    both = await trees_listed(found.broker, ALL, 2, all=False)
    assert (len(both.trees), both.looked, both.total) == (2, 5, 5)
    assert "looked at" not in drawn(both, 200)


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 6])
@pytest.mark.parametrize("all", [True, False])
async def test_lists_have_at_most_as_many_as_are_wanted_the_newest_first_and_with_all_every_one(
    found: Opened, all: bool, limit: int
) -> None:
    roots = [(await planted_tree(found, ids(1, at, at), updated_ms=1_000 * at))[0] for at in range(1, 6)]
    newest = roots[::-1] if all else roots[::-1][:limit]
    trees = await trees_listed(found.broker, ALL, limit, all=all)
    assert [tree.root["session_id"] for tree in trees.trees] == newest
    single = await sessions_listed(found.broker, ALL, limit, all=all)
    assert [row["session_id"] for row in single.rows] == newest
    assert trees.whole is (len(newest) == 5)


@pytest.mark.parametrize("last", [0, 1, 2])
async def test_tree_is_as_old_as_the_last_change_of_any_of_its_sessions(found: Opened, last: int) -> None:
    family = await planted_tree(found, ids(3), ["ready", "ready"])
    told = {"title": "t", "cwd": "/w", "updated_ms": 9_000}
    key = found.broker.keys.session(family[last])
    await found.broker.command("HSET", key, "meta", orjson.dumps(told))
    (tree,) = (await trees_listed(found.broker, ALL, 9, all=False)).trees
    assert (tree.root["session_id"], tree.root["updated_ms"]) == (family[0], 9_000)


def _interrupts(text: str, *, tree: bool) -> Awaitable[object]:
    return _interrupt(Invocation(), (text, None), None, tree=tree)


FOR_GOOD: dict[str, Callable[[str], Awaitable[object]]] = {
    "interrupt": lambda text: _interrupts(text, tree=False),
    "interrupt --tree": lambda text: _interrupts(text, tree=True),
    "interrupt --message": lambda text: _interrupt(Invocation(), (text, None), "stop", tree=False),
    "cancel": lambda text: _cancel(Invocation(), (text, None), None, (1.0, None)),
    "revoke": lambda text: _revoke(Invocation(), text),
    "revoke --abandon-unsaved": lambda text: _abandon(Invocation(), text),
}


@pytest.mark.parametrize("command", FOR_GOOD)
async def test_part_of_the_ids_of_a_root_and_its_agent_ends_neither_and_both_are_named(
    found: Opened, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, agent = await planted_tree(found, ids(2), ["running"])
    monkeypatch.setattr(Invocation, "settings", lambda _: found.settings)
    before = [await found.broker.logs.head(one) for one in (root, agent)]
    with pytest.raises(ViewError, match=f"2 sessions: {root}, {agent}; give more of the id"):
        await FOR_GOOD[command](root[:12])
    assert [await found.broker.logs.head(one) for one in (root, agent)] == before


def listed(**more: Any) -> Listing:
    root = {
        "session_id": ids(1)[0], "tree_id": ids(1)[0], "status": "awaiting_approval", "name": None,
        "title": "Mend what is broken in the parser of the new format",
        "cwd": "/home/somebody/projects/parser",
        "model": "gpt-5-codex", "blended_total": 1_234_567, "context_left": 0.87,
        "updated_ms": NOW_MS - 60_000,
        "created_ms": 0, "holder": "host-1234-abcdef", "pool": "host:ab", "nobody_serves": False,
        "unsaved_on": None,
        "change": {"files": 9, "insertions": 1_120, "deletions": 14},
    }  # fmt: skip
    return Listing(1, 1, [ListedTree({**root, **more}, {"running": 2, "ready": 11})])


def drawn(listing: Listing, width: int, *, terminal: bool = True) -> str:
    console = Console(width=width, force_terminal=terminal, color_system=None, highlight=False)
    with console.capture() as capture:
        render(listing, console, NOW_MS)
    return capture.get()


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 100, 120, 160, 200])
def test_terminal_of_any_width_shows_figures_whole_or_not_at_all(width: int) -> None:
    head, line = drawn(listed(), width).splitlines()
    columns = head.split()
    kept = [name for name in COLUMNS if name in columns]
    assert columns == kept
    dropped = [name for name in DROPPED if name not in columns]
    assert dropped == list(DROPPED[: len(dropped)]), "in the order that the help states"
    assert ("1,234,567" in line) is ("tokens" in columns)
    assert ("13: 11 ready, 2 running" in line) is ("agents" in columns)
    assert "awaiting_approval" in line or width < 30


def test_pipe_gets_every_column_whole() -> None:
    head, line = drawn(listed(), 400, terminal=False).splitlines()
    assert tuple(head.split()) == COLUMNS
    assert "/home/somebody/projects/parser" in line
    assert "Mend what is broken in the parser of the new format" in line
    assert "+1,120 −14 in 9 files" in line


def test_list_without_a_portable_folder_has_no_column_of_changes() -> None:
    head, *_ = drawn(listed(change=None), 400, terminal=False).splitlines()
    assert tuple(head.split()) == tuple(name for name in COLUMNS if name != "change")


def test_person_reads_the_name_instead_of_the_first_words_and_no_line_of_the_models_own() -> None:
    told = drawn(listed(name="Re\nlease \x1b[31m"), 200)
    assert "Re␊lease ␛[31m" in told
    assert "Mend" not in told


def test_person_is_told_what_to_start_where_nobody_serves_a_session() -> None:
    told = drawn(listed(status="due", nobody_serves=True), 200)
    assert (
        "due or lost: no worker serves them now; start `dendro worker` on their machine (pool host:ab)"
        in told
    )


@pytest.mark.parametrize("unsaved_on", [None, "vm1"])
@pytest.mark.parametrize("nobody", [True, False])
def test_person_is_told_of_unsaved_changes_where_their_machine_is_missed_and_nowhere_else(
    nobody: bool, unsaved_on: str | None
) -> None:
    found = listed(nobody_serves=nobody, unsaved_on=unsaved_on)
    told = drawn(found, 400)
    assert ("waits for a worker on machine vm1" in told) is (nobody and unsaved_on is not None)
    assert ("no worker serves them now" in told) is nobody
    other = {**found.trees[0].root, "session_id": ids(2)[1], "nobody_serves": True, "unsaved_on": "vm2"}
    both = drawn(Listing(2, 2, [*found.trees, ListedTree({**other, "pool": "host:cd"})]), 400)
    assert both.count("waits for a worker on machine") == 1 + bool(nobody and unsaved_on)
    assert both.count("no worker serves them now") == 1 + nobody
