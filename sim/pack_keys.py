"""Keys of packs on simulated machines: a file on each, exchanged for another key, and gone for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path, PosixPath
from random import Random
from typing import TYPE_CHECKING

from orchestrator.workspaces.pack_keys import PackKeys
from orchestrator.workspaces.stored_packs import MAGIC, Opening

if TYPE_CHECKING:
    from sim.nemesis import Nemesis

KEYS = 3
"""A deployment has had at most so many."""
WAITS_S = (0.5, 8.0)


class KeyFile(PosixPath):
    """A machine's file of keys: logs tell its path, which is the same in each run, wherever it is."""

    def __str__(self) -> str:
        return f"/keys/{self.name}"

    def __fspath__(self) -> str:
        return super().__str__()


class SimKeys:
    """The keys of all machines. Where there are none, packs are stored as they are."""

    def __init__(self, place: Path, rng: Random) -> None:
        self._place = place
        self._lines = [f"dendro-pack-key-1:{rng.randbytes(32).hex()}" for _ in range(KEYS)]
        self._made = 1
        """Keys that there are by now."""
        self._of: dict[str, list[str]] = {}
        """The lines of each machine's file, in their order."""

    def of(self, machine: str) -> PackKeys:
        """The keys of a machine, as its processes read them."""
        if machine not in self._of:
            self._write(machine, self._newest_first())
        return PackKeys(self._file(machine))

    def has_all(self, machine: str) -> bool:
        """Whether a machine lacks no key."""
        return len(self._of.get(machine, ())) == self._made

    def opened(self, data: bytes, name: str) -> bytes:
        """A pack as it was before it was sealed."""
        plain = bytearray()
        opening = Opening(plain.extend, name, self.of("everybody"), len(data))
        opening.write(data)
        opening.finish()
        return bytes(plain)

    def is_sealed(self, data: bytes) -> bool:
        return data.startswith(MAGIC)

    def loses(self, machine: str) -> None:
        """The file of a machine is gone."""
        self._write(machine, [])

    def exchanges(self, *without: str) -> None:
        """A new key comes behind the others, and then first; some machines do not hear of it yet."""
        if self._made == KEYS:
            return
        self._made += 1
        for machine in self._of:
            if machine not in without:
                self._write(machine, self._newest_first())

    def mends(self) -> None:
        """Every machine has all keys."""
        for machine in list(self._of):
            self._write(machine, self._newest_first())

    def _newest_first(self) -> list[str]:
        return self._lines[: self._made][::-1]

    def _file(self, machine: str) -> Path:
        return KeyFile(self._place, f"{machine}.keys")

    def _write(self, machine: str, lines: list[str]) -> None:
        self._of[machine], file = lines, self._file(machine)
        file.unlink(missing_ok=True)
        if lines:
            file.touch(0o600)
            file.write_text("\n".join(lines))


async def exchanges(nemesis: Nemesis, rng: Random) -> None:
    """Takes a machine's keys away for a while, or exchanges the key, now and then; until peace."""
    folders = nemesis.site.folders
    while not nemesis.calm.is_set() and folders.keys is not None:
        await asyncio.sleep(rng.uniform(*WAITS_S))
        host = f"h{rng.randrange(folders.hosts) + 1}"
        if nemesis.calm.is_set():
            return
        if rng.random() < 0.65:
            nemesis.site.trace.note("nemesis", "takes the keys of", host)
            folders.keys.loses(host)
        else:
            nemesis.site.trace.note("nemesis", "exchanges the key, but of", host)
            folders.keys.exchanges(host)
        await asyncio.sleep(rng.uniform(*WAITS_S))
        folders.keys.mends()


async def loses_a_pack(nemesis: Nemesis, rng: Random) -> None:
    """Removes one of the packs in the store, for good."""
    await asyncio.sleep(rng.uniform(3.0, 15.0))
    store, folders = nemesis.site.objects, nemesis.site.folders
    known = sorted(name for name in store.put_s if "/workspaces/" in name and store.exists(name))
    if known and not nemesis.calm.is_set():
        name = rng.choice(known)
        nemesis.site.trace.note("nemesis", "loses", name[-16:])
        folders.lost_packs.add(name)
        store.remove(name)
