"""Sessions for one question are in no list, whoever asks; with `--all` there are all."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.records import BrokerConfig, Labels, NewTree
from orchestrator.core.ids import SessionId
from orchestrator.views.fleet import Fleet, FleetFilter
from orchestrator.views.sessions import Filter, sessions_listed, trees_listed
from orchestrator.views.thread_list import ListAsked, ThreadFilter, loaded, threads_page
from tests.broker.actors import new_session, session_id, submitted
from tests.stated import StatedRedis
from tests.views.test_damaged_sessions import META


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    double = StatedRedis()
    opened = Broker(Connection(double, double), BrokerConfig(lease_s=60.0), lambda: 0.0)
    await opened.open()
    yield opened
    await opened.aclose()


@pytest.mark.parametrize("source", ["cli", "exec"])
@pytest.mark.parametrize("namespace", ["", "acme"])
async def test_ephemeral_sessions_are_left_out_of_each_list_and_all_of_them_are_shown_to_who_asks_for_all(
    namespace: str, source: str, broker: Broker
) -> None:
    made: dict[SessionId, bool] = {}
    for number in range(5):
        born = new_session(session_id(number % 2), meta=META)
        made[born.session] = number % 2 == 1
        labels = Labels(namespace, "exec" if source == "exec" else "cli", ephemeral=number % 2 == 1)
        await broker.commits.create(NewTree(born, labels=labels))
        await submitted(broker, born.session)
    kept = {one for one, ephemeral in made.items() if not ephemeral}
    for all in (False, True):
        listing = await trees_listed(broker, Filter(), 20, all=all)
        assert {tree.root["session_id"] for tree in listing.trees} == (set(made) if all else kept)
        listing = await sessions_listed(broker, Filter(), 20, all=all)
        assert {row["session_id"] for row in listing.rows} == (set(made) if all else kept)
    assert set(await loaded(broker.logs, 20, namespace)) == kept
    wanted = ThreadFilter(frozenset({"cli", "exec"}))
    page = await threads_page(broker, ListAsked(20, namespace=namespace, wanted=wanted))
    assert {one.id for one in page.threads} == kept
    fleet = Fleet(broker, namespace)
    found = await fleet.page(FleetFilter(), (), "ann")
    assert {row.head.session for row in found.rows} == kept
    await fleet.aclose()
