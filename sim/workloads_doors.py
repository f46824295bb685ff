"""A workload of gateways: several of them, with several clients each, that come, leave, die and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from orchestrator.core.settings import TreeRules
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.protocol import ops
from sim.degradations import OUT_OF_MEMORY
from sim.door_clients import DoorClient, FirstVersion, SecondVersion
from sim.door_lines import LineClient
from sim.doors import PLACE, Doors
from sim.fixture import Fixture
from sim.gateways import SimGateway, Tokens
from sim.loop import Lane
from sim.machines import Site

NAMESPACES = ("", "one")
SETTLED_S = 12.0
"""Behind the last fault everybody knows what is open after so long."""
LOOKS = 240
WATCHED_S = 40
MOMENTS = 2
"""Moments behind that at which it is looked whether answers have arrived."""
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
        rng = self._site.drawn(self._rng.getrandbits(64))
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
            one_place = principal.name not in (other.principal.name for other in clients)
            if isinstance(client, LineClient) and one_place and not fixture.site.network.instant:
                client.called = "lines"
            if isinstance(client, LineClient) and not fixture.site.network.instant:
                client.misspeaks = Random(f"misspeaks:{name}:{mind.getstate()[1][:4]}")
            client.gateways, client.shared = street.living, shared[space]
            client.foreign = shared[NAMESPACES[not NAMESPACES.index(space)]] if len(spaces) > 1 else []
            clients.append(client)
    return clients


def _watched(fixture: Fixture) -> Doors:
    """The rules of doors, told of what sessions write."""
    site = fixture.site
    watched = site.watch.doors = Doors(site.watch, site.watch._double)
    before = site.network.wrote

    def wrote(name: str, args: Any, reply: Any) -> None:
        before(name, args, reply)
        watched.wrote(args)
        if name == "submit" and reply and reply[0] == b"OK":
            watched.submitted(args)
        elif name == "submit" and reply and reply[0] in (b"DUP", b"CONFLICT"):
            watched.submitted_again(args)

    site.network.wrote = wrote
    site.watch.answers.without = watched.principals
    return watched


async def doors(fixture: Fixture) -> None:
    """Gateways with several clients each, of both versions and of two namespaces, that come, leave, answer
    each other's requests, and read slowly; gateways die and come back, and Redis rewinds."""
    rng, odds = fixture.rng, fixture.site.model.odds
    odds.calls, odds.asks, odds.patches, odds.plans = 0.8, 0.8, 0.3, 0.0
    odds.agents, odds.verbs = 0.4, {**odds.verbs, "subagent_spawn": 25}
    odds.same_ids = rng.random() < 0.7
    fixture.nemesis.weights |= {"rewind_1s": 15, "rewind_at": 25, "rewind": 8}
    rules = TreeRules(slots=3, spawned=4, depth=2, await_floor_s=1.0, await_cap_s=20.0)
    facts: dict[str, Any] = {"agents": True, "tree_rules": rules} if rng.random() < 0.8 else {}
    watched = _watched(fixture)
    street = Street(fixture, facts, rng.choice(("untrusted", "untrusted", "on-request")))
    for _ in range(rng.choice((1, 2, 2, 3))):
        street.opens()
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


MANNERS = ("soon", "late", "alone")
"""Manners of answering: by everybody, by everybody late, or late by one client alone."""
PATIENT_S = (15.0, 40.0)
HANDED_IN_S = 20.0
"""The most seconds that an answer takes where no gateway stands still."""
Guest = type[SecondVersion] | type[FirstVersion] | type[LineClient]
CROWD: tuple[Guest, ...] = (
    SecondVersion,
    SecondVersion,
    FirstVersion,
    FirstVersion,
    LineClient,
    LineClient,
    LineClient,
)
OPENINGS = (
    ("shell", "subagent_spawn"),
    ("shell", "shell", "subagent_spawn", "subagent_spawn"),
    ("shell", "subagent_spawn", "subagent_spawn"),
    ("subagent_spawn", "subagent_spawn"),
)


def _guests(fixture: Fixture, watched: Doors, street: Street, first: DoorClient) -> Iterator[DoorClient]:
    """Clients that share the sessions of another one; lines call themselves by one name."""
    space = first.principal.namespace
    for number, kind in enumerate(fixture.rng.sample(CROWD, fixture.rng.choice((3, 4))), 1):
        mind = Random(fixture.rng.getrandbits(64))
        client = _guest(fixture, watched, street, kind, f"c{number}", mind, space)
        client.shared = first.shared
        yield client


def _guest(
    fixture: Fixture,
    watched: Doors,
    street: Street,
    kind: Guest,
    name: str,
    mind: Random,
    space: str,
) -> DoorClient:
    principal = Principal(f"u{name}", space, Scope.ADMIN, f"token of u{name}")
    street.tokens.give(principal)
    watched.principals[principal.name] = principal
    client = kind(fixture.site, name, mind, principal, watched)
    client.gateways, client.makes = street.living, False
    client.replies, client.acts = mind.choice(((0, 1), (0, 1, 2), (1, 1, 2))), mind.choice((1, 2, 3))
    client.waits_s = mind.choice(((1.0, 10.0), (2.0, 20.0, 40.0)))
    client.slow = mind.random() < 0.5
    if isinstance(client, LineClient):
        client.called, client.habits = "lines", ("say", "say", "write", "write", "stop", "else")
        if not fixture.site.network.instant:
            client.misspeaks = Random(f"misspeaks:{name}:{mind.getstate()[1][:4]}")
    elif isinstance(client, FirstVersion):
        client.habits = ("say", "resume", "resume", "stop")
    else:
        client.habits = ("say", "say", "stop", "resume", "leave")
    return client


