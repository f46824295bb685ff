"""The heir of a task that a person leaves: the worker that has it, another of its pool, or nobody."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.errors import Unavailable
from orchestrator.terminal import watched_turn
from orchestrator.terminal.watched_turn import who_goes_on
from tests.views.test_threads import ROOT, head

WORKERS = ("own", "other", "third")


@pytest.mark.parametrize("holder", [None, *WORKERS, "of a silent machine"])
@pytest.mark.parametrize("brought", [True, False])
async def test_person_who_leaves_reads_who_goes_on_and_never_that_their_own_worker_does(
    brought: bool, holder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serving_pool(_: Any, pool: str) -> list[str]:
        assert pool == "p"
        return serving

    async def of(_: Any) -> Any:
        return head(holder=holder)

    monkeypatch.setattr(watched_turn, "serving_pool", serving_pool)
    found = cast(Any, SimpleNamespace(broker=SimpleNamespace(logs=SimpleNamespace(head=of), claims=None)))
    own = cast(Any, SimpleNamespace(is_named=lambda name: name == "own")) if brought else None
    for values in product([True, False], repeat=3):
        serving = [name for name, serves in zip(WORKERS, values, strict=True) if serves]
        others = [name for name in serving if name != "own" or not brought]
        told = await who_goes_on(found, ROOT, own)
        if not others:
            assert "stands still until one does (dendro worker)" in told
        elif holder in others:
            assert told == f"the task goes on: worker {holder} has it"
        else:
            assert told.startswith("the task goes on: a worker of its pool p takes it")


@pytest.mark.parametrize("gone", [True, False])
async def test_session_that_is_gone_and_a_server_that_is_away_are_told_as_what_they_are(gone: bool) -> None:
    async def of(_: Any) -> Any:
        if gone:
            return None
        raise Unavailable("Redis is away")

    found = cast(Any, SimpleNamespace(broker=SimpleNamespace(logs=SimpleNamespace(head=of), claims=None)))
    told = await who_goes_on(found, ROOT, None)
    assert ("no other worker serves its pool" in told) is gone
    assert ("is not known: " in told) is not gone
