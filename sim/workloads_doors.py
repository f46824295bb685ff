"""A workload of gateways: several of them, with several clients each, that come, leave, die and come back."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from orchestrator.core.settings import TreeRules
from orchestrator.gateways.principals import Principal, Scope
from sim.door_clients import DoorClient, FirstVersion, SecondVersion
from sim.door_lines import LineClient
from sim.doors import Doors
from sim.fixture import Fixture
from sim.gateways import SimGateway, Tokens
from sim.loop import Lane
from sim.machines import Site

NAMESPACES = ("", "one")
SETTLED_S = 12.0
"""Behind the last fault everybody knows what is open after so long."""
LOOKS = 240
LOOK_S = 1.0


class Street:
    """The gateways of a simulation, which die and come back."""

    def __init__(self, fixture: Fixture, facts: dict[str, Any], policy: str) -> None:
        self._site: Site = fixture.site
        self._rng, self._facts, self._policy = fixture.rng, facts, policy
        self._started = 0
        self._gateways: list[SimGateway] = []
        self.tokens = Tokens(fixture.site.loop)
        self.lane = Lane("doors")

    def living(self) -> list[SimGateway]:
        return [gateway for gateway in self._gateways if gateway.alive]

    def opens(self) -> None:
        """Starts a gateway."""
        self._started += 1
        rng = Random(self._rng.getrandbits(64))
        gateway = SimGateway(self._site, f"g{self._started}", rng, self._facts, self._policy, self.tokens)
        self._gateways.append(gateway)

    def revokes(self, principal: Principal) -> None:
        """Takes somebody's token back."""
        self._site.trace.note("doors", "revokes", principal.name)
        self.tokens.revoke(principal)
        for gateway in self.living():
            gateway.looks_at_tokens()

    def suffers(self) -> None:
        """Kills, stops or cuts off a gateway."""
        rng = self._rng
        if not (living := self.living()):
            return
        gateway = rng.choice(living)
        match rng.choice(("kill", "kill", "pause", "cut")):
            case "kill":
                gateway.kill()
                self._site.watch.reach.saw("gateway_lost")
                self._site.loop.on(self.lane, self.opens, after=rng.choice((0.0, 0.5, 5.0)))
            case "pause":
                gateway.pause(rng.choice((1.0, 6.0, 15.0)) * rng.random())
            case _:
                self._site.trace.note("doors", "cuts", gateway.name)
                cut = self._site.network.cut
                cut[gateway.name] = cut.get(gateway.name, 0) + 1
                self._site.loop.on(self.lane, self._joins, gateway.name, after=8.0 * rng.random())

    def _joins(self, name: str) -> None:
        self._site.network.cut[name] -= 1


def _principal(rng: Random, number: int, namespace: str) -> Principal:
    scope = Scope.ADMIN if number < 2 else rng.choice((Scope.ADMIN, Scope.APPROVE, Scope.SUBMIT, Scope.READ))
    name = f"u{number}{namespace}"
    return Principal(name, namespace, scope, f"token of {name}")


def _clients(fixture: Fixture, doors: Doors, street: Street) -> list[DoorClient]:
    rng, clients = fixture.rng, list[DoorClient]()
    spaces = NAMESPACES if rng.random() < 0.6 else NAMESPACES[:1]
    shared: dict[str, list[str]] = {space: [] for space in spaces}
    for space in spaces:
        for number in range(rng.choice((2, 3, 4))):
            kind = rng.choice((SecondVersion, SecondVersion, FirstVersion, LineClient, LineClient))
            kind = kind if number else SecondVersion
            name = f"{'t' if space else 'h'}{number}"
            mind = Random(rng.getrandbits(64))
            principal = _principal(mind, number, space)
            if clients and clients[-1].principal.namespace == space and mind.random() < 0.2:
                # The same person at two places.
                principal = clients[-1].principal
            street.tokens.give(principal)
            doors.principals[principal.name] = principal
            client = kind(fixture.site, name, mind, principal, doors)
            client.gateways, client.shared = street.living, shared[space]
            client.foreign = shared[NAMESPACES[not NAMESPACES.index(space)]] if len(spaces) > 1 else []
            clients.append(client)
    return clients


async def doors(fixture: Fixture) -> None:
    """Gateways with several clients each, of both versions and of two namespaces, that come, leave, answer
    each other's requests, and read slowly; gateways die and come back, and Redis rewinds."""
    rng, site, odds = fixture.rng, fixture.site, fixture.site.model.odds
    odds.calls, odds.asks, odds.patches, odds.plans = 0.8, 0.8, 0.3, 0.0
    odds.agents, odds.verbs = 0.4, {**odds.verbs, "subagent_spawn": 25}
    odds.same_ids = rng.random() < 0.7
    fixture.nemesis.weights |= {"rewind_1s": 15, "rewind_at": 25, "rewind": 8}
    rules = TreeRules(slots=3, spawned=4, depth=2, await_floor_s=1.0, await_cap_s=20.0)
    facts: dict[str, Any] = {"agents": True, "tree_rules": rules} if rng.random() < 0.8 else {}
    watched = site.watch.doors = Doors(site.watch, site.watch._double)
    before = site.network.wrote

    def wrote(name: str, args: Any, reply: Any) -> None:
        before(name, args, reply)
        watched.wrote(args)
        if name == "submit" and reply and reply[0] == b"OK":
            watched.submitted(args)

    site.network.wrote = wrote
    street = Street(fixture, facts, rng.choice(("untrusted", "untrusted", "on-request")))
    for _ in range(rng.choice((1, 2, 2, 3))):
        street.opens()
    site.watch.answers.without = watched.principals
    watched.revoked_s = street.tokens.revoked_s
    clients = _clients(fixture, watched, street)
    for client in clients:
        client.begin()
    for _ in range(rng.choice((0, 2, 4, 6))):
        await asyncio.sleep(8.0 * rng.random())
        if rng.random() < 0.5:
            street.suffers()
        elif rng.random() < 0.15:
            watched.saw("permitted")
            street.revokes(rng.choice(clients[1:]).principal)
        else:
            rng.choice(clients).leaves()
    await fixture.nemesis.calm.wait()
    for client in clients:
        client.hurry()
    for _ in range(LOOKS):
        if all(client.is_done for client in clients) and not any(g.stands_still for g in street.living()):
            break
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(SETTLED_S)
    watched.quiet()