def _filling(fixture: Fixture, watched: Doors) -> Callable[[], None]:
    """Has Redis be out of memory for a while when somebody answers; in every second fleet.

    It draws for itself: fleets of the others are what they were.
    """
    rng, network = Random(f"full:{fixture.rng.getstate()[1][:4]}"), fixture.site.network
    odds = 0.0 if network.instant else rng.choice((0.0, 0.3))

    def has_room() -> None:
        if network.refuses is OUT_OF_MEMORY:
            network.refuses = None

    def answering() -> None:
        if network.refuses is None and rng.random() < odds:
            watched.saw("answer_unwritten")
            network.refuses = OUT_OF_MEMORY
            fixture.site.loop.on(fixture.nemesis.lane, has_room, after=rng.choice((0.1, 1.0, 4.0)))

    return answering


async def crowds(fixture: Fixture) -> None:
    """A session that many clients share: the root and its agents ask at the same time about calls of the
    same ids, several at once, and are answered late; some read slowly, and some come when all is asked."""
    rng, odds = fixture.rng, fixture.site.model.odds
    odds.calls, odds.asks, odds.patches, odds.plans = rng.choice((0.3, 0.65)), 1.0, 0.1, 0.0
    odds.agents, odds.verbs = 0.2, {"subagent_send_message": 4, "subagent_await": 1, "subagent_spawn": 2}
    odds.opening, odds.rounds = rng.choice(OPENINGS), 0.3
    odds.same_ids, odds.pieces = True, rng.choice(((1, 3), (12, 30)))
    if rng.random() < 0.4:
        fixture.site.model.faults.fatal = 0.25
    fixture.site.model.faults.words = f"no: {PLACE} is not to be read"
    rules = TreeRules(slots=4, spawned=4, depth=1, await_floor_s=1.0, await_cap_s=20.0)
    watched = _watched(fixture)
    watched.delivered_s = HANDED_IN_S
    watched.answering = _filling(fixture, watched)
    street = Street(fixture, {"agents": True, "tree_rules": rules}, "untrusted")
    watched.revoked_s = street.tokens.revoked_s
    for _ in range(rng.choice((1, 1, 2))):
        street.opens()
    space = rng.choice(NAMESPACES)
    first = _guest(fixture, watched, street, SecondVersion, "c0", Random(rng.getrandbits(64)), space)
    first.begin()
    clients = [first]
    for _ in range(LOOKS):
        if first.shared:
            break
        await asyncio.sleep(LOOK_S)
    guests, manner = list(_guests(fixture, watched, street, first)), rng.choice(MANNERS)
    of_first = [client for client in guests if isinstance(client, FirstVersion)]
    alone = rng.choice(of_first or guests)
    for client in (first, *guests):
        if manner != "soon":
            client.waits_s = PATIENT_S
        if manner == "alone":
            client.replies = (1,) if client is alone else (0,)
    seconds = [client for client in guests if isinstance(client, SecondVersion)]
    if manner == "late" and seconds:
        # What its threads ask, and what their agents ask, is put to the others alone.
        seconds[-1].asks = False
    for client in guests:
        await asyncio.sleep(rng.choice((0.1, 4.0, 12.0)) * rng.random())
        client.begin()
        clients.append(client)
    if rng.random() < 0.3:
        rng.choice(clients).leaves()
    while not fixture.nemesis.calm.is_set():
        await asyncio.sleep(LOOK_S)
        watched.quiet()
    for client in clients:
        client.hurry()
    for _ in range(LOOKS):
        if all(client.is_done for client in clients):
            break
        await asyncio.sleep(LOOK_S)
        watched.quiet()
    for _ in range(WATCHED_S):
        await asyncio.sleep(LOOK_S)
        watched.quiet()
    if rng.random() < 0.5 and first.shared:
        await _works_again(fixture, first.shared[0], clients)
    for _ in range(MOMENTS):
        await asyncio.sleep(SETTLED_S)
        watched.quiet()


async def _works_again(fixture: Fixture, root: str, clients: Sequence[DoorClient]) -> None:
    """Agents come to rest, clients come anew, and somebody writes to the agents."""
    rng, person, watch = fixture.rng, fixture.person(), fixture.site.watch
    for _ in range(LOOKS):
        if not watch.resting():
            break
        await fixture.answer_all()
        await asyncio.sleep(LOOK_S)
    for client in clients:
        if rng.random() < 0.5:
            client.leaves()
    await asyncio.sleep(SETTLED_S)
    for agent in (1, 2):
        op = ops.MessageAgent(agent_id=agent, text=f"again {agent}")
        await asyncio.wait([person.does(person.submits(root, op), "writes")])
