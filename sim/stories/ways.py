"""Ways of calm runs: the workload as it is, with other settings, with one fault, or with guests.

A seed's thousand says which. Settings are varied since a defect mostly stands inside of a branch that every
run comes to: what matters is with what.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from orchestrator.core.frozen import replace
from orchestrator.core.settings import TreeRules
from orchestrator.gateways.principals import Principal, Scope
from sim.fixture import Fixture
from sim.knobs import Knobs
from sim.model_script import ModelScript
from sim.people import Person
from sim.workloads import Workload

OF_EACH = 1_000
"""Seeds of each way."""
PLAIN, VARIED, DISTURBED, VISITED = range(4)
"""As it is; other settings; exactly one fault; other settings, and clients of gateways."""
OF_DOORS = frozenset({"doors", "crowds", "followers", "births", "desks", "old_desks", "spaces"})
"""Workloads with gateways of their own, where nobody visits."""
HABITS = {
    "review": 8,
    "plan": 5,
    "compact": 4,
    "back": 5,
    "run": 6,
    "requeue": 5,
    "add": 4,
    "take_back": 4,
    "message": 6,
    "configure": 4,
    "interrupt": 5,
    "turn": 8,
}
"""Habits that people have beside those of the workload, some of them."""
ODDS: dict[str, tuple[float, ...]] = {
    "asks": (0.2, 0.7),
    "patches": (0.1, 0.4),
    "denied": (0.3, 0.6),
    "escalated": (0.3,),
    "prefixes": (0.5,),
    "questions": (0.2,),
    "proposes": (0.15,),
    "large": (0.4,),
    "tools": (0.3,),
    "elicits": (0.6,),
    "outside": (0.3,),
    "agents": (0.3, 0.7),
    "processes": (0.3,),
}
VERBS = ("subagent_watchdog", "subagent_send_message", "subagent_prune", "subagent_cancel", "subagent_await")
FACTS: dict[str, tuple[Any, ...]] = {
    "on_user_input": ("replace", "steer", "queue"),
    "approval_timeout_ms": (None, 2_000, 5_000, 3_600_000),
    "unified_exec": (True, False),
}


class Way:
    """Differences of a run from the workload as it is."""

    def __init__(self, workload: str, seed: int) -> None:
        self._name = f"{workload}:{seed}"
        kind, self.number = divmod(seed, OF_EACH)
        self.varied, self.disturbed = kind in (VARIED, VISITED), kind == DISTURBED
        self._visited = kind == VISITED and workload not in OF_DOORS
        self._rng = Random(f"way:{self._name}")

    def knobs(self, knobs: Knobs) -> Knobs:
        """Small bounds in half of those runs that are varied."""
        return replace(knobs, small=self._rng.random() < 0.5) if self.varied else knobs

    def workload(self, workload: Workload) -> Workload:
        return replace(workload, play=partial(_visited, workload.play)) if self._visited else workload

    def varies_model(self, model: ModelScript) -> None:
        """Has the model choose otherwise than the workload has said."""
        rng, odds = Random(f"odds:{self._name}"), model.odds
        for name, some in ODDS.items():
            if rng.random() < 0.3:
                setattr(odds, name, rng.choice(some))
        if rng.random() < 0.4:
            odds.verbs = {**odds.verbs, rng.choice(VERBS): 15}

    def fixture(self, fixture: Fixture, apart_s: float) -> Fixture:
        return _Calm(self._name, fixture, apart_s, varied=self.varied)


class _Calm(Fixture):
    """People whose acts are apart; varied, they have more habits, and make sessions with other facts."""

    def __init__(self, name: str, fixture: Fixture, apart_s: float, *, varied: bool) -> None:
        super().__init__(fixture.site, fixture.diary, fixture.rng, fixture.nemesis)
        self._whims, self._apart_s, self._varied = Random(f"people:{name}"), apart_s, varied

    def person(self) -> Person:
        person, rng = super().person(), self._whims
        person.apart_s = self._apart_s
        if not self._varied:
            return person
        for name in rng.sample(sorted(HABITS), 3):
            person.habits[name] = person.habits.get(name, 0) + HABITS[name]
        person.delivers, person.fickle = rng.random() < 0.3, rng.random() < 0.3
        person.two_clients = rng.random() < 0.3
        person.usual = {name: rng.choice(some) for name, some in FACTS.items() if rng.random() < 0.3}
        if rng.random() < 0.4:
            budgets = rng.choice(({}, {}, {"tokens": 900}, {"requests": 6}))
            rules = TreeRules(slots=2, spawned=3, depth=2, await_floor_s=1.0, budgets=budgets)
            person.usual |= {"agents": True, "tree_rules": rules}
        return person


async def _visited(play: Callable[[Fixture], Any], fixture: Fixture) -> None:
    """A play whose sessions clients of gateways come to, and do all that clients may do."""
    import asyncio

    from sim.stories.plays import Guest, OldGuest
    from sim.workloads_doors import Street, _watched

    rng = Random(f"guests:{fixture.rng.getstate()[1][:2]}")
    watched, street = _watched(fixture), Street(fixture, {}, "untrusted")
    street.opens()
    watched.revoked_s = street.tokens.revoked_s
    working: list[asyncio.Task[Any]] = []
    shared: list[str] = []
    for kind in rng.choice(((Guest,), (Guest, Guest), (Guest, OldGuest))):
        name = f"d{len(working)}"
        principal = Principal(f"u{name}", "", Scope.ADMIN, f"token of {name}")
        watched.principals[principal.name] = principal
        working.append(kind(fixture, street, name, shared, principal).works(rng.choice((5, 9))))
    await play(fixture)
    await asyncio.wait(working)
