"""Trees that a process keeps at hand: those of each namespace that somebody asks for, and of no other."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.gateways.app_server.methods import fleet
from orchestrator.gateways.app_server.methods.fleet import IDLE_S


class Broker:
    """A deployment."""


class Kept:
    """The trees of a namespace, which take a while to be let go."""

    made: list[Kept]

    def __init__(self, broker: Any, namespace: str) -> None:
        self.namespace, self.closed = namespace, 0
        self.made.append(self)

    async def aclose(self) -> None:
        self.closed += 1
        await asyncio.sleep(0)


NAMESPACES = ["", "acme", "beta", "ci"]


@pytest.mark.parametrize("asking", [*itertools.combinations(NAMESPACES, 2), tuple(NAMESPACES), ("acme",) * 3])
async def test_trees_of_a_namespace_are_let_go_once_when_nobody_has_asked_for_ten_minutes(
    asking: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where several clients find them idle at once, and where one asks for them just then."""
    now, Kept.made = [1_000.0], []
    monkeypatch.setattr(fleet, "Fleet", Kept)
    monkeypatch.setattr(fleet, "time", SimpleNamespace(monotonic=lambda: now[0]))
    brokers = [Broker(), Broker()]

    def door(broker: Broker, namespace: str) -> Any:
        ports = SimpleNamespace(found=SimpleNamespace(broker=broker))
        return SimpleNamespace(ports=ports, principal=SimpleNamespace(namespace=namespace))

    async def asked(broker: Broker, namespace: str) -> Kept:
        return cast(Kept, await fleet._fleet(door(broker, namespace)))

    other = await asked(brokers[1], "acme")
    first = {namespace: await asked(brokers[0], namespace) for namespace in NAMESPACES}
    now[0] += IDLE_S
    again = await asyncio.gather(*(asked(brokers[0], namespace) for namespace in asking))
    assert again == [first[namespace] for namespace in asking], "ten minutes are not over"
    now[0] += 1
    found = await asyncio.gather(*(asked(brokers[0], namespace) for namespace in asking))
    assert found == again
    assert {of: kept.closed for of, kept in first.items()} == {of: int(of not in asking) for of in NAMESPACES}
    anew = {namespace: await asked(brokers[0], namespace) for namespace in NAMESPACES}
    assert {of for of in NAMESPACES if anew[of] is first[of]} == set(asking)
    now[0] += IDLE_S + 1
    both = await asyncio.gather(asked(brokers[0], "acme"), asked(brokers[0], "beta"))
    idle = [namespace for namespace in NAMESPACES if namespace != "acme"]
    assert all(anew[namespace].closed == 1 for namespace in idle)
    assert (both[0], both[0].closed, both[1].closed) == (anew["acme"], 0, 0)
    assert (await asked(brokers[1], "acme"), other.closed) == (other, 0)
    assert len(Kept.made) == 1 + len(NAMESPACES) + len(set(NAMESPACES) - set(asking)) + 1
