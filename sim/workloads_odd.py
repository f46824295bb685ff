"""A workload of servers that keep no rules."""

from __future__ import annotations

from functools import partial
from typing import Any

from sim.fixture import Fixture, new_session, perhaps_agents, used


async def oddities(fixture: Fixture) -> None:
    """A session whose provider repeats itself, and whose MCP server dies in the middle of calls."""
    rng, person, other, odds = fixture.rng, fixture.person(), fixture.person(), fixture.site.model.odds
    odds.odd, odds.dies, odds.calls, odds.plans = 0.5, 0.3, 0.9, 0.05
    odds.tools, odds.elicits, odds.same_ids = 0.5, 0.5, rng.random() < 0.5
    person.habits |= {"interrupt": 4, "compact": 2}
    facts: dict[str, Any] = {
        "approval_timeout_ms": rng.choice((None, None, 5_000, 3_600_000)),
        "on_user_input": rng.choice(("replace", "steer")),
        **perhaps_agents(rng, 0.4),
    }
    session = await new_session(fixture, person, rng.choice(("never", "untrusted", "on-request")), **facts)
    other.does(other.follows(session, partial(other.answers, session)), "follows")
    await used(fixture, person, session, rng.choice((2, 4)))
