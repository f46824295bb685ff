"""Steps that speak to archived sessions: these come back first, or the step goes on as it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.records import Committed, Refused
from orchestrator.core.commit_parts import OutboundMessage, TreePart
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.runtime.committing import ARCHIVE_S, Writing
from orchestrator.runtime.journal import Step, Writer
from orchestrator.runtime.loader import BEGINNING, BrokenLog

DONE = Committed(1, b"\0" * 32, "0-0", 0, False, 0, 0, last_commit="c")
AWAY = ArchiveUnavailable("not mounted")
LOST: dict[str, Callable[[], Exception]] = {
    "a broken log": lambda: BrokenLog("broken"),
    "a broken archive": lambda: BrokenArchive("broken"),
    "no such session": lambda: UnknownSession("s"),
}


class Places:
    """Redis and the archive: which sessions are archived, and what becomes of each try to bring one back."""

    def __init__(self, archived: Sequence[str], tries: Sequence[Exception | None] = ()) -> None:
        self.archived = list(archived)
        self.tries = list(tries)
        self.restored: list[str] = []
        self.sent = 0
        self.slept: list[float] = []
        self.writing: Writing

    async def commit(self, request: Any, successor: object) -> Committed | Refused:
        self.sent += 1
        named = [mail.to for mail in request.tree.outbox if mail.to in self.archived]
        return Refused("archived_target", named[0]) if named else DONE

    async def restore(self, session: SessionId) -> bool:
        self.restored.append(session)
        if self.tries and (error := self.tries.pop(0)) is not None:
            raise error
        self.archived.remove(session)
        return True

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def step_to(*messages: tuple[str, str]) -> Step:
    step = Step(BEGINNING, Writer(1, bytes), 0)
    step.tree = TreePart(
        outbox=tuple(OutboundMessage(SessionId(to), kind, b"{}", to) for kind, to in messages)
    )
    return step


async def commits(places: Places, step: Step, *, restores: bool = True) -> Committed | Refused | None:
    config = SimpleNamespace(core_version=1)
    ports: Any = SimpleNamespace(
        broker=SimpleNamespace(commits=SimpleNamespace(commit=places.commit), config=config),
        folders=SimpleNamespace(machine="m"),
        restore=places.restore if restores else None,
        random_bytes=bytes,
        sleep=places.sleep,
    )
    claim: Any = SimpleNamespace(session="s", tree="t")
    places.writing = Writing(ports, claim, "")
    answer = await places.writing.commit(step, "0-0", "keep", None)
    assert answer is None or isinstance(answer, Committed | Refused)
    return answer


async def test_each_archived_session_that_a_step_speaks_to_is_brought_back_first() -> None:
    places = Places(["a", "c", "d"])
    step = step_to(("cancel", "a"), ("cancel", "b"), ("cancel", "c"), ("cancel", "d"))
    assert await commits(places, step) == DONE
    assert (places.restored, places.sent) == (["a", "c", "d"], 4)


@pytest.mark.parametrize("kind", ["completion", "status", "ended"])
async def test_word_of_an_agent_to_its_parent_waits_for_an_archive_that_is_away(kind: str) -> None:
    places = Places(["parent"], [AWAY, AWAY, None])
    assert await commits(places, step_to((kind, "parent"))) == DONE
    assert places.slept == [ARCHIVE_S, ARCHIVE_S]
    assert places.restored == ["parent"] * 3


@pytest.mark.parametrize("kind", ["message", "cancel", "interrupt", "gone", "answer"])
async def test_other_words_are_refused_while_the_archive_is_away(kind: str) -> None:
    places = Places(["a"], [AWAY])
    refused = Refused("archived_target", "a")
    assert await commits(places, step_to(("completion", "parent"), (kind, "a"))) == refused
    assert (places.sent, places.slept) == (1, [])


@pytest.mark.parametrize("kind", ["completion", "message"])
@pytest.mark.parametrize("how", LOST)
async def test_nothing_waits_for_a_session_that_cannot_be_brought_back(how: str, kind: str) -> None:
    places = Places(["a"], [LOST[how]()])
    assert await commits(places, step_to((kind, "a"))) == Refused("archived_target", "a")
    assert (places.sent, places.slept) == (1, [])


async def test_worker_without_an_archive_is_refused() -> None:
    places = Places(["a"])
    assert await commits(places, step_to(("completion", "a")), restores=False) == Refused(
        "archived_target", "a"
    )
    assert places.restored == []


async def test_claim_that_is_over_waits_no_longer_for_an_archive() -> None:
    places = Places(["parent"], [AWAY] * 9)

    async def sleep(seconds: float) -> None:
        places.slept.append(seconds)
        if len(places.slept) == 2:
            places.writing.give_up()

    places.sleep = sleep  # type: ignore[method-assign]
    await commits(places, step_to(("completion", "parent")))
    assert len(places.restored) == 2
