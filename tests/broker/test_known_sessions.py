"""Sessions whose place and namespace a process knows: asked once, and dropped when they are not used."""

from __future__ import annotations

from typing import Any, cast

from orchestrator.broker.connection import Connection
from orchestrator.broker.port import Deployment
from orchestrator.broker.records import BrokerConfig
from orchestrator.core.ids import SessionId
from tests.broker.actors import session_id


class Asked:
    """A server that knows each session, and counts who asks about which."""

    clustered = False

    def __init__(self) -> None:
        self.about: list[str] = []

    async def command(self, name: str, key: str, *fields: str) -> list[bytes]:
        self.about.append(fields[-1])
        return [b"t1", {"pool": b"default", "namespace": b""}[fields[-1]]]


async def known(deployment: Deployment, session: SessionId) -> tuple[Any, str]:
    return await deployment.place(session), await deployment.namespace(session)


async def test_session_is_asked_about_once_while_it_is_used_and_again_ten_minutes_behind_its_last_use() -> (
    None
):
    now, server = [0.0], Asked()
    deployment = Deployment(cast(Connection, server), BrokerConfig(), lambda: now[0])
    used, left = session_id(1), session_id(2)
    first = await known(deployment, used), await known(deployment, left)
    assert server.about == ["pool", "namespace"] * 2
    for minute in range(1, 12):
        now[0] = minute * 60.0
        assert await known(deployment, used) == first[0]
    assert server.about == ["pool", "namespace"] * 2
    assert len(deployment.places) == len(deployment.namespaces) == 1, "what nobody uses takes no memory"
    assert await known(deployment, left) == first[1]
    assert server.about == ["pool", "namespace"] * 3
