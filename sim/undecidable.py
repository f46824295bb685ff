"""Submissions that no worker can decide: one from a client without bounds, one that meets a defect of a rule.

Both were accepted by an earlier version. Each has to end as an `error`, and its session has to live on.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Any

import orjson

from orchestrator.broker.errors import BrokerError, Unavailable
from orchestrator.broker.records import Submit
from orchestrator.core import commands as c
from orchestrator.core.decide import decide
from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.runtime import step
from orchestrator.views.event import Event
from sim.people import Acknowledged, Person, words

WORD = "undecidable"


class Stumbled(Exception):
    """The defect of the rules: every error of the log that it causes is expected."""

    @classmethod
    def caused(cls, error: BaseException | None) -> bool:
        return isinstance(error, cls) or (error is not None and cls.caused(error.__cause__))


def tells_of_a_try(event: Event) -> bool:
    """Whether an event only says that the next worker tries: no entry of the log tells of it."""
    return event.type == "warning" and " could not be decided (" in event.msg["message"]


def _stumbles(state: Any, command: Any, moment: Any) -> Any:
    """The rules of a version with a defect: a word makes them raise."""
    said = (
        command.op.items if isinstance(command, c.Submitted) and isinstance(command.op, ops.UserInput) else ()
    )
    if any(getattr(item, "text", "") == WORD for item in said):
        raise Stumbled("a defect that only this word meets")
    return decide(state, command, moment)


# Nothing else in a simulation says the word.
setattr(step, "decide", _stumbles)  # noqa: B010


async def _throws_in(person: Person, session: str) -> None:
    """Submits an op that an earlier version accepted: larger than a commit, past the bounds at the door."""
    id = f"{person.name}.oversized.{len(person._diary.sent)}"
    schema = {str(number): "x" * 60_000 for number in range(20)}
    op = {"type": "user_input", "items": [], "final_output_json_schema": schema}
    person._diary.sent.setdefault(id, "user_input")
    person._site.trace.note(person.name, "throws in", session[-4:], id)
    line = orjson.dumps({"id": id, "op": op})
    while True:
        try:
            await person._broker.commits.submit(Submit(SessionId(session), f"old-{person.name}", id, line))
            break
        except Unavailable:
            await asyncio.sleep(0.2)
        except BrokerError:
            return
    at_s = person._site.loop.time()
    person._diary.acknowledged.setdefault(id, Acknowledged(session, id, "user_input", at_s))


async def undecidable(fixture: Any) -> None:
    """A session gets submissions that no worker can decide, among submissions that every worker can."""
    rng, person = fixture.rng, fixture.person()
    made = person.does(person.creates("never", on_user_input=rng.choice(("replace", "steer"))), "creates")
    await asyncio.wait([made])
    session = made.result()
    person.does(person.follows(session, partial(person.answers, session)), "follows")
    await asyncio.wait([person.does(_says(person, session, rng), "works")])


async def _says(person: Person, session: str, rng: Random) -> None:
    for _ in range(rng.choice((1, 2))):
        await person.works(session, rng.choice((0, 1, 2)))
        if rng.random() < 0.6:
            await person.submits(session, words(WORD))
        else:
            await _throws_in(person, session)
        await person.works(session, rng.choice((1, 2)))
