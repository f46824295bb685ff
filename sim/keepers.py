"""Keepers of simulated folders: the product's own work on real files, in a process that may die at any write.

A keeper does one piece of work after the other, takes time for each, and ends with its worker, at its
claim's deadline, or in the middle of a piece of work. What it does is the product's own (`folders.copy`, by
way of the table of `keeper_process`); simulated are the process, its sockets and its time. It judges nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from orchestrator.folders import keeper_process
from orchestrator.folders.copy import Copy
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.outcomes import Bounds, FolderError, Place
from sim.disk import Fault, Killed, faulty
from sim.folder_content import Content, on_disk
from sim.loop import Lane, SimLoop

STEPS = 12
"""A keeper that dies in a piece of work has changed its disk less often than that."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that a keeper is a child of."""

    name: str
    simulated: Callable[[float], float]
    """The simulated time at which its machine's clock shows a reading."""


class Keeping(Protocol):
    """The folders, as far as keepers ask of them."""

    loop: SimLoop

    @property
    def root(self) -> Path: ...

    def owner(self) -> Owner:
        """The process that runs right now."""
        ...

    def began(self, keeper: SimKeeper) -> None: ...

    def ended(self, keeper: SimKeeper) -> None: ...

    def takes_s(self, keeper: SimKeeper, work: str) -> float:
        """The seconds that a piece of work takes."""
        ...

    def fault(self, keeper: SimKeeper, work: str) -> Fault | None:
        """The fault that the disk, or the keeper, meets meanwhile."""
        ...

    def half(self, work: str) -> Fault | None:
        """How far a piece of work comes whose keeper is killed; None: it has not begun."""
        ...

    def did(self, keeper: SimKeeper, words: dict[str, Any], before: Content, told: dict[str, Any]) -> None:
        """Told of a piece of work that was done, or refused."""
        ...

    def broke_off(self, keeper: SimKeeper, words: dict[str, Any], before: Content) -> None:
        """Told of one in which its keeper has died."""
        ...


@dataclass(slots=True, eq=False)
class _Piece:
    words: dict[str, Any]
    descriptors: list[int]
    answer: asyncio.Future[dict[str, Any]]

    def close(self) -> None:
        for descriptor in self.descriptors:
            with suppress(OSError):
                os.close(descriptor)
        self.descriptors = []


class SimKeeper(Keeper):
    """A keeper whose process is a lane."""

    folders: ClassVar[Keeping]

    def __init__(self, place: Place, bounds: Bounds) -> None:
        super().__init__(place, bounds)
        self.claim = ""
        """The claim that it works for, once that is known."""
        self.dead = False
        self._until_s = 0.0
        self._copy: Copy | None = None
        self._held: int | None = None
        """The descriptor of its lock."""
        self._pieces: list[_Piece] = []

    @property
    def place(self) -> Place:
        return self._place

    @property
    def session(self) -> str:
        """The session whose folder, or whose merges, it works on."""
        return self._place.objects.parent.name

    @property
    def pid(self) -> int:
        return 0

    # ── the parent's side ─────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self.owner = self.folders.owner()
        self.lane = Lane(f"{self.owner.name}/keeper")
        self.folders.began(self)

    def extend(self, deadline_boottime: float) -> None:
        if self.dead:
            return
        loop, at_s = self.folders.loop, self.owner.simulated(deadline_boottime)
        self._until_s = at_s
        loop.on(self.lane, self._obeys, at_s, after=max(0.0, at_s - loop.time()))

    def _obeys(self, at_s: float) -> None:
        if self._until_s <= at_s:
            self.die()

    @property
    def lives(self) -> bool:
        """Whether it may still do something."""
        return not self.dead and self.folders.loop.time() < self._until_s

    async def _ask(self, words: dict[str, Any], packs: Sequence[Path], seconds: float) -> dict[str, Any]:
        if self._lost or self.dead:
            raise self._gone()
        loop = self.folders.loop
        piece = _Piece(json.loads(json.dumps(words)), [], loop.create_future())
        try:
            piece.descriptors.extend(os.open(pack, os.O_RDONLY | os.O_CLOEXEC) for pack in packs)
        except FileNotFoundError as error:
            piece.close()
            raise FolderError("missing", f"the pack {error.filename} is not there") from error
        self._pieces.append(piece)
        loop.on(self.lane, self._serves, piece, after=self.folders.takes_s(self, words.get("do", "begin")))
        try:
            async with asyncio.timeout(seconds):
                answer = await piece.answer
        except TimeoutError as error:
            self._kill()
            raise FolderError("time", f"the work on the folder took more than {seconds:g} s") from error
        except OSError as error:
            self._kill()
            raise self._gone() from error
        if answer.get("is") == "error":
            raise self._error(answer)
        return answer

    def _gone(self) -> FolderError:
        return FolderError("lost", "the process that works on the folder has ended: another one goes on")

    def _kill(self) -> None:
        self._lost = True
        self.die()

    async def _stop(self) -> None:
        self._lost = True
        self.die()

    # ── its own side ──────────────────────────────────────────────────────────────────────────

    def _serves(self, piece: _Piece) -> None:
        if not self.lives:
            self.die()
            return
        self._pieces.remove(piece)
        told = self._does(piece, self.folders.fault(self, piece.words.get("do", "begin")))
        if told is None:
            self.die()
        if piece.answer.done():
            return
        if told is None:
            piece.answer.set_exception(ConnectionResetError())
        else:
            piece.answer.set_result(json.loads(json.dumps(told)))

    def _does(self, piece: _Piece, fault: Fault | None) -> dict[str, Any] | None:
        """The answer to its parent about a piece of work; None if the keeper has died of it."""
        words = piece.words
        if "place" in words:
            return self._begins(words)
        before = on_disk(self._place.folder)
        try:
            with faulty(fault, str(self.folders.root)):
                told = keeper_process._WORK[words["do"]](self._opened(), words, piece.descriptors)
        except FolderError as error:
            told = keeper_process._told(error)
        except Killed:
            self.folders.broke_off(self, words, before)
            return None
        finally:
            piece.close()
        self.folders.did(self, words, before, told)
        return told

    def _opened(self) -> Copy:
        assert self._copy is not None, "it has begun"
        return self._copy

    def _begins(self, words: dict[str, Any]) -> dict[str, Any]:
        place, bounds = keeper_process._place(words["place"]), keeper_process._bounds(**words["bounds"])
        try:
            self._held = keeper_process._lock(place)
            self._copy = Copy(place, bounds)
        except (OSError, FolderError) as error:
            return keeper_process._told(error)
        return {"is": "ready"}

    def die(self) -> None:
        """SIGKILL, maybe in the middle of what it does."""
        if self.dead:
            return
        self.dead = True
        if self._pieces and self._copy is not None:
            work = self._pieces[0].words.get("do", "begin")
            if (half := self.folders.half(work)) is not None:
                self._does(self._pieces[0], half)
        self.folders.loop.kill(self.lane)
        if self._held is not None:
            os.close(self._held)
        self._held = self._copy = None
        for piece in self._pieces:
            piece.close()
            if not piece.answer.done():
                piece.answer.set_exception(ConnectionResetError())
        self._pieces.clear()
        self.folders.ended(self)

    def close(self) -> None:
        """Lets go of everything, as the simulation is over."""
        self.dead = True
        if self._held is not None:
            os.close(self._held)
        self._held = self._copy = None
        for piece in self._pieces:
            piece.close()
