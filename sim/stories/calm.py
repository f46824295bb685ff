"""Calm runs: simulations that show the same to everybody outside, however many commands a step takes.

Commands, answers and messages take no time. So whatever follows from an act (a person's words, an answer of
the model, the end of a command, a timer) is over before time passes, and acts stand at moments of their own.
The lane that has waited longest goes on until it has nothing to do. What the model and the tools choose is
drawn by session and call, and not in the order in which anybody asks. Faults have defined places: a moment
between acts, or the entry of a log that a commit has just written.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sim.double import Double
from sim.fixture import Fixture
from sim.held_messages import HeldMessage
from sim.machines import Process, Site
from sim.model_script import DRAWING
from sim.nemesis import Nemesis, Plan
from sim.network import Sent, session_of
from sim.stories.plays import PLAYS
from sim.stories.reader import Reader
from sim.stories.ways import Way
from sim.workloads import WORKLOADS, Workload
from sim.world import World

if TYPE_CHECKING:
    from sim.stories.told import Story

AT_MOMENTS = ("kill", "kill", "drain", "revoke", "rewind_1s", "down", "start")
"""Faults between acts."""
BEHIND_ENTRIES = (
    *("task", "request_begun", "request_ended", "call", "stopping", "task_ended", "answer", "child", "mail"),
    *("timer", "folder", "compacted", "process", "rewound", "closing", "queued", "steered"),
)
"""Kinds of entries behind which a worker dies."""
CALM_S = 40.0
"""Until then faults of the model go on, and others are begun."""


SOON_S = 0.04


class Apart(Random):
    """A generator whose bytes are drawn beside its choices: how many somebody takes changes no choice.

    Of delays none is nothing: acts of several stand at moments of their own.
    """

    def choice(self, seq: Sequence[Any]) -> Any:  # type: ignore[override]
        found = super().choice(seq)
        return SOON_S if type(found) is float and found == 0.0 else found

    def __init__(self, seed: Any = None) -> None:
        super().__init__(seed)
        self._bytes = Random(f"bytes:{seed}")

    def randbytes(self, n: int) -> bytes:
        return self._bytes.randbytes(n)


class Keyed(Apart):
    """A generator with a row of choices for each name, of whoever draws just then."""

    def __init__(self, seed: str, name: Callable[[], str]) -> None:
        self._seed, self._whose = seed, name
        self._rows: dict[str, Random] = {}
        super().__init__(seed)

    def _row(self) -> Random:
        if (drawing := DRAWING.get()) is not None:
            # A call that is judged again, or run again by another worker, is drawn as it was.
            return drawing.rows.setdefault(self._seed, Random(f"{self._seed}:{drawing.about}"))
        name = self._whose()
        if name not in self._rows:
            self._rows[name] = Random(f"{self._seed}:{name}")
        return self._rows[name]

    def random(self) -> float:
        return self._row().random()

    def getrandbits(self, k: int) -> int:
        return self._row().getrandbits(k)


class Middle(Random):
    """A generator of the middle of what is asked for."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


@dataclass
class Place:
    """The entry behind which a worker is hit: the so many-th of its kind, of all sessions."""

    kind: str
    left: int
    what: str = "kill"


def disturbance(number: int) -> Place:
    """The one fault of a run: each kind of entry in turn, then the second of each, then other faults."""
    rest, at = divmod(number, len(BEHIND_ENTRIES))
    what, left = divmod(rest, 2)
    return Place(BEHIND_ENTRIES[at], left + 1, ("kill", "revoke", "drain")[what % 3])


class CalmNemesis(Nemesis):
    """Faults at defined places, and no others."""

    def __init__(self, site: Site, double: Double, rng: Random, plan: Plan, drawn: Random, way: Way) -> None:
        super().__init__(site, double, rng, plan)
        self._drawn = drawn
        self._places: list[Place] = []
        self._known: dict[str, int] = {}
        self.way = way
        site.network.arrived = self._arrived

    def lie_in_wait(self, kind: type[HeldMessage]) -> None:
        """Nothing is held back."""

    async def injects(self) -> None:
        drawn = self._drawn
        if drawn.random() < 0.35:
            self._places = [Place(drawn.choice(BEHIND_ENTRIES), drawn.choice((1, 1, 2, 3, 5)))]
        if self.way.disturbed:
            self._places = [disturbance(self.way.number)]
        elif self.way.varied and drawn.random() < 0.3:
            self._places.append(Place(drawn.choice(BEHIND_ENTRIES), drawn.choice((1, 2, 3)), "revoke"))
        moments = sorted(drawn.uniform(0.5, CALM_S / 2) for _ in range(drawn.choice((0, 0, 0, 1, 2))))
        moments = [] if self.way.disturbed else moments
        began_s = self.site.loop.time()
        if self.way.varied:
            await asyncio.sleep(SOON_S / 2)
            self.way.varies_model(self.site.model)
        for at_s in moments:
            await asyncio.sleep(began_s + at_s - self.site.loop.time())
            name = drawn.choice(AT_MOMENTS)
            self.site.trace.note("nemesis", name)
            await getattr(self, f"_{name}")()
        await asyncio.sleep(max(0.0, began_s + CALM_S - self.site.loop.time()))
        self._places = []
        self.peace()

    def _end(self, victim: Process) -> None:
        self.site.trace.note("nemesis", "kills", victim.name)
        victim.kill()
        self.site.loop.on(self.lane, self._replace, after=1.0)

    def _arrived(self, sent: Sent, reply: Any) -> None:
        super()._arrived(sent, reply)
        if sent.name != "commit" or not self._places:
            return
        session = session_of(sent.name, sent.args)
        seen = self.site.watch.sessions.get(session)
        if seen is None:
            return
        before, self._known[session] = self._known.get(session, 0), seen.seq
        for entry in seen.entries[before:]:
            if self._places and _is_of(entry.type, entry.payload, self._places[0].kind):
                self._places[0].left -= 1
                if not self._places[0].left:
                    self._strikes(self._places.pop(0).what, sent.machine, session)

    def _strikes(self, what: str, worker: str, session: str) -> None:
        """Kills or drains the worker that has just written an entry, or takes the session from it."""
        if what == "revoke":
            self.site.trace.note("nemesis", "revoke")
            self.site.loop.start(self.lane, self._revokes(session), "nemesis:revokes")
        for machine in self.living:
            if machine.name != worker:
                continue
            if what == "drain":
                self.site.trace.note("nemesis", "drain")
                machine.drain()
                self.site.loop.on(self.lane, self._replace, after=1.0)
            elif what == "kill":
                self._end(machine)


