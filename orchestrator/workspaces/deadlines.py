"""The deadlines of the claims on a machine, and the keepers that work under them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from orchestrator.broker.records import Claim
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.records import Bounds, FolderError, Place

BUSY_S = 10.0
"""The wait for the keeper of a claim that is over: it ends at that claim's deadline."""
RETRY_S = 0.2
MOST_KEPT = 4096


class Deadlines:
    """The time until which each claim is trusted, in seconds of CLOCK_BOOTTIME; from any thread."""

    def __init__(self, now: Callable[[], float], trust_s: float) -> None:
        self._now, self._trust_s = now, trust_s
        self._guard = threading.Lock()
        """Guards the deadlines: claims are extended by the thread that renews them."""
        self._ends: dict[str, float] = {}

    def extend(self, claim: str, deadline_boottime: float) -> None:
        """Writes a claim's deadline; never blocks."""
        with self._guard:
            self._ends[claim] = deadline_boottime
            if len(self._ends) > MOST_KEPT:
                now = self._now()
                self._ends = {name: ends for name, ends in self._ends.items() if ends > now}

    def of(self, claim: Claim) -> float:
        with self._guard:
            return self._ends.get(claim.claim_id, self._now() + self._trust_s)

    def forget(self, claim: Claim) -> None:
        with self._guard:
            self._ends.pop(claim.claim_id, None)

    async def keeper(self, place: Place, bounds: Bounds, claim: Claim) -> Keeper:
        """Starts a keeper; waits for the one of a claim that is over, which its deadline ends."""
        until = self._now() + BUSY_S
        while True:
            try:
                return await Keeper.start(place, bounds, self.of(claim))
            except FolderError as error:
                if error.kind != "busy" or self._now() > until:
                    raise
            await asyncio.sleep(RETRY_S)
