"""A notary that is killed at every write, again and again, while the logs that it states go on growing.

    python -m tests.crash.notary_kills --kills 500

A life is a forked process with the real state, store and signing; Redis is a double whose logs are longer in
each life. A third of the lives end before a statement of the database, a third before a file is opened for
writing, linked, renamed or removed, and a third by SIGKILL at any moment. Everything that is ever signed is
noted before it is told, and in the end there is one root for each size, and each is one of a single history.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from orchestrator.broker.records import StoredEntry, Tip
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.merkle import leaf_hash, root_of
from orchestrator.rollouts.notary import Notary
from orchestrator.rollouts.notary_state import NotaryState
from orchestrator.rollouts.object_store import Objects
from orchestrator.rollouts.register import Register
from orchestrator.rollouts.signed_notes import Note, Signer
from tests.rollouts import bundles as b

SESSIONS = [SessionId(f"01a2000{n}-0000-7000-8000-000000000000") for n in range(5)]
LOOKS = 3
"""Of one life."""


class Growing:
    """Logs that grow with each look; every entry is what it was in lives before."""

    def __init__(self, life: int) -> None:
        self.life = life
        self.config = SimpleNamespace(shards=1)
        self.broker = self.logs = self.trees = self.keys = self

    def shard_of(self, session: SessionId) -> int:
        return 0

    def size(self, session: SessionId) -> int:
        return 1 + (self.life * (1 + SESSIONS.index(session))) // 2

    async def changed_since(self, shard: int, since_ms: int, limit: int, start: int = 0) -> Any:
        return [(session, 1_000 + self.life) for session in SESSIONS][start:]

    async def tips(self, sessions: Iterable[SessionId]) -> dict[SessionId, Tip]:
        return {
            session: Tip(TreeId(session), self.size(session), _chain(session, self.size(session)), "idle", "")
            for session in sessions
        }

    async def ends_at_once(self, tree: TreeId, sessions: Iterable[SessionId]) -> Any:
        return 0, {session: (self.size(session), _chain(session, self.size(session))) for session in sessions}

    async def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        for seq in range(after + 1, through + 1):
            yield StoredEntry(seq, 1, b"{}", b"", _chain(session, seq))


def _chain(session: SessionId, seq: int) -> bytes:
    return sha256(f"{session} {seq}".encode()).digest()


class Place:
    """The files of a notary, and the note of all that it ever signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.signed = folder / "signed"
        self.objects = Objects((folder / "register").as_uri())
        NotaryState.create(folder / "state", "fleet.example", b.OPERATOR.key.public.hex())

    def live(self, life: int, deadly: Callable[[NotaryState], None]) -> None:
        """A notary's life in this process, up to its end or its looks."""
        state = NotaryState.open(self.folder / "state")
        deadly(state)
        clock = iter(range(life * 1_000_000, (life + 1) * 1_000_000, 100_000))

        def signer(origin: str) -> Signer:
            return cast(Signer, SimpleNamespace(signed=lambda text: self._sign(origin, text)))

        source = cast(Any, Growing(life * LOOKS))
        notary = Notary(source, state, self.objects, signer, 60_000, lambda: next(clock))
        notary.start()
        for _ in range(LOOKS):
            asyncio.run(notary.look())
            source.life += 1

    def _sign(self, origin: str, text: str) -> Note:
        # Written before it is told, by a call that a kill cannot divide.
        descriptor = os.open(self.signed, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, text.encode())
        os.close(descriptor)
        return Signer(origin, b.private("log")).signed(text)

    def roots(self) -> dict[int, set[bytes]]:
        """By size, every root that was ever signed."""
        found = dict[int, set[bytes]]()
        lines = self.signed.read_text().split("\n")
        for size, root in zip(lines[1::3], lines[2::3], strict=False):
            found.setdefault(int(size), set()).add(base64.b64decode(root))
        return found

    def judged(self) -> int:
        """The number of sizes that were signed; fails where one has two roots, or is of another history."""
        newest = Register(self.objects, "home").newest()
        assert newest is not None
        texts = list(Register(self.objects, "home").statements(newest.point.size))
        leaves = [leaf_hash(text.encode()) for text in texts]
        found = self.roots()
        assert max(found) == newest.point.size
        for size, roots in found.items():
            assert roots == {root_of(leaves[:size])}, f"size {size} has {len(roots)} roots"
        return len(found)


# ── deaths ────────────────────────────────────────────────────────────────────────────────────────


def at_statement(number: int) -> Callable[[NotaryState], None]:
    """Dies before so many statements of SQL more are run."""
    left = [number]

    def traced(statement: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda state: state._db.set_trace_callback(traced)


def at_file(number: int, below: Path) -> Callable[[NotaryState], None]:
    """Dies before so many more files are written, linked, renamed or removed."""
    left = [number]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not str(path).startswith(str(below)) or not flags & (os.O_WRONLY | os.O_RDWR):
                return
        elif event not in ("os.rename", "os.link", "os.remove", "os.truncate"):
            return
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda state: sys.addaudithook(hook)


def life(place: Place, number: int, chance: random.Random, kind: int) -> bool:
    """A forked notary's life, which ends in one of three ways, or with 3 by itself; whether it was killed."""
    point = chance.random()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if kind == 0:
                place.live(number, at_statement(int(point * 120)))
            elif kind == 1:
                place.live(number, at_file(int(point * 40), place.folder))
            else:
                place.live(number, lambda state: None)
            code = 0
        finally:
            os._exit(code)
    if kind == 2:
        time.sleep(point * 0.12)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.WEXITSTATUS(status) == 0, "the notary failed"
    return killed


def run(folder: Path, kills: int, seed: int) -> tuple[int, int]:
    """Kills and sizes, once the notary was killed so often and then lived once to its end."""
    place, chance, done, number = Place(folder), random.Random(seed), 0, 0
    while done < kills:
        number += 1
        done += life(place, number, chance, number % 3)
    assert not life(place, number + 1, chance, 3)
    return done, place.judged()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.notary_kills")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        kills, sizes = run(Path(folder), given.kills, given.seed)
        print(f"{kills} kills, {sizes} sizes signed, one root for each ({time.process_time() - began:.1f} s)")


if __name__ == "__main__":
    main()
