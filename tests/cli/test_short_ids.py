"""Abbreviated ids: what is shown differs for any two sessions, and what is typed means one or a tree."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from orchestrator.cli.invocation import opened
from orchestrator.core.ids import SessionId, TreeId, new_session_id
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.views import ViewError
from orchestrator.views.find import SHORT, Abbreviation, short_ids
from orchestrator.wiring.open_deployment import Opened
from tests.cli.planted import plant, planted_tree
from tests.servers import RedisServer

NOW_MS = 1_790_000_000_000


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


def agents_of_one_moment(count: int) -> list[SessionId]:
    return [new_session_id(NOW_MS + at, 3, (at * 7_919 + 1) << 20 | at + 77) for at in range(count)]


def test_agents_of_one_minute_are_shown_by_ids_that_differ() -> None:
    shown = short_ids(agents_of_one_moment(200))
    assert len(set(shown.values())) == 200
    assert all(session.replace("-", "").endswith(short) for session, short in shown.items())


def test_ids_that_end_alike_are_shown_longer() -> None:
    one = SessionId("01a1f84b-eb09-7009-9fd7-ebc79e95569f")
    other = SessionId("01a1f84b-eb09-7009-9fd7-abc79e95569f")
    assert set(short_ids([one]).values()) == {"9e95569f"}
    assert {len(short) for short in short_ids([one, other]).values()} == {12}


@pytest.mark.parametrize(
    "text",
    ["01a1f84b", "01A1F84B-EB09", "01a1f84beb09", "9e95569f", " 9fd7-ebc79e95569f ", "9fd7ebc79e95569f"],
)
def test_person_may_type_the_beginning_or_the_end_with_or_without_hyphens(text: str) -> None:
    part = Abbreviation.of(text)
    assert part is not None
    assert part.means(SessionId("01a1f84b-eb09-7009-9fd7-ebc79e95569f"))


@pytest.mark.parametrize("text", ["", "01a", "----", "notanid", "0" * 33])
def test_text_that_is_no_part_of_an_id_means_none(text: str) -> None:
    assert Abbreviation.of(text) is None


async def test_abbreviation_of_a_whole_tree_means_its_root(found: Opened) -> None:
    tree = await planted_tree(found, agents_of_one_moment(4))
    beginning = tree[0][:SHORT]
    assert (await found.find(beginning)).session == tree[0]
    assert await found.find_tree(beginning) == TreeId(tree[0])
    with pytest.raises(ViewError, match="part of the ids of 4 sessions"):
        await found.find_one(beginning)


async def test_abbreviation_of_agents_alone_means_their_tree_and_none_of_them(found: Opened) -> None:
    root = new_session_id(NOW_MS - 600_000, 3, 5)
    agents = agents_of_one_moment(3)
    await planted_tree(found, [root, *agents])
    assert await found.find_tree(agents[0][:SHORT]) == TreeId(root)
    with pytest.raises(ViewError, match="part of the ids of 3 sessions"):
        await found.find(agents[0][:SHORT])


async def test_abbreviation_of_two_trees_is_told_with_the_candidates(found: Opened) -> None:
    one, other = agents_of_one_moment(2)
    await planted_tree(found, [one])
    await planted_tree(found, [other])
    with pytest.raises(ViewError, match=f"{one}, {other}; give more"):
        await found.find_tree(one[:SHORT])
    assert (await found.find(one[-SHORT:])).session == one


async def test_person_who_types_too_little_is_told_how_much_is_needed(found: Opened) -> None:
    await planted_tree(found, agents_of_one_moment(1))
    with pytest.raises(ViewError, match="at least 4 digits"):
        await found.find("01a")


async def test_one_of_a_hundred_thousand_sessions_is_found_at_once(found: Opened) -> None:
    sessions = [new_session_id(NOW_MS + at, at % 16, at << 24 | at * 31) for at in range(100_000)]
    await plant(found, ((session, sessions[0]) for session in sessions[:1]))
    await listed(found, sessions)
    began = time.process_time()
    assert (await found.find(sessions[0][-12:])).session == sessions[0]
    assert time.process_time() - began < 1.0


async def listed(found: Opened, sessions: Iterable[SessionId]) -> None:
    """Only their places in the lists of sessions, of which the search must not read more."""
    keys, rows = found.broker.keys, list(sessions)
    for shard in range(16):
        of_shard = [session for session in rows if keys.shard_of(session) == shard]
        args = [part for session in of_shard for part in (1, session)]
        await found.broker.command("ZADD", keys.sessions(shard), *args)