def _is_of(type: str, payload: Mapping[str, Any], kind: str) -> bool:
    return type == kind or payload.get("kind") == kind


class CalmWorld(World):
    """A calm run of a seed."""

    workloads: Mapping[str, Workload] = MappingProxyType({**WORKLOADS, **PLAYS})
    calm = True
    clustered = False
    drawn = Apart

    def __init__(self, seed: int, double: Double, workload: str) -> None:
        self.way = Way(workload, seed)
        super().__init__(seed, double, workload)
        self.workload = self.way.workload(self.workload)
        self.knobs = self.way.knobs(self.knobs)
        site, name = self.site, f"{workload}:{seed}"
        site.model.rng = Keyed(f"model:{name}", self._who_draws)
        site.model.row = lambda session: f"{self.name_of(session)}-"
        site.folders.rng = Keyed(f"folders:{name}", self._who_draws)
        site.folders.faulty = False
        site.network.states = False
        self.idle_time._rng = Middle()
        self.views = self.reads_back = False
        self.trace.kept = True
        self._trees: dict[str, str] = {}
        """Roots by who made them, and the so many-th of theirs."""
        self._made: Counter[str] = Counter()
        self._named: dict[str, str] = {}
        """Sessions by their names, also those that are deleted."""
        self._rows_read = 0
        self.story: Story | None = None

    async def _has_said_all(self, fixture: Fixture) -> None:
        if self.story is not None:
            await Reader(self, "passer").looks(whole=False)

    async def _is_at_rest(self, fixture: Fixture) -> None:
        if self.story is None:
            return
        await Reader(self, "reader").looks(whole=True)
        await Reader(self, "stranger", "elsewhere").looks(whole=True)
        self.story.at_rest(fixture)

    def _nemesis(self, rng: Random, plan: Plan) -> Nemesis:
        drawn = Random(f"calm:{self.workload.name}:{self.seed}")
        workers = 2 if drawn.random() < (0.5 if self.way.varied or self.way.disturbed else 0.15) else 1
        plan = Plan(0, CALM_S, workers)
        return CalmNemesis(self.site, self.double, Apart(rng.getrandbits(64)), plan, drawn, self.way)

    def _fixture(self, rng: Random) -> Fixture:
        return self.way.fixture(super()._fixture(rng), SOON_S)

    def _set_faults(self, rng: Random) -> None:
        drawn, failures = Random(f"model:{self.workload.name}:{self.seed}"), self.site.model.faults
        failures.unserved = drawn.random() < 0.6
        if drawn.random() < 0.6:
            failures.limited, failures.refused, failures.cut = (
                drawn.choice((0.0, 0.05, 0.2)) for _ in range(3)
            )
            failures.fatal, failures.too_long = (drawn.choice((0.0, 0.05, 0.15)) for _ in range(2))

    def _set_replicas(self, confirmed: float, *, failovers: bool) -> None:
        super()._set_replicas(1.0, failovers=False)

    def name_of(self, session: str) -> str:
        """A session by its tree and its agent's number."""
        seen = self.site.watch.sessions.get(session)
        if seen is None:
            return self._named.get(session, session)
        rows = self.trace.rows()
        for _, who, what, details in rows[self._rows_read :]:
            if what in ("creates", "makes"):
                self._made[who] += 1
                self._trees[str(details[0])] = f"{who}s{self._made[who]}"
        self._rows_read = len(rows)
        agent = seen.state.facts.agent_id
        name = self._named[session] = self._trees.get(seen.tree, "S") + (f".{agent}" if agent else "")
        return name

    def _who_draws(self) -> str:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is None:
            return ""
        session, _, rest = task.get_name().partition(":")
        return f"{self.name_of(session)}:{rest}"
