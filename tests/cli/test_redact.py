"""`dendro redact`: what a person is asked, and what one that breaks off leaves on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.cli import redact as command
from orchestrator.cli.invocation import Invocation
from orchestrator.core.ids import SessionId
from orchestrator.rollouts import redaction
from orchestrator.rollouts.redaction import Copy
from orchestrator.terminal.faults import Fault


async def test_files_lose_what_was_taken_before_a_redaction_broke_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, looked = SessionId("0199a2b4-0000-7000-8000-000000000001"), list[object]()
    plan = SimpleNamespace(
        copies=[], count=1, entries={session: [4]}, heads={session: SimpleNamespace(archived="")}
    )

    class Found:
        async def find_one(self, _: str) -> Any:
            return SimpleNamespace(session=session)

        def storage(self) -> None:
            return None

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[Found]:
        yield Found()

    async def planned(*_: object) -> Any:
        return plan

    async def breaks_off(*_: object) -> int:
        raise redaction.NotRedacted("session 2 is in the middle of a task")

    async def remove_files(found: object) -> None:
        looked.append(found)

    monkeypatch.setattr("orchestrator.cli.invocation.opened", opened)
    monkeypatch.setattr(redaction, "plan_of", planned)
    monkeypatch.setattr(redaction, "redact", breaks_off)
    monkeypatch.setattr(command, "_remove_files", remove_files)
    invocation = cast(Invocation, SimpleNamespace(settings=lambda: None))
    with pytest.raises(Fault, match="in the middle of a task"):
        await command._redact(invocation, session, (4,), "personal data", (), None, dry_run=False, yes=True)
    assert len(looked) == 1


class Asked:
    """A person at a terminal before whom a plan changes, and what was taken away in the end."""

    def __init__(self, plans: Sequence[Sequence[Copy]], answers: Sequence[bool]) -> None:
        self.plans, self.answers = list(plans), list(answers)
        self.taken: list[Sequence[Copy]] = []

    def confirm(self, _: str) -> bool:
        return self.answers.pop(0)

    async def plan_of(self, *_: object) -> Any:
        copies = self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]
        going = [copy for copy in copies if copy.goes]
        return SimpleNamespace(copies=list(copies), count=len(going), entries={}, heads={})

    async def redact(self, found: object, storage: object, plan: Any, act: object) -> int:
        self.taken.append(plan.copies)
        return int(plan.count)

    def find_one(self, _: str) -> Any:
        future = asyncio.get_running_loop().create_future()
        future.set_result(SimpleNamespace(session=SessionId("s")))
        return future

    def storage(self) -> None:
        pass


FIRST = [Copy("s:4", "message"), Copy("s:5", "request 1 was sent with it", goes=False)]
WITH_FORK = [*FIRST, Copy("fork:4", "forked")]
WITH_TWO = [*WITH_FORK, Copy("other:4", "forked")]
STAYS = [Copy("s:4", "tree", goes=False)]


@pytest.mark.parametrize(
    ("plans", "answers", "listed", "taken"),
    [
        ([FIRST], [True], 1, FIRST),
        ([FIRST, WITH_FORK], [True, True], 2, WITH_FORK),
        ([FIRST, WITH_FORK, WITH_TWO], [True, True, True], 3, WITH_TWO),
        ([WITH_TWO, FIRST], [True, True], 2, FIRST),
        ([FIRST, WITH_FORK], [True, False], 2, None),
        ([FIRST, WITH_FORK], [False], 1, None),
        ([FIRST, STAYS], [True], 2, None),
    ],
)
async def test_copies_that_came_while_the_person_was_asked_are_put_to_them_and_go(
    plans: Sequence[Sequence[Copy]],
    answers: Sequence[bool],
    listed: int,
    taken: Sequence[Copy] | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = Asked(plans, answers)
    await _answered(asked, monkeypatch, nothing_left=plans[-1] is STAYS)
    assert (asked.taken, asked.answers) == ([] if taken is None else [taken], [])
    told = capsys.readouterr().out.splitlines()
    shown = [line.split()[1] for line in told if line.startswith(("goes", "STAYS"))]
    assert shown == [copy.place for plan in list(plans)[:listed] for copy in plan]


@pytest.mark.parametrize("terminal", [False, True])
async def test_nobody_is_asked_and_nothing_looked_for_twice_where_the_command_line_says_yes(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked([FIRST, WITH_FORK], [])
    await _answered(asked, monkeypatch, terminal=terminal, yes=terminal)
    assert asked.taken == [FIRST]


async def _answered(
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
    *,
    terminal: bool = True,
    yes: bool = False,
    nothing_left: bool = False,
) -> None:
    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[Asked]:
        yield asked

    async def remove_files(_: object) -> None:
        pass

    monkeypatch.setattr("orchestrator.cli.invocation.opened", opened)
    monkeypatch.setattr(redaction, "plan_of", asked.plan_of)
    monkeypatch.setattr(redaction, "redact", asked.redact)
    monkeypatch.setattr(command, "_remove_files", remove_files)
    monkeypatch.setattr("typer.confirm", asked.confirm)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: terminal))
    invocation = cast(Invocation, SimpleNamespace(settings=lambda: None))
    wish = (invocation, "s", (4,), "personal data", (), None)
    with pytest.raises(Fault, match="no entry that can") if nothing_left else nullcontext():
        await command._redact(*wish, dry_run=False, yes=yes)
