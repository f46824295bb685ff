"""Session ids: UUIDv7s that name their shard."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.ids import (
    MAX_SHARDS,
    InvalidSessionId,
    created_ms,
    new_session_id,
    parse_session_id,
    shard_of,
)

MILLISECONDS = st.integers(0, (1 << 48) - 1)
SHARDS = st.integers(0, MAX_SHARDS - 1)
RANDOM = st.integers(0, (1 << 62) - 1)


@given(MILLISECONDS, SHARDS, RANDOM)
def test_id_tells_its_shard_and_its_millisecond_and_is_a_uuid_7(ms: int, shard: int, random_62: int) -> None:
    session = new_session_id(ms, shard, random_62)
    assert (shard_of(session, MAX_SHARDS), created_ms(session)) == (shard, ms)
    as_uuid = uuid.UUID(session)
    assert (as_uuid.version, as_uuid.variant, str(as_uuid)) == (7, uuid.RFC_4122, session)
    assert parse_session_id(session) == session


@given(MILLISECONDS, SHARDS, st.lists(RANDOM, min_size=2, max_size=5, unique=True))
def test_randomness_alone_tells_sessions_of_one_millisecond_apart(
    ms: int, shard: int, randoms: list[int]
) -> None:
    assert len({new_session_id(ms, shard, random_62) for random_62 in randoms}) == len(randoms)


@given(MILLISECONDS, MILLISECONDS, SHARDS, RANDOM)
def test_ids_of_one_shard_sort_by_time(early: int, late: int, shard: int, random_62: int) -> None:
    early, late = sorted((early, late))
    if early < late:
        assert new_session_id(early, shard, random_62) < new_session_id(late, shard, 0)


@given(MILLISECONDS, SHARDS, RANDOM)
def test_client_may_write_an_id_in_capitals_and_spaces_around(ms: int, shard: int, random_62: int) -> None:
    session = new_session_id(ms, shard, random_62)
    assert parse_session_id(f" {session.upper()}\n") == session


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "01996720-4a00-4000-8000-000000000001",
        "01996720-4a00-7000-c000-000000000001",
        "01996720-4a00-7000-0000-000000000001",
        "019967204a0070008000000000000001",
        "01996720-4a00-7000-8000-00000000000g",
        "01996720-4a00-7000-8000-0000000000011",
        "{01996720-4a00-7000-8000-000000000001}",
        "٠1996720-4a00-7000-8000-000000000001",
    ],
)
def test_anything_but_a_uuid_7_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(InvalidSessionId, match="UUIDv7"):
        parse_session_id(text)


@given(st.text(max_size=40))
def test_no_text_breaks_the_check(text: str) -> None:
    try:
        session = parse_session_id(text)
    except InvalidSessionId:
        return
    assert uuid.UUID(session).version == 7


def test_session_of_a_shard_that_does_not_exist_is_refused() -> None:
    session = new_session_id(1, 16, 1)
    with pytest.raises(InvalidSessionId, match="shard 16"):
        shard_of(session, 16)


@pytest.mark.parametrize("shard", [-1, MAX_SHARDS])
def test_shard_that_does_not_fit_is_refused(shard: int) -> None:
    with pytest.raises(ValueError, match="12 bits"):
        new_session_id(1, shard, 1)
