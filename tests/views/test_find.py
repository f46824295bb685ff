"""Which session a person's text means, among roots and agents that begin and end alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.views import ViewError
from orchestrator.views.find import (
    CANDIDATES_SHOWN,
    LEAST,
    Abbreviation,
    addressed,
    chosen,
    find,
    find_one,
    find_tree,
)


def id_of(begin: str, end: str) -> SessionId:
    return SessionId(f"{begin}-c5d0-7001-97bc-c80be6{end}")


ROOT, AGENT = id_of("01a1f8a1", "000001"), id_of("01a1f8a1", "0000a1")
OTHER = id_of("01a1f8a2", "0000b1")
TREES = {ROOT: ROOT, AGENT: ROOT, OTHER: OTHER}


class Found:
    """The sessions of a deployment."""

    def __init__(self) -> None:
        self.broker = SimpleNamespace(logs=self)

    async def heads(self, sessions: Sequence[SessionId]) -> tuple[Any, ...]:
        return tuple(SimpleNamespace(session=one, tree=TREES[one]) for one in sessions if one in TREES)

    async def session_ids(self) -> AsyncIterator[list[SessionId]]:
        yield list(TREES)


@pytest.mark.parametrize(
    ("text", "session", "one", "tree"),
    [
        (ROOT, ROOT, ROOT, ROOT),
        ("01a1f8a1", ROOT, None, ROOT),
        ("0000a1", AGENT, AGENT, ROOT),
        ("01a1f8a2", OTHER, OTHER, OTHER),
        ("01a1", None, None, None),
        ("01a", None, None, None),
        ("ffff", None, None, None),
    ],
)
async def test_text_means_one_session_or_the_root_of_a_tree_and_where_nothing_can_be_undone_one_alone(
    text: str, session: SessionId | None, one: SessionId | None, tree: SessionId | None
) -> None:
    async def meant(look: Any) -> Any:
        try:
            return (await look).session
        except ViewError:
            return None

    found = cast(Any, Found())
    assert await meant(find(found, text)) == session
    assert await meant(find_one(found, text)) == one
    assert await meant(addressed(found, text, None)) == session
    assert await meant(addressed(found, text, None, certain=True)) == one
    try:
        assert str(await find_tree(found, text)) == tree
    except ViewError:
        assert tree is None


@pytest.mark.parametrize("length", [LEAST - 1, LEAST, 32, 33])
def test_abbreviation_has_so_many_digits_and_no_more_than_an_id(length: int) -> None:
    assert (Abbreviation.of("a" * length) is not None) is (LEAST <= length <= 32)


@pytest.mark.parametrize("count", [CANDIDATES_SHOWN, CANDIDATES_SHOWN + 1])
def test_candidates_are_named_up_to_a_number_and_the_rest_is_counted(count: int) -> None:
    heads = [SimpleNamespace(session=id_of("01a1f8a1", f"{n:06}")) for n in range(count)]
    with pytest.raises(ViewError) as raised:
        chosen("01a1", cast(Any, heads))
    assert str(raised.value).count("01a1f8a1") == CANDIDATES_SHOWN
    assert ("and 1 more" in str(raised.value)) is (count > CANDIDATES_SHOWN)
    assert "and 0 more" not in str(raised.value)
