"""The rule of packs without a session: what was stored for one that is never made does not stay.

Knows births by what Redis was told of them, and packs by their names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.workspaces.stored_packs import BIRTH
from sim.folders import Folders
from sim.network import session_of
from sim.observer import Observer

DAY_S = 86_400.0
CLOCKS_S = 600.0
"""Upkeep's idea of a day may be that much shorter."""
BIRTHS = frozenset({"announce", "create"})
"""Scripts that the rule goes by."""
FIRST = f"0-{BIRTH}"
"""The beginning of the names of packs that a session begins with."""


class Unborn:
    """Sessions that were announced, and what became of them."""

    def __init__(self, watch: Observer, folders: Folders) -> None:
        self._watch, self._folders = watch, folders
        self.swept = False
        """Whether days have passed since the last birth, and upkeep has looked."""
        self._announced_s: defaultdict[str, list[float]] = defaultdict(list)
        self._refused_s: defaultdict[str, list[float]] = defaultdict(list)

    def wrote(self, name: str, args: Sequence[Any], reply: Any) -> None:
        """Notes what a script was told of a birth."""
        code = reply[0]
        if name == "announce" and code == b"OK":
            word = args[3 + int(args[2])]
            session = word.decode() if isinstance(word, bytes) else str(word)
            self._announced_s[session].append(self._watch.now_s)
        elif name == "create" and code == b"GIVEN_UP":
            self._refused_s[session_of(name, args)].append(self._watch.now_s)

    def at_rest(self) -> None:
        """When days have passed since the last birth, each pack in the store is of a session."""
        watch, left = self._watch, set[str]()
        for session, name, at_s in self._stored():
            told_s = self._announced_s[session]
            if f"/{FIRST}-" in name and not watch.was_parted and not any(told <= at_s for told in told_s):
                watch.broken("unborn", f"{session} was announced at {told_s}, and {name} stored at {at_s}")
        for session, name, at_s in self._packs():
            left.add(session)
            if session in watch.sessions or self._is_nobodys(session, at_s):
                continue
            watch.broken("unborn", f"{session} was never made, and the store has {name}")
        stored = {session for session, _, _ in self._stored()}
        for session in self._announced_s:
            if session in stored - left and session not in watch.sessions:
                watch.reach.saw("unborn")
        for session, seen in watch.sessions.items():
            for pack in seen.state.workspace.packs:
                if not self._folders.store.exists(pack.name) and pack.name not in self._folders.lost_packs:
                    watch.broken("packed", f"{session}: its log names {pack.name}, and the store lacks it")

    def _is_nobodys(self, session: str, stored_s: float) -> bool:
        """Whether nothing could know of a pack whose client died: the announcement was lost, or a day old."""
        told_s = [at_s for at_s in self._announced_s[session] if self._watch.kept(at_s)]
        if any(self._watch.kept(at_s) for at_s in self._refused_s[session]):
            return False
        return not told_s or stored_s - min(told_s) > DAY_S - CLOCKS_S

    def _packs(self) -> Iterator[tuple[str, str, float]]:
        """Each pack that the store has: its session, its name, and when it was stored."""
        store = self._folders.store
        return ((s, name, at_s) for s, name, at_s in self._stored() if store.exists(name))

    def _stored(self) -> Iterator[tuple[str, str, float]]:
        """The same of each pack that it ever had."""
        for name, at_s in self._folders.store.put_s.items():
            tree, _, rest = name.partition("/workspaces/")
            if tree and rest:
                yield rest.partition("/")[0], name, at_s
