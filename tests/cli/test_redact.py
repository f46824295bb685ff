"""`dendro redact`: what a redaction that breaks off leaves on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.cli import redact as command
from orchestrator.cli.invocation import Invocation
from orchestrator.core.ids import SessionId
from orchestrator.rollouts import redaction
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
